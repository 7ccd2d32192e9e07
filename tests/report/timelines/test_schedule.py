"""Passes run one by one within the time that the closing pass has for them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.step.scheduled import work_of_cases
from perfmodel.report.timelines.schedule import closed_step, gaps_of, passes_of, schedule_of
from perfmodel.software.framework import load_framework
from perfmodel.training.scheduled import chunks_of
from tests.workloads.export.cases import CASES

MEGATRON = load_framework("megatron")
PIPELINES = [
    *("pipeline", "interleaved", "zero bubble", "zero bubble in a V", "both ways", "two copies"),
    *("eager", "looped", "waves", "half of the memory"),
]


@pytest.fixture(scope="module")
def closed_of(request, grid_of, h100):
    """Return a function that closes a case."""

    def make(case, **more):
        name, fields = CASES[case]
        model = request.getfixturevalue(name)
        return closed_step(model, grid_of(model, **fields | more), h100, MEGATRON)

    return make


@pytest.mark.parametrize("case", PIPELINES)
def test_passes_take_what_events_of_projections_take(closed_of, case):
    closed = closed_of(case)
    passes = passes_of(closed, "operations")
    order, share = closed.pipeline.order, closed.share
    parts = share.keys.parts[share.work.stage_layer_key]
    shards = closed.shards
    work, work_of = work_of_cases(
        order.rank_of, parts, shards.row, chunks_of(share.work, 0), shards
    )
    own = np.flatnonzero(order.rank_of != closed.critical)  # nothing is added on these
    for kind in np.unique(order.kind):
        wanted = work[kind, work_of[own], 0]
        np.testing.assert_allclose(passes.work[kind, own], wanted, rtol=1e-12)


@pytest.mark.parametrize("case", PIPELINES)
def test_the_slowest_stage_works_and_waits_as_projected(closed_of, case):
    closed = closed_of(case)
    passes = passes_of(closed, "passes")
    schedule = schedule_of(closed, passes)
    assert schedule.timeline.makespan <= schedule.until * (1.0 + 1e-12)
    gap = gaps_of(closed, passes, schedule, closed.critical)
    waits = float((gap.length - gap.sent - gap.received).sum())
    until = schedule.until
    assert waits == pytest.approx(closed.results["pipeline_bubble"], abs=1e-9 * until)
    assert (gap.sent + gap.received <= gap.length * (1.0 + 1e-12)).all()


def test_sends_beside_passes_never_make_a_pipeline_longer_than_projected(closed_of):
    """Where a way through the passes meets more of them than the closed form counts."""
    closed = closed_of("interleaved")
    passes = passes_of(closed, "passes")
    slow = passes._replace(send=100.0 * passes.send)  # its closed form knows nothing of
    schedule = schedule_of(closed, slow)
    assert 0.0 <= schedule.drawn_sends < 1.0
    assert schedule.drawn_work == 1.0
    assert schedule.timeline.makespan <= schedule.until * (1.0 + 1e-12)


def test_passes_longer_than_projected_are_drawn_shorter_but_on_the_slowest_stage(closed_of):
    closed = closed_of("pipeline")
    passes = passes_of(closed, "passes")
    others = closed.pipeline.order.rank_of != closed.critical
    work = passes.work * np.where(others, 1.5, 1.0)
    schedule = schedule_of(closed, passes._replace(work=work))
    assert schedule.drawn_work < 1.0
    assert schedule.timeline.makespan <= schedule.until * (1.0 + 1e-12)


def test_a_lone_stage_does_what_its_schedule_would_not(closed_of):
    closed = closed_of("one device", pipeline_schedule="gpipe", micro_batches=3)
    assert closed.pipeline.order.kind.tolist() == [0, 1] * 3
