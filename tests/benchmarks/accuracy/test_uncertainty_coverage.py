"""How many measured runs lie within their bands: the script that derives the width of a step."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from perfmodel.measured.compare import compare_file
from perfmodel.measured.rows import ComparedRow, Outcome


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


def test_families_of_equal_weight_have_an_equal_say(coverage):
    # Ten runs of one family, all exact; one run of another, off by 30 %.
    log_ratios, kernels = np.array([0.0] * 10 + [0.3]), np.zeros(11)
    assert coverage.step_for(log_ratios, kernels) == 0.0
    weights = np.array([0.1] * 10 + [1.0])
    assert coverage.step_for(log_ratios, kernels, weights) == pytest.approx(0.3)


def compared_run(family, projected):
    details = {"profile": "dgx-h100", "software": "megatron"}
    details |= {"step_time_high": projected, "step_time_low": projected}
    outcome = Outcome(measured=1.0, projected=projected, assumed=(), notes=(), details=details)
    return ComparedRow({"family": family, "architecture": "dense"}, 2, outcome)


def test_a_family_left_out_is_judged_by_the_others(coverage):
    # One family is 10 % off, the other 20 %: only the first lies inside the other's band.
    rows = [compared_run("near", 1.1), compared_run("far", 1.2)]
    found = coverage.left_out(rows)
    assert found["near"]["inside"] == 1.0
    assert found["near"]["step_dense"] == pytest.approx(np.log(1.2))
    assert found["far"]["inside"] == 0.0


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
