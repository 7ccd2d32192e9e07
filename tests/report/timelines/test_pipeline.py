"""A step's passes as columns: every stage is filled to the end of the step."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.report.timelines.pipeline import NO_PASS, pipeline_picture
from perfmodel.report.timelines.step import PASSES
from tests.report.timelines.test_step import TIMES, timeline_of  # noqa: F401


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
