"""What ranks hold."""

from __future__ import annotations

import itertools

import numpy as np

from perfmodel.kernels.pipeline.events import plain_durations, run_order
from perfmodel.kernels.pipeline.held import fullest, held_over_time, peaks
from perfmodel.strategy.pipelines import named_pipeline
from tests.kernels.pipeline.cases import random_durations, random_pipeline


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
