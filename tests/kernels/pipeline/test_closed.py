"""Closed forms against events, wherever they say that they hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.pipelines import SCHEDULES
from perfmodel.kernels.pipeline.actions import KINDS
from perfmodel.kernels.pipeline.closed import (
    Ends,
    ends_wait,
    equal_bubble,
    gpipe_time,
    last_is_slowest,
    most_held,
    one_f_one_b_makespan,
    slowest_time,
    zb_h2_wait,
)
from perfmodel.kernels.pipeline.events import Durations, plain_durations, run_order
from perfmodel.kernels.pipeline.held import peaks
from perfmodel.strategy.pipelines import named_pipeline, usual_group
from perfmodel.training.scheduled import run_cases

TIMES = (1.0, 2.0, 3.0, 5.0)
CHUNKS = {
    "interleaved": (1, 2, 3),
    "interleaved_zero_bubble": (1, 3),
    "looped_bfs": (2,),
    "hanayo": (2, 4),
}
WITHOUT = ("v_half", "v_min")  # their bubbles are published as approximations


def pipelines(schedule):
    """Yield chunks, ranks, micro-batches and pipeline."""
    for chunks, ranks, micro_batches in itertools.product(
        CHUNKS.get(schedule, (None,)), (1, 2, 3, 4, 6), (2, 4, 7, 12, 18)
    ):
        try:
            yield (
                chunks,
                ranks,
                micro_batches,
                named_pipeline(schedule, ranks, micro_batches, chunks),
            )
        except StrategyError:
            continue


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bubbles_of_equal_stages(schedule):
    number, held = SCHEDULES.index(schedule), 0
    for chunks, ranks, micro_batches, pipeline in pipelines(schedule):
        stages = pipeline.order.rank_of.size
        for f, i, w in itertools.product(TIMES, TIMES, TIMES):
            for together in {max(f, i + w), f + i + w}:
                own = equal_bubble(number, ranks, chunks or 1, micro_batches, f, i, w, together)
                if np.isnan(own):
                    continue
                held += 1
                times = plain_durations(*(np.full(stages, time) for time in (f, i, w)))
                times = times._replace(together=np.full((stages, stages), together))
                timeline = run_order(pipeline.order, pipeline.program, times)
                assert timeline.idle.max() == pytest.approx(own, abs=1e-9)
    assert (held > 20) == (schedule not in WITHOUT)


def test_published_bubbles_where_papers_say_them():
    """F = I = W = 1, four ranks: 9 of 1F1B, 3 of ZB-H1; F&B = 3: 2 of DualPipe's five."""
    one = (1.0, 1.0, 1.0, 3.0)
    assert equal_bubble(SCHEDULES.index("1f1b"), 4, 1, 8, *one) == 9.0
    assert equal_bubble(SCHEDULES.index("zb_h1"), 4, 1, 8, *one) == 3.0
    assert equal_bubble(SCHEDULES.index("dualpipe"), 4, 1, 8, *one) == 2.0
    assert zb_h2_wait(4, 1.0, 1.0, 1.0) == 0.0


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_ranks_of_zb_h2_wait_as_published(ranks):
    """Qi et al. 2023, table 2: (p - 1) (F + B - 2 W), B the gradients of the input."""
    pipeline = named_pipeline("zb_h2", ranks, 2 * ranks + 3)
    order = pipeline.order
    for f, i, w in itertools.product(TIMES, TIMES, TIMES):
        times = plain_durations(*(np.full(ranks, time) for time in (f, i, w)))
        timeline = run_order(order, pipeline.program, times)
        waits = [
            timeline.end[order.first[rank + 1] - 1]
            - timeline.start[order.first[rank]]
            - timeline.busy[rank]
            for rank in range(ranks)
        ]
        assert max(waits) == zb_h2_wait(ranks, f, i, w)
        if w <= f and 2 * w <= f + i:
            assert max(waits) == (ranks - 1) * (f + i - 2 * w)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_the_fullest_rank_holds(schedule):
    for chunks, ranks, micro_batches, pipeline in pipelines(schedule):
        group = usual_group(ranks, micro_batches) or 1
        number = SCHEDULES.index(schedule)
        own = most_held(number, ranks, chunks or 1, micro_batches, group)
        one = np.ones(pipeline.order.rank_of.size)
        if own >= 0:
            assert peaks(pipeline.order, 0 * one, one).max() == own


@pytest.mark.parametrize("schedule", ["1f1b", "eager_1f1b", "interleaved", "looped_bfs"])
def test_a_last_rank_that_is_slowest_sets_the_pace(schedule):
    random = np.random.default_rng(5)
    for _ in range(200):
        ranks = int(random.integers(1, 7))
        chunks = int(random.integers(1, 4)) if schedule in CHUNKS else 1
        micro_batches = ranks * int(random.integers(1, 6))
        forward, backward = random.uniform(0.5, 3.0, (2, ranks))
        forward[-1], backward[-1] = forward.max(), backward.max()
        assert last_is_slowest(forward, backward)
        pipeline = named_pipeline(schedule, ranks, micro_batches, chunks)
        times = plain_durations(
            np.tile(forward, chunks), np.tile(backward, chunks), np.zeros(ranks * chunks)
        )
        makespan = run_order(pipeline.order, pipeline.program, times).makespan
        assert slowest_time(forward, backward, chunks, micro_batches) == pytest.approx(makespan)


def test_another_rank_that_is_slowest_does_not():
    forward, backward = np.array([1.0, 3.0, 1.0]), np.array([2.0, 6.0, 2.0])
    assert not last_is_slowest(forward, backward)
    pipeline = named_pipeline("1f1b", 3, 8)
    times = plain_durations(forward, backward, np.zeros(3))
    makespan = run_order(pipeline.order, pipeline.program, times).makespan
    assert slowest_time(forward, backward, 1, 8) == pytest.approx(78.0)
    assert makespan < 78.0


def test_gpipe_with_any_stages_and_sends():
    random = np.random.default_rng(6)
    for _ in range(200):
        stages, micro_batches = int(random.integers(1, 8)), int(random.integers(1, 20))
        work = random.uniform(0.1, 2.0, (KINDS, stages))
        send = random.uniform(0.0, 1.0, (KINDS, stages))
        pipeline = named_pipeline("gpipe", stages, micro_batches)
        durations = Durations(work, send, np.empty((0, 0)), 0.0, 0.0)
        makespan = run_order(pipeline.order, pipeline.program, durations).makespan
        own = gpipe_time(*work[:2], *send[:2], micro_batches)
        assert own == pytest.approx(makespan)


def test_1f1b_of_any_stages_and_sends():
    """With sends that keep their sender, which lengthen all passes but the outermost."""
    random = np.random.default_rng(7)
    for _ in range(600):
        stages, micro_batches = int(random.integers(1, 9)), int(random.integers(1, 25))
        work = random.uniform(0.1, 2.0, (KINDS, stages)) ** random.integers(1, 5)
        send = random.uniform(0.0, 1.0, (KINDS, stages)) * random.integers(0, 2)
        pipeline = named_pipeline("1f1b", stages, micro_batches)
        durations = Durations(work, send, np.empty((0, 0)), 1.0, 0.0)
        makespan = run_order(pipeline.order, pipeline.program, durations).makespan
        forward, backward = work[:2].copy()
        forward[:-1] += send[0, :-1]
        backward[1:] += send[1, 1:]
        own = one_f_one_b_makespan(forward, backward, micro_batches)
        assert own == pytest.approx(makespan, rel=1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_first_and_last_chunks_of_any_length(schedule):
    """Whichever takes longer, in either pass, by little or much."""
    random = np.random.default_rng(8)
    cases = 64
    for _ in range(60):
        ranks, chunks = int(random.integers(2, 10)), 1
        micro_batches = int(random.integers(1, 30))
        if schedule == "interleaved":
            chunks, micro_batches = int(random.integers(2, 5)), ranks * random.integers(1, 6)
        ends = random.uniform(0.05, 2.0, (6, cases)) ** random.integers(1, 7, cases)
        ends[2:] *= 10.0 ** random.uniform(-2.0, 1.0, cases)
        ends[2:] *= random.random((4, cases)) < 0.8
        work = np.zeros((KINDS, ranks * chunks, cases))
        work[:2] += ends[:2, None]
        work[:2, 0] += ends[2:4]
        work[:2, -1] += ends[4:]
        pipeline = named_pipeline(schedule, ranks, int(micro_batches), chunks)
        stages, none = np.arange(ranks * chunks), np.zeros(cases)
        run = run_cases(pipeline, work, stages, none, 0.0, False)[0][0]
        slowest = work[:2].sum(axis=0).reshape(chunks, ranks, cases).sum(axis=0).max(axis=0)
        for case in range(cases):
            own = ends_wait(
                schedule == "gpipe", ranks, chunks, micro_batches, Ends(*ends[:, case].tolist())
            )
            whole = own + micro_batches * slowest[case]
            assert whole == pytest.approx(run[case], rel=1e-12)
