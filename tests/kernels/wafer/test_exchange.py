"""Rows of tokens on the links between nodes, counted by hand."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.wafer.exchange import DEDUPLICATED, EACH, TREE, exchange_loads
from perfmodel.kernels.wafer.routes import DOWN, EAST, NORTH, SOUTH, UP, WEST


def test_a_token_with_three_experts() -> None:
    """On 2 x 3 nodes, from node 0 to node 5 (twice) and node 2: along the row first."""
    owners, nodes = np.array([0]), np.array([[5, 5, 2, -1]])
    loads, hops, longest, sent = exchange_loads(2, 3, owners, nodes, EACH, False)
    assert (loads[EAST, 0], loads[EAST, 1], loads[SOUTH, 2]) == (3, 3, 2)
    assert (hops, longest, sent) == (8, 3, 3)
    assert (loads[UP, 0], loads[DOWN, 5], loads[DOWN, 2]) == (3, 2, 1)
    loads, hops, _, sent = exchange_loads(2, 3, owners, nodes, DEDUPLICATED, False)
    assert (loads[EAST, 0], loads[SOUTH, 2], hops, sent) == (2, 1, 5, 2)
    loads, hops, _, sent = exchange_loads(2, 3, owners, nodes, TREE, False)
    assert (loads[EAST, 0], loads[SOUTH, 2], hops, sent) == (1, 1, 3, 2)
    assert loads[UP, 0] == 1


def test_the_way_back() -> None:
    owners, nodes = np.array([0]), np.array([[5, 5, 2, 0]])
    loads, hops, _, _ = exchange_loads(2, 3, owners, nodes, DEDUPLICATED, True)
    # From node 5 along its own row, then up the first column.
    assert (loads[WEST, 5], loads[WEST, 4], loads[NORTH, 3]) == (1, 1, 1)
    assert (loads[WEST, 2], loads[WEST, 1], hops) == (1, 1, 5)
    # Added on the way: the tree of the way there, the other way round.
    loads, hops, _, _ = exchange_loads(2, 3, owners, nodes, TREE, True)
    assert (loads[NORTH, 5], loads[WEST, 2], loads[WEST, 1], hops) == (1, 1, 1, 3)
    assert (loads[UP, 5], loads[UP, 2], loads[DOWN, 0]) == (1, 1, 1)


def test_each_there_loads_what_each_back_does() -> None:
    random = np.random.default_rng(0)
    owners, nodes = random.integers(0, 20, 50), random.integers(-1, 20, (50, 4))
    there = exchange_loads(4, 5, owners, nodes, EACH, False)
    back = exchange_loads(4, 5, owners, nodes, EACH, True)
    assert there[1:] == back[1:]
    np.testing.assert_array_equal(there[0][UP], back[0][DOWN])
