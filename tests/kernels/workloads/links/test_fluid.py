"""Flows over time: stages, arrivals and delays, worked by hand and by property."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.workloads.links.fluid import fluid_finish_times
from tests.kernels.workloads.links.flows import compressed, networks, use_of


def fluid(routes, capacity, size, stage=None, ready=(0.0,), after=(-1,), delay=None, **flows):
    """Finish times of flows and stages."""
    count = len(routes)
    return fluid_finish_times(
        np.array(size, dtype=float),
        np.zeros(count, dtype=np.int64) if stage is None else np.array(stage, dtype=np.int64),
        *compressed(routes),
        np.array(capacity, dtype=float),
        np.array(flows.get("cap", [math.inf] * count), dtype=float),
        np.array(flows.get("weight", [1.0] * count), dtype=float),
        np.array(ready, dtype=float),
        np.array(after, dtype=np.int64),
        np.zeros(len(ready)) if delay is None else np.array(delay, dtype=float),
    )


def test_two_flows_on_a_link_finish_by_processor_sharing():
    """20 B and 60 B at 10 B/s: 5 each until 4 s; the other 40 B take 4 s more."""
    finish, begin, over = fluid([[0], [0]], [10.0], [20.0, 60.0])
    np.testing.assert_allclose(finish, [4.0, 8.0])
    assert (begin[0], over[0]) == (0.0, 8.0)


def test_an_arrival_slows_the_first_down():
    """60 B at 10 B/s alone for 2 s, then 5 B/s beside 10 B until 4 s; 30 B left: 7 s."""
    finish, _, _ = fluid([[0], [0]], [10.0], [60.0, 10.0], [0, 1], ready=[0.0, 2.0], after=[-1, -1])
    np.testing.assert_allclose(finish, [7.0, 4.0])


def test_stages_wait_for_each_other_and_for_their_delay():
    """A step is over with its slowest flow; the next pays its delay first."""
    finish, begin, over = fluid(
        [[0], [1], [0]],
        [10.0, 5.0],
        [10.0, 20.0, 10.0],
        stage=[0, 0, 1],
        ready=[0.0, 0.0],
        after=[-1, 0],
        delay=[0.5, 0.25],
    )
    np.testing.assert_allclose(finish, [1.5, 4.5, 5.75])
    np.testing.assert_allclose(begin, [0.0, 4.5])
    np.testing.assert_allclose(over, [4.5, 5.75])


def test_empty_stages_and_empty_messages_take_their_delay_only():
    finish, _, over = fluid(
        [[0], []],
        [1.0],
        [0.0, 7.0],
        stage=[0, 2],
        ready=[1.0, 0.0, 9.0],
        after=[-1, 0, 1],
        delay=[2.0, 3.0, 0.5],
    )
    np.testing.assert_allclose(over, [3.0, 6.0, 9.5])
    np.testing.assert_allclose(finish, [3.0, 9.5])


def test_two_stages_may_follow_one():
    _, begin, over = fluid(
        [[0], [0], [1]], [1.0, 1.0], [2.0, 3.0, 1.0], [0, 1, 2], [0.0] * 3, [-1, 0, 0]
    )
    np.testing.assert_allclose(begin, [0.0, 2.0, 2.0])
    np.testing.assert_allclose(over, [2.0, 5.0, 3.0])


@given(networks(), st.integers(0, 99))
def test_fluid_lasts_as_long_as_its_bounds_at_least(network, seed):
    """No flow beats its own links, no link moves more than its capacity; all finish."""
    routes, capacity, cap, weight = network
    size = np.random.default_rng(seed).uniform(0.0, 50.0, len(routes))
    finish, _, over = fluid(routes, capacity, size, cap=cap, weight=weight)
    assert np.isfinite(finish).all()
    assert over[0] == finish.max()
    load = use_of(routes, capacity, size)
    assert over[0] >= (load / capacity).max() * (1 - 1e-9)
    for flow, route in enumerate(routes):
        assert finish[flow] >= size[flow] / min(cap[flow], capacity[route].min()) * (1 - 1e-9)
    faster, _, _ = fluid(routes, 2 * capacity, size, cap=2 * cap, weight=weight)
    np.testing.assert_allclose(faster, finish / 2, rtol=1e-7, atol=1e-12)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.1, 10.0)), min_size=1, max_size=9))
def test_processor_sharing_is_the_fluid_on_one_link(classes):
    times, weights = map(np.array, zip(*classes, strict=True))
    # Parekh & Gallager 1993: by the end of a class every other one has done what the same
    # share per weight has paid for.
    paid = times / weights
    found = [np.minimum(times, weights * own).sum() for own in paid]
    finish, _, _ = fluid([[0]] * len(classes), [1.0], times, weight=weights)
    np.testing.assert_allclose(found, finish, rtol=1e-7, atol=1e-7)
    assert finish.max() == pytest.approx(times.sum())
