"""Rows that constants are fitted to: chosen, priced with other constants, joined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.family import load_family
from perfmodel.measured.kind import KernelKind
from perfmodel.measured.problem import (
    MeasuredTable,
    OneProfile,
    WholeFamily,
    infer_kind,
    join,
    read_problem,
    sample,
)
from perfmodel.measured.rows import MeasuredRow
from tests.measured.toy import write_table


def test_rows_of_other_devices_keep_their_own_facts(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "a100.csv", 4e-6, 0.5, hardware="A100_SXM", rows=[(4096,) * 3])
    subject = OneProfile(load_hardware(profile), str(profile), all_rows=True)
    problem = read_problem(MeasuredTable(str(table), "gemm"), subject)
    ratio = problem.log_ratios({"launch_latency": 4e-6, "issue_efficiency": 0.5})
    peaks = [load_hardware(name).device.peak("bf16") for name in ("dgx-h100", "dgx-a100")]
    assert ratio[0] == pytest.approx(np.log(peaks[0] / peaks[1]), abs=0.02)


def test_subset_prices_the_same_rows_alike(toy: KernelKind, profile: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv", 4e-6, 0.5, noise=0.1)
    subject = OneProfile(load_hardware(profile), str(profile))
    problem = read_problem(MeasuredTable(str(table), "gemm"), subject)
    mask = sample(problem, 31)
    assert mask.sum() == 31
    regimes, counts = np.unique(problem.regimes[mask], return_counts=True)
    assert set(regimes) == {"gemm_small", "gemm_middle", "gemm_large"}
    assert counts.min() >= 10
    part = problem.subset(mask)
    assert part.log_ratios({}) == pytest.approx(problem.log_ratios({})[mask])
    assert part.regimes.tolist() == problem.regimes[mask].tolist()


def test_kind_is_inferred_from_columns(toy: KernelKind, tmp_path: Path) -> None:
    table = write_table(tmp_path / "mine.csv", 4e-6, 0.5)
    assert infer_kind(str(table)) == "gemm"
    other = tmp_path / "other.csv"
    other.write_text("hardware,time_us\nH100_SXM,1\n")
    with pytest.raises(DataError, match="not the columns of any kind"):
        infer_kind(str(other))


def test_joined_tables_are_priced_as_each_is(
    toy: KernelKind, profile: Path, tmp_path: Path
) -> None:
    subject = OneProfile(load_hardware(profile), str(profile))
    files = [
        write_table(tmp_path / f"{efficiency}.csv", 4e-6, efficiency, noise=0.1)
        for efficiency in (0.5, 0.8)
    ]
    problems = [read_problem(MeasuredTable(str(file), "gemm"), subject) for file in files]
    joined = join(problems)
    assert joined.calibration == "gemm"
    constants = {"launch_latency": 5e-6}
    parts = [problem.log_ratios(constants) for problem in problems]
    assert joined.log_ratios(constants).tolist() == np.concatenate(parts).tolist()
    assert len(joined) == len(problems[0]) + len(problems[1])
    assert joined.alike == problems[0].alike + problems[1].alike


def row(hardware: str) -> MeasuredRow:
    return MeasuredRow({"hardware": hardware}, "table.csv", 2)


@pytest.mark.parametrize("name", ["dgx-h100", "H100_SXM", "NVIDIA H100 SXM", "H100_SXM|H200"])
def test_rows_of_a_profile_s_device_are_priced_as_the_profile(name: str, profile: Path) -> None:
    subject = OneProfile(load_hardware(profile), str(profile))
    chosen = subject.chosen(row(name))
    assert chosen is not None
    assert chosen.text("hardware") == str(profile)


def test_other_devices_count_on_demand_with_their_own_facts(profile: Path) -> None:
    mine, a100 = load_hardware(profile), load_hardware("dgx-a100")
    assert OneProfile(mine, str(profile)).chosen(row("A100_SXM")) is None
    every = OneProfile(mine, str(profile), all_rows=True)
    assert every.chosen(row("A100_SXM")) == row("A100_SXM")
    applied = every.applied(a100, "gemm")
    assert applied.device == a100.device
    assert applied.calibration["gemm"] == mine.calibration["gemm"]
    assert applied.calibration["moe"] == a100.calibration["moe"]


def test_a_family_takes_the_rows_of_its_systems() -> None:
    subject = WholeFamily(load_family("nvidia-hopper"))
    for name in ("H100_SXM", "H200", "hgx-h800"):
        assert subject.chosen(row(name)) == row(name)
    for name in ("A100_SXM", "nobody's card", ""):
        assert subject.chosen(row(name)) is None


def test_a_device_gets_the_family_s_values_but_keeps_its_own() -> None:
    family = load_family("amd-cdna3").with_constants("gemm", {"launch_latency": 5e-6})
    family = family.with_constants("gemm", {"issue_efficiency": 0.4})
    subject = WholeFamily(family)
    mi308x = load_hardware("mi308x-server")
    applied = subject.applied(mi308x, "gemm")
    assert applied.calibrated("gemm", "launch_latency") == 5e-6
    own = mi308x.calibrated("gemm", "issue_efficiency")
    assert applied.calibrated("gemm", "issue_efficiency") == own
    assert "issue_efficiency" in subject.own(mi308x, "gemm")
    mi300x = subject.applied(load_hardware("mi300x-server"), "gemm")
    assert mi300x.calibrated("gemm", "issue_efficiency") == 0.4


def test_heads_say_what_was_calibrated_and_to_what(profile: Path) -> None:
    table = MeasuredTable("a.csv", "gemm", "m > 1")
    one = OneProfile(load_hardware(profile), str(profile)).head([table])
    assert one == {
        "kind": "gemm",
        "profile": "my-h100",
        "file": "a.csv",
        "where": "m > 1",
        "all_rows": False,
    }
    family = replace(load_family("nvidia-hopper"), systems=("dgx-h100",))
    assert WholeFamily(family).head([table, table]) == {
        "family": "nvidia-hopper",
        "systems": ["dgx-h100"],
        "tables": [{"file": "a.csv", "kind": "gemm", "where": "m > 1"}] * 2,
    }
