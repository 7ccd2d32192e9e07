"""How many measured runs lie within their bands: the script that derives the width of a step."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from perfmodel.measured.compare import compare_file


@pytest.fixture
def coverage(script):
    return script.load("accuracy.uncertainty_coverage")


def test_the_step_width_covers_the_share_that_it_is_derived_for(coverage):
    rng = np.random.default_rng(0)
    kernels = rng.uniform(0.05, 0.1, 1000)
    log_ratios = rng.normal(0.0, 1.0, 1000) * np.hypot(kernels, 0.15) / 1.2816
    step = coverage.step_for(log_ratios, kernels)
    inside = np.abs(log_ratios) <= np.hypot(kernels, step)
    assert inside.mean() == pytest.approx(0.8, abs=0.002)
    assert step == pytest.approx(0.15, rel=0.1)  # 1.2816: 90th percentile of a normal


def test_kernels_that_explain_everything_need_no_step_width(coverage):
    assert coverage.step_for(np.full(10, 0.05), np.full(10, 0.1)) == 0.0


def test_compared_runs_carry_their_band(training_runs, tmp_path, coverage):
    path = tmp_path / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(training_runs[0]))
        writer.writeheader()
        writer.writerows(row for row in training_runs if row["family"] == "Megatron-LM")
    comparison = compare_file("training", path)
    scored = [row for row in comparison.rows if row.scored]
    for row in scored:
        details = row.outcome.details
        assert details["step_time_low"] < row.outcome.projected < details["step_time_high"]
    found = coverage.coverage(comparison.rows)
    assert found["count"] == len(scored) > 20
    parts = ("inside", "faster_than_low", "slower_than_high")
    assert sum(found[name] for name in parts) == pytest.approx(1.0)
    assert found["inside"] > 0.5
    comparison.write_rows(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert {"projected_step_time_low", "projected_step_time_high"} <= set(
            next(csv.reader(file))
        )
