"""Max-min fair rates, fluid flows and shared resources: worked by hand, and by property."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.links.fair_share import (
    flows_of_links,
    max_min_rates,
    processor_sharing_times,
    weighted_max_min_rates,
    weighted_processor_sharing_times,
)
from perfmodel.kernels.links.fluid import fluid_finish_times


def compressed(routes: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, routes)]).astype(np.int64)
    return offsets, np.array([link for route in routes for link in route], dtype=np.int64)


def rates(routes, capacity, cap=None, weight=None):
    """Rates of flows given by their routes."""
    count = len(routes)
    return weighted_max_min_rates(
        *compressed(routes),
        np.array(capacity, dtype=float),
        np.full(count, math.inf) if cap is None else np.array(cap, dtype=float),
        np.ones(count) if weight is None else np.array(weight, dtype=float),
    )


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


# Worked by hand ---------------------------------------------------------------------


def test_three_links_three_bottlenecks():
    """Links of 6, 5 and 10: the first is full at 2 each, then the second, then the third.

    A, B and C share link 0: 6 / 3 = 2 each. D shares link 1 with C: 5 - 2 = 3. E shares
    link 2 with D: 10 - 3 = 7.
    """
    found = rates([[0], [0], [0, 1], [1, 2], [2]], [6, 5, 10])
    np.testing.assert_allclose(found, [2, 2, 2, 3, 7])


@pytest.mark.parametrize("links", [1, 2, 5, 40])
def test_parking_lot(links):
    """One flow through all links, one on each: everyone gets half."""
    routes = [list(range(links)), *([link] for link in range(links))]
    np.testing.assert_allclose(rates(routes, [8.0] * links), 4.0)


def test_parking_lot_towards_one_exit():
    """Three roads join: the narrow one brings 1, the other two share the rest of the exit."""
    np.testing.assert_allclose(rates([[0, 3], [1, 3], [2, 3]], [1.0, 9.0, 9.0, 9.0]), [1, 4, 4])


def test_caps_leave_the_rest_to_others():
    np.testing.assert_allclose(
        rates([[0], [0], [0]], [9.0], cap=[1.0, 3.5, math.inf]), [1, 3.5, 4.5]
    )


def test_weights_divide_a_bottleneck():
    np.testing.assert_allclose(rates([[0], [0]], [8.0], weight=[3.0, 1.0]), [6, 2])
    # with a cap of 3 on the heavy one, the light one gets what is left
    np.testing.assert_allclose(rates([[0], [0]], [8.0], [3.0, math.inf], [3.0, 1.0]), [3, 5])


def test_flows_without_links_have_their_cap():
    assert rates([[], [], [0]], [5.0], cap=[math.inf, 7.0, math.inf]).tolist() == [
        math.inf,
        7.0,
        5.0,
    ]
    assert max_min_rates(np.zeros(1, np.int64), np.zeros(0, np.int64), np.ones(3)).size == 0


def test_a_link_used_twice_counts_twice():
    np.testing.assert_allclose(rates([[0, 0], [0]], [9.0]), [3, 3])


def test_flows_of_links_turns_routes_round():
    first, flows = flows_of_links(*compressed([[2, 0], [], [2]]), 4)
    assert first.tolist() == [0, 1, 1, 3, 3]
    assert flows.tolist() == [0, 0, 2]


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


def test_processor_sharing_by_hand():
    # 1, 2, 4 s: all three until 3 s; two until 3 + 2 × 1 = 5 s; one until 5 + 2 = 7 s
    np.testing.assert_allclose(processor_sharing_times(np.array([4.0, 1.0, 2.0])), [7, 3, 5])
    # weight 3 of 4: 3 s of work are done at 4 s, with 1 s of the other one's 3 s
    found = weighted_processor_sharing_times(np.array([3.0, 3.0]), np.array([3.0, 1.0]))
    np.testing.assert_allclose(found, [4.0, 6.0])


# Properties -------------------------------------------------------------------------


@st.composite
def networks(draw):
    """Random routes without a link twice, capacities, caps and weights."""
    links = draw(st.integers(1, 8))
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=12))
    number = st.floats(0.1, 100.0)
    capacity = draw(st.lists(number, min_size=links, max_size=links))
    some = {"min_size": len(routes), "max_size": len(routes)}
    cap = draw(st.lists(st.one_of(number, st.just(math.inf)), **some))
    weight = draw(st.lists(st.floats(0.25, 4.0), **some))
    return routes, np.array(capacity), np.array(cap), np.array(weight)


def use_of(routes, capacity, rate):
    """Rate over every link."""
    load = np.zeros(len(capacity))
    for route, value in zip(routes, rate, strict=True):
        load[route] += value
    return load


@given(networks())
def test_rates_are_max_min_fair(network):
    """No link is overfull, and every flow below its cap has a bottleneck.

    Bertsekas & Gallager 1992, §6.5.2: a full link on which nobody has more (per weight)
    than the flow itself; having one is necessary and sufficient.
    """
    routes, capacity, cap, weight = network
    rate = rates(routes, capacity, cap, weight)
    load = use_of(routes, capacity, rate)
    assert np.all(load <= capacity * (1 + 1e-9))
    assert np.all(rate <= cap * (1 + 1e-9))
    share = rate / weight
    for flow, route in enumerate(routes):
        if rate[flow] >= cap[flow] * (1 - 1e-9):
            continue
        bottlenecks = [
            link
            for link in route
            if load[link] >= capacity[link] * (1 - 1e-9)
            and all(
                share[other] <= share[flow] * (1 + 1e-9)
                for other, taken in enumerate(routes)
                if link in taken
            )
        ]
        assert bottlenecks


@given(networks(), st.floats(0.01, 100.0))
def test_rates_scale_with_the_network(network, factor):
    routes, capacity, cap, weight = network
    plain = rates(routes, capacity, cap, weight)
    scaled = rates(routes, capacity * factor, cap * factor, weight * 7)
    np.testing.assert_allclose(scaled, plain * factor, rtol=1e-8)


@given(networks(), st.randoms(use_true_random=False))
def test_names_of_flows_and_links_do_not_matter(network, random):
    routes, capacity, cap, weight = network
    order = random.sample(range(len(routes)), len(routes))
    label = random.sample(range(len(capacity)), len(capacity))
    moved = np.empty_like(capacity)
    moved[label] = capacity
    renamed = [[label[link] for link in routes[flow]] for flow in order]
    found = rates(renamed, moved, cap[order], weight[order])
    np.testing.assert_allclose(found, rates(routes, capacity, cap, weight)[order], rtol=1e-8)


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
    found = weighted_processor_sharing_times(times, weights)
    finish, _, _ = fluid([[0]] * len(classes), [1.0], times, weight=weights)
    np.testing.assert_allclose(found, finish, rtol=1e-7, atol=1e-7)
    assert found.max() == pytest.approx(times.sum())
    equal = processor_sharing_times(times)
    np.testing.assert_allclose(equal, [np.minimum(times, own).sum() for own in times], atol=1e-9)
