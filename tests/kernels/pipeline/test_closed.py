"""Closed forms against events, wherever they say that they hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.pipelines import SCHEDULES
from perfmodel.kernels.pipeline.actions import KINDS
from perfmodel.kernels.pipeline.closed import Ends, ends_wait, one_f_one_b_makespan
from perfmodel.kernels.pipeline.events import Durations, peaks, plain_durations, run_order
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


def published_bubble(schedule, p, chunks, m, f, i, w, together):
    """Bubble of equal stages as docs/pipelines.md has it, with sources; None where none holds."""
    b, split = i + w, f == i and w <= f
    wait, full = p - 1, m >= 2 * p - 1
    every_time = wait * (f + b), True
    zero = wait * max(f, i, f + i - w), m >= p
    found, holds = {
        "gpipe": every_time,
        "1f1b": every_time,
        "eager_1f1b": every_time,
        "interleaved": (wait * (f + b), m >= p),
        "looped_bfs": (wait * (f + b), m >= p),
        "interleaved_zero_bubble": zero,
        "zb_h1": zero,
        "zb_h2": (wait * max(f, f + i - 2 * w), full and w <= min(f, i)),
        "zb_v": (wait * f, full and f == i == w),
        "dualpipe": ((p // 2 - 1) * (together + b - 3 * w), split),
        "dualpipe_v": (wait * (together + b - 3 * w), split),
        "hanayo": (2 * wait * b, chunks == 2 and m == p and b >= 2 * f),
    }.get(schedule, (None, False))
    return found if holds else None


def published_most(schedule, p, chunks, m, group):
    """What the fullest rank holds, stages' micro-batches, as docs/pipelines.md has it; or None."""
    passes, full, whole = chunks * m, m >= 2 * p - 1, m % group == 0
    found, holds = {
        "gpipe": (passes, True),
        "looped_bfs": (passes, True),
        "1f1b": (min(m, p), True),
        "zb_h1": (min(m, p), True),
        "eager_1f1b": (min(m, 2 * p - 1), True),
        "zb_h2": (min(m, 2 * p - 1), True),
        "interleaved": (min(passes, (chunks - 1) * group + 2 * p - 1), whole),
        "interleaved_zero_bubble": (min(passes, (chunks - 1) * group + p), whole),
        "zb_v": (2 * p, full),
        "v_half": (2 * ((p + 2) // 2), full),
        "v_min": (2 * ((p + 4) // 3), full),
        "dualpipe": (p + 1, True),
        "dualpipe_v": (2 * p + 1, True),
    }.get(schedule, (None, False))
    return found if holds else None


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
    held = 0
    for chunks, ranks, micro_batches, pipeline in pipelines(schedule):
        stages = pipeline.order.rank_of.size
        for f, i, w in itertools.product(TIMES, TIMES, TIMES):
            for together in {max(f, i + w), f + i + w}:
                counts = schedule, ranks, chunks or 1, micro_batches
                own = published_bubble(*counts, f, i, w, together)
                if own is None:
                    continue
                held += 1
                times = plain_durations(*(np.full(stages, time) for time in (f, i, w)))
                times = times._replace(together=np.full((stages, stages), together))
                timeline = run_order(pipeline.order, pipeline.program, times)
                assert timeline.idle.max() == pytest.approx(own, abs=1e-9)
    assert (held > 20) == (schedule not in WITHOUT)


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
        assert max(waits) == (ranks - 1) * max(0.0, i - f, f + i - 2 * w)
        if w <= f and 2 * w <= f + i:
            assert max(waits) == (ranks - 1) * (f + i - 2 * w)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_the_fullest_rank_holds(schedule):
    for chunks, ranks, micro_batches, pipeline in pipelines(schedule):
        group = usual_group(ranks, micro_batches) or 1
        own = published_most(schedule, ranks, chunks or 1, micro_batches, group)
        one = np.ones(pipeline.order.rank_of.size)
        if own is not None:
            assert peaks(pipeline.order, 0 * one, one).max() == own


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
