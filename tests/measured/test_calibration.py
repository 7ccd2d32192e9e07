"""Fitting what a family hands down: known constants come back, and what is written of them."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.compute.collectives import collective_times, serving_all_reduce_times
from perfmodel.compute.expert_exchange import moe_exchange_times
from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.trust import at_clock
from perfmodel.measured.calibrate import (
    Calibration,
    calibrate_family,
    calibrate_file,
    fitted_family,
    judge_family,
)
from perfmodel.measured.calibration import (
    constant_line,
    family_json,
    family_lines,
    fit_id,
    write_family,
)
from perfmodel.measured.problem import MeasuredTable, with_constants

SHAPES = [(m, n, k) for m in (1, 48, 2048) for n in (1024, 11008) for k in (512, 8192)]
TRUTH = {"launch_latency": 3.4e-6, "memory_efficiency": 0.77}


def write(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def products(
    path: Path, constants: Mapping[str, float], devices: Sequence[str], noise: float = 0.0
) -> MeasuredTable:
    """Times of bf16 products on some systems under known constants."""
    random, rows = np.random.default_rng(5), []
    for name in devices:
        hardware = load_hardware(name)
        clocks = load_hardware("dgx-h100").device.boost_clock, hardware.device.boost_clock
        own = {key: at_clock(known("gemm")[key], it, *clocks) for key, it in constants.items()}
        hardware = with_constants(hardware, "gemm", own)
        columns = (np.array(column, float) for column in zip(*SHAPES, strict=True))
        times = gemm_times(hardware, "bf16", *columns).time
        times *= np.exp(noise * random.standard_normal(times.size))
        rows += [[name, "bf16", *shape, t * 1e6] for shape, t in zip(SHAPES, times, strict=True)]
    write(path, ["hardware", "dtype", "m", "n", "k", "time_us"], rows)
    return MeasuredTable(str(path), "gemm")


def after(found: Calibration) -> dict[str, float]:
    return {parameter.key: parameter.after for parameter in found.parameters}


@pytest.fixture
def fitted(tmp_path: Path) -> Calibration:
    table = products(tmp_path / "mine.csv", TRUTH, ["dgx-h100", "h100-pcie"], noise=0.02)
    return calibrate_family("nvidia-hopper", [table], only=list(TRUTH), fold_count=0)


# ---------------------------------------------------------------- round trips


def test_rows_of_two_devices_give_back_the_constants_that_they_share(fitted: Calibration) -> None:
    assert fitted.regimes.size == 2 * len(SHAPES)
    for key, truth in TRUTH.items():
        assert after(fitted)[key] == pytest.approx(truth, rel=0.04), key
    assert fitted.errors("after")["all"]["median_absolute_error"] < 0.03
    assert fitted.errors("before")["all"]["median_absolute_error"] > 0.05


def test_a_device_keeps_what_its_own_files_state(tmp_path: Path) -> None:
    """MI308X has its own issue efficiency: its rows, at that, don't move the family's."""
    own = load_hardware("mi308x-server").calibrated("gemm", "issue_efficiency")
    sides = np.array([1024.0, 1536.0, 2048.0, 1024.0, 1536.0, 2048.0])
    depths = np.array([8192.0, 8192.0, 8192.0, 2048.0, 2048.0, 2048.0])
    rows = []
    for name, value in (("mi300x-server", 0.5), ("mi308x-server", own)):
        hardware = with_constants(load_hardware(name), "gemm", {"issue_efficiency": value})
        times = gemm_times(hardware, "bf16", sides, sides, depths).time
        rows += [
            [name, "bf16", int(side), int(side), int(depth), time * 1e6]
            for side, depth, time in zip(sides, depths, times, strict=True)
        ]
    path = write(tmp_path / "amd.csv", ["hardware", "dtype", "m", "n", "k", "time_us"], rows)
    table = MeasuredTable(str(path), "gemm")
    found = calibrate_family("amd-cdna3", [table], only=["issue_efficiency"], fold_count=0)
    assert after(found)["issue_efficiency"] == pytest.approx(0.5, rel=0.04)
    assert found.errors("after")["all"]["worst_absolute_error"] < 0.03
    before = np.abs(np.expm1(found.log_ratios["before"]))
    assert before[: sides.size].min() > 0.05  # those of the family moved it
    assert before[sides.size :].max() < 1e-6  # those of MI308X were right all along


def test_later_fits_stand_on_the_values_of_earlier_ones(tmp_path: Path) -> None:
    table = products(tmp_path / "mine.csv", TRUTH, ["dgx-h100"])
    first = calibrate_family("nvidia-hopper", [table], only=["launch_latency"], fold_count=0)
    second = calibrate_family(
        fitted_family(first), [table], only=["memory_efficiency"], fold_count=0
    )
    assert after(second)["memory_efficiency"] == pytest.approx(0.77, rel=0.05)
    errors = [found.errors("after")["all"]["mean_absolute_error"] for found in (first, second)]
    assert errors[1] < 0.5 * errors[0]
    before = second.errors("before")["all"]["mean_absolute_error"]
    assert before == pytest.approx(errors[0], rel=1e-6)


SIZES = np.array([2.0**power for power in range(10, 31, 2)])


def test_constants_of_collectives_are_recovered(tmp_path: Path) -> None:
    truth = {"base_latency": 6e-6, "scale_up_efficiency": 0.75}
    hardware = with_constants(load_hardware("dgx-a100"), "network", truth)
    rows = []
    for members in (2, 4, 8):
        times = collective_times(hardware, "all_gather", SIZES, members)
        rows += [
            ["dgx-a100", "all_gather", "nccl", members, int(size), time * 1e6]
            for size, time in zip(SIZES, times, strict=True)
        ]
    path = write(
        tmp_path / "nccl.csv", ["hardware", "op", "impl", "n_gpus", "bytes", "time_us"], rows
    )
    table = MeasuredTable(str(path), "collective")
    found = calibrate_family("nvidia-ampere", [table], only=list(truth), fold_count=0)
    for key, value in truth.items():
        assert after(found)[key] == pytest.approx(value, rel=0.02), key


def test_constants_of_serving_all_reduces_are_recovered(tmp_path: Path) -> None:
    truth = {"shot_latency": 4e-6, "shot_efficiency": 0.5}
    hardware: Hardware = with_constants(load_hardware("dgx-h100"), "network", truth)
    rows = [
        ["dgx-h100", "all_reduce", impl, members, int(size), time * 1e6]
        for impl in ("sglang_graph", "sglang_eager")  # eager rows are not read
        for members in (4, 8)
        for size, time in zip(
            SIZES, serving_all_reduce_times(hardware, SIZES, members), strict=True
        )
    ]
    path = write(
        tmp_path / "engine.csv", ["hardware", "op", "impl", "n_gpus", "bytes", "time_us"], rows
    )
    table = MeasuredTable(str(path), "serving-all-reduce")
    found = calibrate_family("nvidia-hopper", [table], only=list(truth), fold_count=0)
    assert found.regimes.size == len(rows) // 2
    for key, value in truth.items():
        assert after(found)[key] == pytest.approx(value, rel=0.03), key


def test_constants_of_the_exchange_of_experts_are_recovered(tmp_path: Path) -> None:
    truth = {"exchange_unit_rate": 18e9, "exchange_dispatch_latency": 4e-5}
    hardware = with_constants(load_hardware("dgx-h100"), "network", truth)
    tokens = np.array([1.0, 16, 256, 1024, 4096, 16384])
    times = moe_exchange_times(hardware, "dispatch", "normal", tokens, 7168, 8, 256, 8)
    rows = [
        ["dgx-h100", "normal", "dispatch", 8, int(count), 7168, 8, 256, time * 1e6]
        for count, time in zip(tokens, times, strict=True)
    ]
    header = ["hardware", "mode", "phase", "ep", "tokens_per_rank", "hidden", "topk", "experts"]
    path = write(tmp_path / "deepep.csv", [*header, "time_us"], rows)
    table = MeasuredTable(str(path), "moe-alltoall")
    found = calibrate_family("nvidia-hopper", [table], only=list(truth), fold_count=0)
    alone = calibrate_file("dgx-h100", path, only=list(truth))
    assert alone.tables == (table,)
    for key, value in truth.items():
        assert after(found)[key] == pytest.approx(value, rel=0.05), key
        assert after(alone)[key] == pytest.approx(value, rel=0.05), key


def test_bands_are_half_the_width_between_the_deciles(tmp_path: Path) -> None:
    in_use = {
        key: load_hardware("dgx-h100").calibrated("gemm", key) for key in TRUTH
    }  # no error but the noise
    devices = ["dgx-h100", "dgx-h200", "h100-pcie", "gh200", "hgx-h800"]
    table = products(tmp_path / "mine.csv", in_use, devices, noise=0.1)
    found = judge_family("nvidia-hopper", [table])
    assert found.parameters == ()
    assert list(found.log_ratios) == ["before"]
    # Half of the band of a normal distribution is 1.2816 standard deviations.
    assert found.uncertainty["gemm_small"][0] == pytest.approx(1.2816 * 0.1, rel=0.5)
    assert found.uncertainty["gemm_small"][1] == 4 * len(devices) * 2
    assert set(family_json(found, fit_id(found), "x")["constants"]) == {"uncertainty"}


# ---------------------------------------------------------------- borders


def test_rows_of_other_families_are_no_rows(tmp_path: Path) -> None:
    table = products(tmp_path / "mine.csv", {}, ["dgx-a100"])
    with pytest.raises(DataError, match=r"calibrate 'nvidia-hopper' with \(12 other hardware\)"):
        calibrate_family("nvidia-hopper", [table])


def test_tables_without_a_constant_in_common_are_refused(tmp_path: Path) -> None:
    gemm = products(tmp_path / "mine.csv", {}, ["dgx-h100"])
    path = write(
        tmp_path / "nccl.csv",
        ["hardware", "op", "n_gpus", "bytes", "time_us"],
        [["dgx-h100", "all_reduce", 8, 2**20, 40]],
    )
    tables = [gemm, MeasuredTable(str(path), "collective")]
    with pytest.raises(DataError, match=r"no constant in common.*\(gemm\), .*\(network\)"):
        calibrate_family("nvidia-hopper", tables)
    assert judge_family("nvidia-hopper", tables).regimes.size == len(SHAPES) + 1


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "nccl.csv",
        ["hardware", "op", "n_gpus", "bytes", "time_us"],
        [["dgx-h100", "all_reduce", 8, 2**20, 40]],
    )
    table = MeasuredTable(str(path), "collective")
    with pytest.raises(HardwareError, match=r"'exchange_unit_rate'.*no row of collective"):
        calibrate_family("nvidia-hopper", [table], only=["exchange_unit_rate"])
    with pytest.raises(HardwareError, match=r"'base_latncy'.*did you mean base_latency"):
        calibrate_family("nvidia-hopper", [table], only=["base_latncy"])


# ---------------------------------------------------------------- what is written


def test_lines_state_value_and_fit_and_the_fit_its_data(fitted: Calibration) -> None:
    document = tomllib.loads("\n".join(family_lines(fitted, "gemm-mine", "perfmodel calibrate")))
    entry = document["calibration"]["gemm"]["launch_latency"]
    assert entry == {"value": pytest.approx(3.4e-6, rel=0.04), "fit": "gemm-mine"}
    fit = document["gemm-mine"]
    assert (fit["data"], fit["rows"], fit["script"]) == ("mine.csv", 24, "perfmodel calibrate")
    median = fitted.errors("after")["all"]["median_absolute_error"]
    assert fit["residual"] == pytest.approx(median, abs=1e-4)


def test_what_needs_a_reason_is_said(tmp_path: Path) -> None:
    """Rows so slow that the latency goes beyond what is physical."""
    table = products(tmp_path / "mine.csv", {"launch_latency": 60e-6}, ["dgx-h100"])
    found = calibrate_family("nvidia-hopper", [table], only=["launch_latency"], fold_count=0)
    assert found.parameters[0].warning == "at its bound"
    lines = list(family_lines(found, "mine", "x"))
    assert '# at its bound: say why with reason = "…"' in lines
    table = products(tmp_path / "mine.csv", {"launch_latency": 8e-6}, ["dgx-h100"])
    found = calibrate_family("nvidia-hopper", [table], only=["launch_latency"], fold_count=0)
    assert found.parameters[0].warning == "4 times its prior"


def test_lines_are_written_completely_or_not_at_all(
    fitted: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "lines.toml"
    write_family(fitted, output, "mine", "x")
    first = output.read_text(encoding="utf-8")
    with pytest.raises(DataError, match=r"ends in \.toml"):
        write_family(fitted, tmp_path / "lines.txt", "mine", "x")

    def broken(*arguments: object) -> object:
        raise RuntimeError("half-way")

    monkeypatch.setattr("perfmodel.measured.calibration.fit_entry", broken)
    with pytest.raises(RuntimeError):
        write_family(fitted, output, "mine", "x")
    assert output.read_text(encoding="utf-8") == first
    assert [path.name for path in tmp_path.glob("*.toml")] == ["lines.toml"]


def test_a_family_is_no_profile_to_extend(fitted: Calibration, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'nvidia-hopper' is no profile"):
        fitted.write_profile(tmp_path / "new.toml")


def test_a_line_of_a_constant_keeps_its_rows_and_reason() -> None:
    line = constant_line("tail", 1.0, "attention-h100", 30, 'equal blocks "end" together')
    assert tomllib.loads(line)["tail"] == {
        "value": 1,
        "fit": "attention-h100",
        "rows": 30,
        "reason": 'equal blocks "end" together',
    }
