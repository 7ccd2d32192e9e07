"""A step's passes as columns: every stage is filled to the end of the step."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.report.plots import pipeline
from perfmodel.report.plots.marks import Bars
from perfmodel.report.plots.pipeline import NO_PASS, pipeline_picture
from perfmodel.training.stages import PASSES
from tests.training.step.test_timeline import TIMES, timeline_of  # noqa: F401


@pytest.mark.parametrize("case", ["pipeline", "gpipe", "zero bubble", "two copies", "sharded"])
def test_pictures_fill_every_stage_to_the_end(timeline_of, case):  # noqa: F811
    step = timeline_of(case)
    picture = pipeline_picture(step)
    sizes = {len(picture[name]) for name in ("stage", "start", "duration", "kind", "chunk")}
    assert sizes == {len(picture["micro_batch"])}
    assert picture["end"] == step.results["step_time"]
    assert (picture["stages"], picture["slowest"]) == (step.count, step.critical)
    kinds = np.array(picture["kind"])
    for stage in range(step.count):
        own = np.flatnonzero(picture["stage"] == stage)
        own = own[np.argsort(picture["start"][own], kind="stable")]
        start, duration = picture["start"][own], picture["duration"][own]
        assert duration.sum() == pytest.approx(picture["end"], rel=TIMES)
        gaps = start[1:] - (start + duration)[:-1]
        np.testing.assert_allclose(gaps, 0.0, atol=TIMES * picture["end"])
        passes = np.isin(kinds[own], list(PASSES.values()))
        assert (picture["micro_batch"][own][~passes] == NO_PASS).all()
        bubble = duration[kinds[own] == "bubble"].sum()
        assert bubble == pytest.approx(step.totals(stage)["pipeline_bubble"], abs=TIMES * step.end)


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
    monkeypatch.setattr(pipeline, "MOST_DRAWN", 3)
    with pytest.raises(DataError, match="passes could not be read; at most 3"):
        perfmodel.plot(training, "pipeline", where=WHERE)


def test_numbers_stand_in_passes_where_they_have_room():
    assert pipeline._numbers([0, 1], pipeline.np.array([20.0, 20.0]), 10.0) == ["1", "2"]
    assert pipeline._numbers([0, 1], pipeline.np.array([20.0, 2.0]), 10.0) == []
    assert pipeline._numbers([0, 1], pipeline.np.array([20.0, 20.0]), 2.0) == []
