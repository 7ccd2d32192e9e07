"""Loads of XY routes, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.wafer import routes
from perfmodel.kernels.wafer.routes import (
    DEDUPLICATED,
    DOWN,
    EACH,
    EAST,
    NORTH,
    SOUTH,
    TREE,
    UP,
    WEST,
    exchange_loads,
)


def loads_of(rows, columns, flows, trees=None):
    source, target, size = (np.array(column) for column in zip(*flows, strict=True))
    tree = np.full(source.size, routes.ALONE) if trees is None else np.array(trees)
    return routes.flow_loads(rows, columns, source, target, size.astype(float), tree)


def test_row_first_then_column() -> None:
    """From (0, 0) to (2, 1) of a mesh of three columns: one east, two south."""
    loads, passing, hops, longest = loads_of(3, 3, [(0, 7, 5)])
    assert loads[routes.EAST].tolist() == [5, 0, 0, 0, 0, 0, 0, 0, 0]
    assert loads[routes.SOUTH].tolist() == [0, 5, 0, 0, 5, 0, 0, 0, 0]
    assert loads[routes.WEST].sum() == loads[routes.NORTH].sum() == 0
    assert (loads[routes.UP, 0], loads[routes.DOWN, 7]) == (5, 5)
    assert np.flatnonzero(passing).tolist() == [0, 1, 4, 7]
    assert (hops, longest) == (15, 3)
    assert (loads.max(), np.count_nonzero(loads[: routes.UP])) == (5, 3)


def test_way_back_and_nothing_to_send() -> None:
    loads, passing, hops, longest = loads_of(3, 3, [(7, 0, 2), (4, 4, 9), (1, 2, 0)])
    assert loads[routes.WEST, 7] == 2
    assert loads[routes.NORTH, [6, 3]].tolist() == [2, 2]
    assert (hops, longest, passing.sum()) == (6, 3, 4)


@pytest.mark.parametrize(
    ("to", "links"),
    [
        ([0], 0),
        ([8], 4),
        ([2, 8], 4),
        ([2, 6], 2 + 2),
        ([1, 2, 5, 8, 3], 2 + 2 + 1),
        ([7, 1], 1 + 2),
    ],
)
def test_links_of_trees_on_three_by_three(to: list[int], links: int) -> None:
    assert loads_of(3, 3, [(0, one, 1) for one in to], [0] * len(to))[2] == links


def test_links_of_a_tree_are_no_more_than_of_single_ways() -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        source, *targets = random.choice(48, 7, replace=False).tolist()
        flows = [(source, one, 1) for one in targets]
        tree, alone = loads_of(6, 8, flows, [0] * 6)[2], loads_of(6, 8, flows)
        assert alone[3] <= tree <= alone[2]


def test_a_tree_loads_a_link_once() -> None:
    """To three cores of one row: four links in place of one, two and three."""
    flows = [(0, 1, 4), (0, 2, 4), (0, 3, 4), (3, 0, 4)]
    alone, _, hops, _ = loads_of(1, 4, flows)
    assert (alone[routes.EAST].tolist(), hops) == ([12, 8, 4, 0], 36)
    tree, passing, hops, _ = loads_of(1, 4, flows, [0, 0, 0, 1])
    assert (tree[routes.EAST].tolist(), hops) == ([4, 4, 4, 0], 24)
    assert tree[routes.UP].tolist() == [4, 0, 0, 4]
    assert tree[routes.DOWN].tolist() == [4, 4, 4, 4]
    assert passing.tolist() == [2, 2, 2, 2]


def test_everyone_to_everyone_loads_the_middle() -> None:
    """A row of P: the link after core i carries (i + 1) (P - 1 - i) messages."""
    cores = 7
    pairs = [(a, b, 1) for a in range(cores) for b in range(cores) if a != b]
    loads, _, _, longest = loads_of(1, cores, pairs)
    assert loads[routes.EAST, :-1].tolist() == [(i + 1) * (cores - 1 - i) for i in range(cores - 1)]
    assert loads[routes.WEST, 1:].tolist() == loads[routes.EAST, :-1].tolist()
    assert longest == cores - 1
    assert (loads.max(), np.count_nonzero(loads[: routes.UP])) == (12, 12)


def test_sum_of_loads_is_hops() -> None:
    random = np.random.default_rng(1)
    cores = 6 * 9
    flows = list(zip(*random.integers(0, cores, (2, 300)), random.integers(0, 9, 300), strict=True))
    loads, _, hops, longest = loads_of(6, 9, flows)
    assert loads[: routes.UP].sum() == hops
    assert longest <= 5 + 8
    moving = sum(size for a, b, size in flows if a != b)
    assert loads[routes.UP].sum() == loads[routes.DOWN].sum() == moving


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


def test_counts_are_those_of_messages() -> None:
    random = np.random.default_rng(7)
    ranks, parts, replicas, count = 3, 2, 2, 7
    nodes = ranks * parts * replicas
    experts = np.stack([random.permutation(count)[:3] for _ in range(40)]).reshape(8, 5, 3)
    stands = np.array([1, 3, 1, 2, 1])
    owners = random.integers(0, nodes, 8)
    shared = np.array([0, 0, 6, 6, -1, 0, 6, 6])
    rank_of = np.array([0, 0, 0, 1, 1, 2, 2])
    counts = np.empty((routes.COUNTS, nodes), np.int64)
    routes.expert_rows(experts, stands, owners, shared, rank_of, parts, replicas, counts)

    asked = np.zeros_like(counts)
    used = set()
    for s, owner in enumerate(owners):
        replica = owner // (ranks * parts)
        for t, rows in enumerate(stands):
            places = []
            for e in experts[s, t]:
                for part in range(parts):
                    node = (replica * ranks + rank_of[e]) * parts + part
                    places.append(node)
                    used.add((node, e))
            asked[routes.WORKED] += rows * np.bincount(places, minlength=nodes)
            for node in places:
                if node != owner:
                    asked[routes.RETURNED, node] += rows
                    asked[routes.RETURN_RECEIVED, owner] += rows
            if shared[s] >= 0:
                asked[routes.SHARED, shared[s]] += rows
                places.append(shared[s])
                if shared[s] != owner:
                    asked[routes.SHARED_RETURNED, shared[s]] += rows
                    asked[routes.SHARED_RETURN_RECEIVED, owner] += rows
            others = set(places) - {owner}
            asked[routes.DISPATCHED, owner] += rows * len(others)
            asked[routes.CAST, owner] += rows * bool(others)
            for node in others:
                asked[routes.DISPATCH_RECEIVED, node] += rows
    for node, _ in used:
        asked[routes.ACTIVE, node] += 1
    assert (counts == asked).all()
