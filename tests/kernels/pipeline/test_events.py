"""Events of pipelines: by hand, and what holds of all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, KINDS
from perfmodel.kernels.pipeline.events import (
    Durations,
    fullest,
    held_over_time,
    peaks,
    plain_durations,
    run_order,
)
from perfmodel.strategy.pipelines import named_pipeline
from tests.kernels.pipeline.cases import random_durations, random_pipeline


def durations(forward, backward, send=0.0, sender=0.0, receiver=0.0, together=None):
    stages = len(forward)
    work = np.zeros((KINDS, stages))
    work[FORWARD], work[BACKWARD] = forward, backward
    pairs = np.empty((0, 0)) if together is None else np.full((stages, stages), together)
    return Durations(work, np.full((KINDS, stages), send), pairs, sender, receiver)


def run(schedule, ranks, micro_batches, *arguments, **named):
    pipeline = named_pipeline(schedule, ranks, micro_batches)
    return run_order(pipeline.order, pipeline.program, durations(*arguments, **named))


def test_uneven_1f1b_by_hand():
    """Two stages, two micro-batches: F 1 and 3, B 2 and 4."""
    timeline = run("1f1b", 2, 2, [1.0, 3.0], [2.0, 4.0])
    # rank 0: 0F0 0F1 0B0 0B1; rank 1: 1F0 1B0 1F1 1B1
    assert timeline.start.tolist() == [0, 1, 8, 15, 1, 4, 8, 11]
    assert timeline.end.tolist() == [1, 2, 10, 17, 4, 8, 11, 15]
    assert timeline.makespan == 17
    assert timeline.busy.tolist() == [6, 14]
    assert timeline.idle.tolist() == [11, 3]


def test_a_hidden_send_is_waited_for_but_keeps_nobody():
    timeline = run("1f1b", 2, 1, [1.0, 1.0], [1.0, 1.0], send=0.5)
    # rank 0: 0F0 0B0; rank 1: 1F0 1B0
    assert timeline.start.tolist() == [0, 4.0, 1.5, 2.5]
    assert timeline.makespan == 5.0
    assert timeline.sending.tolist() == [0, 0]


def test_who_waits_for_a_send_works_on_later():
    # rank 0: 0F0 0F1 0B0 0B1. Kept after its forward passes, it starts the second one later.
    sender = run("1f1b", 2, 2, [1.0, 1.0], [1.0, 1.0], send=0.5, sender=1.0)
    assert sender.start[:2].tolist() == [0, 1.5]
    assert sender.sending.tolist() == [1.0, 1.0]
    # The receiver begins to receive once both are ready.
    receiver = run("1f1b", 2, 2, [1.0, 1.0], [1.0, 1.0], send=0.5, receiver=1.0)
    assert receiver.start[:2].tolist() == [0, 1]
    # rank 1: 1F0 1B0 1F1 1B1; 1F1 was made at 2, is received when 1B0 is over.
    assert receiver.start[4:].tolist() == [1.5, 2.5, 4.0, 5.0]


def test_a_pair_takes_the_time_of_the_pair():
    pipeline = named_pipeline("dualpipe_v", 1, 2)
    alone = run_order(pipeline.order, pipeline.program, durations([1.0, 1.0], [2.0, 2.0]))
    paired = run_order(
        pipeline.order, pipeline.program, durations([1.0, 1.0], [2.0, 2.0], together=2.0)
    )
    pairs = int(pipeline.order.paired.sum())
    work = alone.busy[0]
    # Input and weight gradients that run apart take nothing here.
    assert paired.makespan == alone.makespan - pairs * 1.0
    assert paired.busy[0] == work - pairs * 1.0
    first = int(np.flatnonzero(pipeline.order.paired)[0])
    assert paired.start[first] == paired.start[first + 1]
    assert paired.end[first] == paired.end[first + 1]


def test_work_is_conserved_and_waiting_is_the_rest():
    random = np.random.default_rng(8)
    for _ in range(60):
        pipeline = random_pipeline(random)
        order = pipeline.order
        given_times = random_durations(random, order.rank_of.size)
        given_times = given_times._replace(together=np.empty((0, 0)))
        timeline = run_order(order, pipeline.program, given_times)
        for rank in range(order.first.size - 1):
            own = slice(order.first[rank], order.first[rank + 1])
            work = given_times.work[order.kind[own], order.stage[own]].sum()
            assert timeline.busy[rank] == pytest.approx(work)
            assert (np.diff(timeline.start[own]) >= 0).all()
            assert (timeline.start[own][1:] >= timeline.end[own][:-1]).all()
            parts = timeline.busy[rank] + timeline.sending[rank] + timeline.idle[rank]
            assert parts >= timeline.makespan - 1e-9
        assert timeline.makespan == timeline.end.max()


@given(st.integers(0, 10**6))
def test_nothing_ends_earlier_where_anything_takes_longer(seed):
    random = np.random.default_rng(seed)
    pipeline = random_pipeline(random)
    stages = pipeline.order.rank_of.size
    before = random_durations(random, stages)
    longer = random.uniform(0.0, 1.0, before.work.shape) * random.integers(0, 2, before.work.shape)
    after = before._replace(
        work=before.work + longer, send=before.send * random.uniform(1.0, 2.0, before.send.shape)
    )
    first = run_order(pipeline.order, pipeline.program, before)
    second = run_order(pipeline.order, pipeline.program, after)
    assert (second.end >= first.end * (1 - 1e-12)).all()


def test_backward_passes_take_as_long_as_their_parts():
    times = plain_durations(np.array([1.0]), np.array([2.0]), np.array([3.0]))
    assert times.work[:, 0].tolist() == [1, 5, 2, 3]
    assert not times.send.any()


def test_weights_hold_what_the_input_gradient_left():
    """ZB-H1 on two ranks: F F I W F I W I W and F I F I W F I W W, of three micro-batches."""
    order = named_pipeline("zb_h1", 2, 3).order
    until_input, until_weight = np.array([10.0, 10.0]), np.array([1.0, 1.0])
    assert peaks(order, until_input, until_weight).tolist() == [22.0, 12.0]


def test_uneven_stages_count_with_their_own_bytes():
    order = named_pipeline("1f1b", 3, 8).order
    kept = np.array([1.0, 2.0, 4.0])
    assert peaks(order, kept, 0 * kept).tolist() == [3.0, 4.0, 4.0]


def test_over_time_it_begins_and_ends_with_nothing_and_peaks_alike():
    random = np.random.default_rng(1)
    for _ in range(30):
        pipeline = random_pipeline(random)
        order = pipeline.order
        stages = order.rank_of.size
        until_input, until_weight = random.uniform(1, 9, stages), random.uniform(1, 9, stages)
        timeline = run_order(order, pipeline.program, random_durations(random, stages))
        times, held = held_over_time(order, timeline, until_input, until_weight)
        most = peaks(order, until_input, until_weight)
        for rank in range(order.first.size - 1):
            own = slice(order.first[rank], order.first[rank + 1])
            assert abs(held[own][-1]) < 1e-9
            assert held[own].max() == most[rank]
            assert times[own].min() >= 0


def test_the_fullest_moments_tell_every_peak():
    random = np.random.default_rng(4)
    for _ in range(60):
        order = random_pipeline(random).order
        stages = order.rank_of.size
        class_of, kept = random.integers(0, 3, stages), random.uniform(1, 9, (5, 3))
        held, first = fullest(order.first, order.kind, class_of[order.stage], 3)
        for size in kept:
            own = [(held[start:end] @ size).max() for start, end in itertools.pairwise(first)]
            np.testing.assert_allclose(own, peaks(order, np.zeros(stages), size[class_of]))


def test_steps_come_when_actions_do():
    pipeline = named_pipeline("1f1b", 1, 2)
    one = np.ones(1)
    timeline = run_order(pipeline.order, pipeline.program, plain_durations(one, one, one))
    times, held = held_over_time(pipeline.order, timeline, 5 * one, one)
    assert times.tolist() == [0, 3, 3, 6]
    assert held.tolist() == [6, 0, 6, 0]
