"""Max-min fair rates and processor sharing: worked by hand, and by property."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.fair_share import (
    flows_of_links,
    weighted_max_min_rates,
)
from tests.kernels.flows import compressed, networks, use_of


def rates(routes, capacity, cap=None, weight=None):
    """Rates of flows given by their routes."""
    count = len(routes)
    offsets, links = compressed(routes)
    return weighted_max_min_rates(
        offsets,
        links,
        np.ones(len(links)),
        np.array(capacity, dtype=float),
        np.full(count, math.inf) if cap is None else np.array(cap, dtype=float),
        np.ones(count) if weight is None else np.array(weight, dtype=float),
    )


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
    assert rates([], np.ones(3)).size == 0


def test_a_link_used_twice_counts_twice():
    np.testing.assert_allclose(rates([[0, 0], [0]], [9.0]), [3, 3])


def test_flows_of_links_turns_routes_round():
    first, flows, entries = flows_of_links(*compressed([[2, 0], [], [2]]), 4)
    assert first.tolist() == [0, 1, 1, 3, 3]
    assert flows.tolist() == [0, 0, 2]
    assert entries.tolist() == [1, 0, 2]


def test_a_flow_that_uses_a_link_in_part_leaves_the_rest():
    """Of 1: a flow that needs a quarter of it has its whole rate, the other what is left."""
    offsets, links, use = np.array([0, 1, 3]), np.array([0, 0, 1]), np.array([1.0, 0.25, 1.0])
    ones = np.ones(2)
    found = weighted_max_min_rates(offsets, links, use, np.array([1.0, 0.4]), ones, ones)
    np.testing.assert_allclose(found, [0.9, 0.4])
    found = weighted_max_min_rates(offsets, links, use, ones, ones, ones)
    np.testing.assert_allclose(found, [0.8, 0.8])  # 0.8 + 0.8 / 4 = 1: both are slowed alike


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
