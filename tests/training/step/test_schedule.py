"""What passes consist of: the same in sum, however finely it is told."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.kernels.step.scheduled import work_of_cases
from perfmodel.kernels.variables import TIME_COMPONENTS
from perfmodel.software.framework import load_framework
from perfmodel.training.scheduled import chunks_of
from perfmodel.training.step.schedule import (
    COMPONENT,
    DEPTHS,
    WORDS,
    closed_step,
    gaps_of,
    pass_pieces,
    passes_of,
    schedule_of,
)
from perfmodel.training.step.workload import model_chunks, order_of
from tests.training.step.cases import CASES


@pytest.fixture(scope="module")
def blocks(small_moe, grid_of, h100):
    grid = grid_of(small_moe, tensor_parallel=2, data_parallel=4, expert_parallel=4,
                   recompute="selective")  # fmt: skip
    software = load_framework("megatron")
    (chunk,) = model_chunks(small_moe, grid, h100, software, order_of(grid), "even")
    return chunk


def sums(pieces):
    found = defaultdict(float)
    for piece in pieces:
        found[piece.component, "shown"] += piece.duration
        found[piece.component, "hidden"] += piece.hidden
    return found


def test_every_component_has_a_word():
    assert set(WORDS) == set(TIME_COMPONENTS)


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD, INPUT, WEIGHT])
def test_depths_agree(blocks, kind):
    coarse, *finer = (pass_pieces(blocks, kind, depth) for depth in DEPTHS)
    wanted = sums(coarse)
    assert len({piece.component for piece in coarse}) == len(coarse)
    for pieces in finer:
        assert len(pieces) > len(coarse)
        for key, value in sums(pieces).items():
            assert value == pytest.approx(wanted[key], rel=1e-12), key


def test_a_backward_pass_is_both_of_its_parts(blocks):
    whole = sums(pass_pieces(blocks, BACKWARD))
    parts = sums([*pass_pieces(blocks, INPUT), *pass_pieces(blocks, WEIGHT)])
    for key, value in whole.items():
        assert parts[key] == pytest.approx(value, rel=1e-12), key
    weights = {piece.component for piece in pass_pieces(blocks, WEIGHT)}
    assert weights <= {COMPONENT["backward_time"], COMPONENT["host_time"]}


def test_layers_go_forward_and_back_in_order(blocks):
    names = [piece.name for piece in pass_pieces(blocks, FORWARD, "layers")]
    first = [name for name in names if name.endswith(" forward")]
    assert first[0].startswith("embedding")
    assert first[1] == "layer 0 forward"
    assert first[-1].startswith("output")
    back = [piece.name for piece in pass_pieces(blocks, BACKWARD, "layers")]
    assert back[0].startswith("output")


def test_what_hides_begins_within_its_pass(blocks):
    for kind in (FORWARD, BACKWARD):
        pieces = pass_pieces(blocks, kind, "operations")
        time = sum(piece.duration for piece in pieces)
        assert all(0.0 <= piece.beside <= time for piece in pieces)


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
