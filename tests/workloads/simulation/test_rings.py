"""Which members of a ring see the same around them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.workloads.simulation.costs import Ring
from perfmodel.workloads.simulation.meetings import Group
from perfmodel.workloads.simulation.rings import ring_pattern


def group(times, members=None, order=None):
    """Return a group of one size of collective with some hops, in the order of its ring."""
    count = len(times)
    hops = np.array([times])
    even = (hops == hops[:, :1]).all(axis=1)
    own = np.arange(count) if members is None else np.array(members)
    ring = Ring(even, np.zeros((1, 6), np.int64), hops, np.array(order or range(count)))
    return Group("g", own, None, np.zeros(count, np.int64), ring=ring)


@pytest.mark.parametrize(
    ("colours", "times", "places"),
    [
        ([0, 0, 0, 0], [5, 5, 5, 5], [0, 0, 0, 0]),
        ([0, 1, 0, 1], [5, 5, 5, 5], [0, 1, 0, 1]),
        ([0, 0, 1, 1], [5, 5, 5, 5], [0, 1, 2, 3]),
        ([0, 0, 0, 0], [5, 7, 5, 7], [0, 1, 0, 1]),
        ([0, 0, 0, 0], [9, 5, 5, 5], [0, 1, 2, 3]),
        ([0, 1, 0], [5, 5, 5], [0, 1, 2]),
    ],
)
def test_the_shortest_part_that_repeats_tells_members_apart(colours, times, places):
    _, found = ring_pattern(group(times), np.array(colours))
    assert found.tolist() == places


def test_places_are_those_of_the_members_whatever_the_order_of_the_ring():
    _, found = ring_pattern(group([9, 5, 5], order=[2, 0, 1]), np.zeros(3, np.int64))
    assert found.tolist() == [1, 2, 0]


def test_patterns_are_equal_where_all_that_is_seen_is():
    colours = np.array([0, 1, 0, 1, 0, 0, 0, 0])
    one, _ = ring_pattern(group([5, 5], [0, 1]), colours)
    same, _ = ring_pattern(group([5, 5], [2, 3]), colours)
    others, _ = ring_pattern(group([5, 5], [4, 5]), colours)
    longer, _ = ring_pattern(group([5, 7], [0, 1]), colours)
    assert one == same
    assert len({one, others, longer}) == 3
