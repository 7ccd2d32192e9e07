"""Passes on their stages: none overlap, and they are as long as their sums say."""

from __future__ import annotations

import itertools
import math

import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.report.plots import pipeline
from perfmodel.report.plots.marks import Bars

WHERE = "pp == 2 and recompute == 'full' and hardware == 'dgx-h100'"


@pytest.fixture
def plot(training):
    return perfmodel.plot(training, "pipeline", where=WHERE)


def bars(plot) -> dict[str, list[tuple[float, float, float]]]:
    found: dict[str, list[tuple[float, float, float]]] = {}
    for mark in plot.panels[0].marks:
        assert isinstance(mark, Bars)
        found.setdefault(mark.label, []).extend(zip(mark.at, mark.start, mark.length, strict=True))
    return found


def test_passes_of_a_stage_do_not_overlap_and_end_with_the_pipeline(plot):
    found = bars(plot)
    assert set(found) == {"bubble and sends", "forward", "backward", "recompute"}
    every = sorted(it for name, them in found.items() if name != "bubble and sends" for it in them)
    for (stage, start, length), (later, begin, _) in itertools.pairwise(every):
        assert stage != later or start + length <= begin * (1 + 1e-12)
    makespan = plot.facts["makespan"]
    assert max(start + length for _, start, length in every) <= makespan * (1 + 1e-12)
    assert len(found["forward"]) == len(found["backward"]) == plot.facts["passes"] / 2


def test_a_recomputed_forward_takes_what_the_step_says(training, plot):
    """The slowest stage's sums are components of the step."""
    (row,) = perfmodel.best(training, 1, where=WHERE)
    again = [math.fsum(it[2] for it in bars(plot)["recompute"] if it[0] == at) for at in (0, 1)]
    assert max(again) == pytest.approx(row["recompute_time"], rel=1e-5)
    assert plot.facts["makespan"] <= row["step_time"] * (1 + 1e-6)


def test_more_passes_than_can_be_read_are_refused(training, monkeypatch):
    monkeypatch.setattr(pipeline, "MOST", 3)
    with pytest.raises(DataError, match="passes could not be read; at most 3"):
        perfmodel.plot(training, "pipeline", where=WHERE)


def test_numbers_stand_in_passes_where_they_have_room():
    assert pipeline._numbers([0, 1], pipeline.np.array([20.0, 20.0]), 10.0) == ["1", "2"]
    assert pipeline._numbers([0, 1], pipeline.np.array([20.0, 2.0]), 10.0) == []
    assert pipeline._numbers([0, 1], pipeline.np.array([20.0, 20.0]), 2.0) == []
