"""Rows that constants are fitted to: chosen, priced with other constants, joined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.kind import KernelKind
from perfmodel.measured.problem import infer_kind, join, read_problem, sample
from perfmodel.measured.subject import MeasuredTable, OneProfile
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
