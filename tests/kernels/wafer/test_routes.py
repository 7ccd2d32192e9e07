"""Loads of XY routes, counted by hand."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.wafer import routes


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
