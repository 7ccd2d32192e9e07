"""Fitting a profile to measured kernels: round trips with known constants, borders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.regimes import LIMITS, REGIMES
from perfmodel.hwprofiles import Calibrated, load_hardware
from perfmodel.hwprofiles.constants import constants, known
from perfmodel.measured.calibrate import adjustable, calibrate_file, spread_by_regime
from perfmodel.measured.compare import compare_file
from perfmodel.measured.kind import KernelKind
from perfmodel.measured.problem import MeasuredTable, OneProfile, read_problem
from tests.measured.toy import shapes, write_table


def named(found: Any) -> dict[str, Any]:
    return {item.path.rsplit(".", 1)[1]: item for item in found.parameters}


# ---------------------------------------------------------------- round trips


def test_known_constants_are_recovered(toy: KernelKind, profile: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55)
    found = calibrate_file(str(profile), table)
    by = named(found)
    assert by["launch_latency"].after == pytest.approx(4e-6, rel=0.01)
    assert by["issue_efficiency"].after == pytest.approx(0.55, rel=0.01)
    assert found.tables[0].kind == "gemm"
    assert found.errors("before")["all"]["median_absolute_error"] > 0.2
    assert found.errors("after")["all"]["median_absolute_error"] < 0.01
    assert found.errors("cross_validated")["all"]["median_absolute_error"] < 0.01
    assert found.fold_count == 5


def test_noise_widens_the_uncertainty_which_covers_the_truth(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55, noise=0.05)
    by = named(calibrate_file(str(profile), table))
    for key, truth in (("launch_latency", 4e-6), ("issue_efficiency", 0.55)):
        assert abs(by[key].after - truth) < 3.0 * by[key].uncertainty, key
        assert by[key].uncertainty < 0.1 * truth, key
    # Half of the band of a normal distribution is 1.2816 standard deviations.
    spread = calibrate_file(str(profile), table).uncertainty
    assert spread["gemm_small"][0] == pytest.approx(1.2816 * 0.05, rel=0.4)


def test_outliers_do_not_decide(toy: KernelKind, profile: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55, noise=0.02)
    lines = table.read_text().splitlines()
    for i in range(5, len(lines), 12):  # one row in twelve timed a slow fallback
        cells = lines[i].split(",")
        cells[5] = str(float(cells[5]) * 20)
        lines[i] = ",".join(cells)
    table.write_text("\n".join(lines))
    by = named(calibrate_file(str(profile), table))
    assert by["issue_efficiency"].after == pytest.approx(0.55, rel=0.06)


def test_what_the_rows_do_not_say_is_kept(toy: KernelKind, profile: Path, tmp_path: Path) -> None:
    """The toy model has no split; large products say nothing about the launch."""
    large = [(m, n, 16384) for m in (8192, 16384) for n in (8192, 16384, 32768)]
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55, rows=large)
    found = calibrate_file(str(profile), table)
    by = named(found)
    for key in ("split_latency", "launch_latency"):
        assert not by[key].informed
        assert by[key].after == by[key].before == 2e-6
        assert by[key].uncertainty == 0.0
    assert by["issue_efficiency"].informed
    assert "tile_half" not in by
    assert "gemm_large" not in found.uncertainty  # 6 rows are too few to tell a spread


def test_from_prior_starts_and_is_held_there(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55)
    by = named(calibrate_file(str(profile), table, from_prior=True))
    assert by["issue_efficiency"].prior == 0.9
    assert by["issue_efficiency"].after == pytest.approx(0.55, rel=0.01)
    assert by["split_latency"].after == 2e-6  # the value in use, where the rows say nothing


def test_bounds_hold_and_are_reported(toy: KernelKind, profile: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.1)
    parameter = named(calibrate_file(str(profile), table))["issue_efficiency"]
    assert parameter.after == pytest.approx(0.3, rel=1e-3)
    assert parameter.at_bound


def test_written_profile_loads_and_holds_what_changed_with_its_source(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55, noise=0.03)
    found = calibrate_file(str(profile), table, where="n > 256")
    folder = tmp_path / "out"
    folder.mkdir()
    output = folder / "new.toml"
    found.write_profile(output)
    new = load_hardware(output)
    base = load_hardware(profile)
    assert new.name == "new"
    assert new.device == base.device
    entry = new.calibration["gemm"]["issue_efficiency"]
    assert entry.value == pytest.approx(named(found)["issue_efficiency"].after, rel=1e-5)
    assert entry.prior == base.calibration["gemm"]["issue_efficiency"].value
    assert entry.uncertainty > 0.0
    assert entry.adjustable
    for words in ("mine.csv", "60 rows", "where n > 256", "median residual", "cross-validated"):
        assert words in entry.source, words
    assert str(tmp_path) not in output.read_text()
    assert new.calibration["gemm"]["split_latency"] == base.calibration["gemm"]["split_latency"]
    assert new.uncertainty("gemm", "small") == pytest.approx(
        found.uncertainty["gemm_small"][0], rel=1e-5
    )
    assert new.uncertainty("moe", "small") == base.uncertainty("moe", "small")
    assert [child.name for child in folder.iterdir()] == ["new.toml"]


def test_compare_with_the_new_profile_gives_the_reported_errors(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55, noise=0.03)
    found = calibrate_file(str(profile), table)
    output = tmp_path / "new.toml"
    found.write_profile(output)
    compared = compare_file("gemm", table, hardware=str(output)).to_json_dict()
    after = found.errors("after")["all"]
    for key in ("count", "median_absolute_error", "p90_absolute_error", "bias"):
        assert compared[key] == pytest.approx(after[key], rel=1e-3, abs=1e-5), key
    assert list(compared["groups"]["hardware"]) == ["H100_SXM"]


def test_a_second_calibration_extends_the_first(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "mine.csv", launch=4e-6, efficiency=0.55)
    first = tmp_path / "first.toml"
    calibrate_file(str(profile), table).write_profile(first)
    again = calibrate_file(str(first), table)
    assert again.errors("before")["all"]["median_absolute_error"] < 0.01
    second = tmp_path / "second.toml"
    again.write_profile(second)
    assert load_hardware(second).calibrated("gemm", "issue_efficiency") == pytest.approx(
        0.55, rel=0.01
    )


# ---------------------------------------------------------------- rows


def test_only_rows_of_the_profile_count_unless_told_otherwise(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    lines = []
    for name in ("H100_SXM", "my card", "A100_SXM", "nobody's card"):
        table = write_table(tmp_path / "part.csv", 4e-6, 0.5, hardware=name)
        lines += table.read_text().splitlines()[1 if lines else 0 :]
    table.write_text("\n".join(lines))
    count = len(shapes())
    mine = calibrate_file(str(profile), table)
    assert mine.regimes.size == 2 * count
    assert mine.skipped == {"other hardware": 2 * count}
    every = calibrate_file(str(profile), table, all_rows=True)
    assert every.regimes.size == 3 * count
    assert every.skipped == {"no hardware profile": count}


# ---------------------------------------------------------------- borders


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("time_us", "micros"), "line 1: no column 'time_us'"),
        (("bf16,1,256,256,", "bf16,1,256,256,fast"), "line 2, column 'time_us'"),
        (("bf16,1,256,256,", "bf16,1,256,256,-"), "line 2, column 'time_us'"),
        (("bf16,1,256,256,", "bf16,1.5,256,256,"), "line 2, column 'm'"),
    ],
)
def test_bad_tables_are_named_with_the_line(
    toy: KernelKind, profile: Path, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    table = write_table(tmp_path / "mine.csv", 4e-6, 0.5)
    text = table.read_text()
    assert change[0] in text
    table.write_text(text.replace(*change, 1))
    with pytest.raises(DataError, match=message):
        calibrate_file(str(profile), table, kind="gemm")


def test_nothing_to_fit_is_one_clear_error(toy: KernelKind, profile: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv", 4e-6, 0.5, hardware="A100_SXM")
    with pytest.raises(DataError, match=r"no row to calibrate 'my-h100' with \(80 other hardware"):
        calibrate_file(str(profile), table)
    with pytest.raises(DataError, match="nothing to calibrate for 'training'"):
        calibrate_file(str(profile), table, kind="training")
    with pytest.raises(HardwareError, match=r"'tile_half'.*is not adjustable"):
        calibrate_file(str(profile), table, all_rows=True, only=["tile_half"])
    with pytest.raises(HardwareError, match=r"'launch_latncy'.*did you mean launch_latency"):
        calibrate_file(str(profile), table, all_rows=True, only=["launch_latncy"])
    entry = Calibrated(value=1.0, prior=1.0, low=0.0, high=2.0, source="test")
    rigid = replace(load_hardware(profile), calibration={"gemm": {"fixed": entry}})
    with pytest.raises(HardwareError, match="declares nothing in"):
        adjustable(OneProfile(rigid, str(profile)), [MeasuredTable(str(table), "gemm")])
    empty = OneProfile(replace(rigid, calibration={}), str(profile))
    with pytest.raises(HardwareError, match=r"has no \[calibration.gemm\]"):
        read_problem(MeasuredTable(str(table), "gemm"), empty)


def test_a_profile_is_written_beside_the_one_that_it_extends(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "mine.csv", 4e-6, 0.5)
    found = calibrate_file(str(profile), table)
    with pytest.raises(DataError, match="would extend itself"):
        found.write_profile(profile)
    with pytest.raises(DataError, match=r"ends in \.toml"):
        found.write_profile(tmp_path / "new.txt")
    output = tmp_path / "new.toml"
    output.write_text("former")
    found.write_profile(output)
    assert load_hardware(output).name == "new"


def test_spread_is_half_the_width_between_the_deciles() -> None:
    values = np.linspace(-0.5, 0.5, 101)
    found = spread_by_regime(np.array(["gemm_small"] * 101), values)
    assert found["gemm_small"] == (pytest.approx(0.4), 101)
    assert spread_by_regime(np.array(["gemm_unknown"] * 101), values) == {}


def test_profiles_know_the_classes_and_regimes_of_the_kernel_models() -> None:
    steps = {"step", "step_moe", "step_software", "step_machine"}
    assert set(constants()["uncertainty"]) == {*LIMITS, *steps, "memory"}
    assert {f"{name}_{regime}" for name in LIMITS for regime in REGIMES} <= set(
        known("uncertainty")
    )


def test_uncertainty_of_an_unknown_class_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'name = "bad"\nextends = "dgx-h100"\n[calibration.uncertainty]\n'
        "gem_small = { value = 0.1, prior = 0.2, low = 0, high = 1, source = 'x' }\n"
    )
    with pytest.raises(HardwareError, match=r"unknown constant.*did you mean gemm_small"):
        load_hardware(path)
