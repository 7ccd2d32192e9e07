"""Columns of strategies, and their families."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.axes import columns_from_rows
from perfmodel.strategy.grid import BATCH, Families, StrategyGrid, families_of, joined, spread


def test_a_grid_gives_back_rows_and_parts():
    columns = columns_from_rows([{"tensor_parallel": 2**i} for i in range(4)])
    grid = StrategyGrid(8, columns, np.array([0, 1, 0, 2], np.uint8))
    assert len(grid) == 4
    assert grid.row(2)["tensor_parallel"] == 4
    assert grid.row(2)["precision"] == "bf16"
    assert grid.row(2)["sequence_parallel"] is True
    for index in (np.array([True, False, True, False]), np.array([0, 2]), slice(0, 4, 2)):
        part = grid.take(index)
        assert part["tensor_parallel"].tolist() == [1, 4]
        assert part.status.tolist() == [0, 0]
        assert part.devices == 8


BROKEN = 7  # code of a rule; any but 0


def grid_of(rows, status=None) -> StrategyGrid:
    """Grid of strategies of a batch and a degree of tensor parallelism each."""
    columns = columns_from_rows(
        [{BATCH: batch, "tensor_parallel": tensor} for batch, tensor in rows]
    )
    found = np.zeros(len(rows), np.uint8) if status is None else np.array(status, np.uint8)
    return StrategyGrid(8, columns, found)


def same(found: StrategyGrid, expected: StrategyGrid) -> None:
    assert len(found) == len(expected)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)


def batches_by_family(families: Families) -> list[list[int]]:
    pairs = zip(families.first, families.size, strict=True)
    return [families.batch[first : first + size].tolist() for first, size in pairs]


def test_a_family_ends_where_anything_else_differs_or_the_batch_does_not_ascend() -> None:
    grid = grid_of([(8, 1), (16, 1), (16, 1), (32, 1), (64, 2), (8, 2)])
    families = families_of(grid)
    assert batches_by_family(families) == [[8, 16], [16, 32], [64], [8]]
    assert families.grid["tensor_parallel"].tolist() == [1, 1, 2, 2]
    assert families.number.tolist() == [0, 2, 4, 5]
    assert len(families) == 6


def test_impossible_strategies_belong_to_none_and_part_their_neighbours() -> None:
    rows = [(8, 1), (16, 1), (24, 1), (32, 1), (40, 1), (8, 2)]
    families = families_of(grid_of(rows, [BROKEN, 0, 0, BROKEN, 0, BROKEN]))
    assert batches_by_family(families) == [[16, 24], [40]]
    assert families.number.tolist() == [1, 4]  # places in the grid


def test_a_grid_without_possible_strategies_has_no_families() -> None:
    families = families_of(grid_of([(8, 1), (16, 1)], [BROKEN, BROKEN]))
    assert len(families) == len(families.size) == 0
    assert families.micro_batches(np.zeros(0, np.int64))[1].tolist() == [0]


def test_micro_batches_are_what_is_left_for_each_replica() -> None:
    columns = columns_from_rows(
        [{BATCH: 16 * n, "data_parallel": 2, "micro_batch_size": 4} for n in (1, 2, 5)]
        + [{BATCH: 12, "data_parallel": 4}]
    )
    families = families_of(StrategyGrid(8, columns, np.zeros(4, np.uint8)))
    batches, begin = families.micro_batches(np.array([1, 0]))
    assert batches.tolist() == [3, 2, 4, 10]
    assert begin.tolist() == [0, 1, 4]


def test_the_batches_of_the_family_before_are_recognised() -> None:
    three = [(8, 1), (16, 1), (8, 2), (16, 2), (8, 4), (24, 4), (8, 8), (8, 1), (16, 1)]
    families = families_of(grid_of(three))
    assert families.like_the_one_before().tolist() == [False, True, False, False, False]
    own = families.grid.take(slice(0, 3))
    shared = np.array([8, 16, 99])  # batches that families share lie there once
    first, size = np.array([0, 0, 1]), np.array([2, 2, 2])
    few = Families(own, first, size, np.cumsum(size) - 2, shared)
    assert few.like_the_one_before().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("start", "size", "expected"),
    [
        ([], [], []),
        ([5], [3], [5, 6, 7]),
        ([4, 0, 9], [2, 0, 1], [4, 5, 9]),
        ([3, 3], [2, 2], [3, 4, 3, 4]),
    ],
)
def test_spread_counts_on_from_every_start(start, size, expected) -> None:
    found = spread(np.array(start, np.int64), np.array(size, np.int64))
    assert found.tolist() == expected


ROWS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([1, 2])), min_size=1, max_size=24)


@given(ROWS)
def test_listed_families_are_the_grid_that_they_came_from(rows) -> None:
    grid = grid_of(rows)
    families = families_of(grid)
    listed = families.listed()
    same(listed, grid)
    assert set(listed.columns) == set(grid.columns)
    assert len(listed.columns) == len(grid.columns)
    assert listed.status.tolist() == grid.status.tolist()
    assert listed.row(len(rows) - 1) == grid.row(len(rows) - 1)
    assert families_of(listed) is families
    np.testing.assert_array_equal(listed.column("tensor_parallel", float), grid["tensor_parallel"])
    assert all(np.all(np.diff(own) > 0) for own in batches_by_family(families))


@given(ROWS, st.data())
def test_strategies_are_found_by_their_numbers(rows, data) -> None:
    status = data.draw(st.lists(st.sampled_from([0, 0, BROKEN]), min_size=24, max_size=24))
    grid = grid_of(rows, status[: len(rows)])
    families, possible = families_of(grid), np.flatnonzero(grid.status == 0)
    assert len(families) == possible.size
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=24, max_size=24)))
    numbers = possible[keep[: len(rows)][possible]]
    same(families.strategies(numbers), grid.take(numbers))
    some = np.flatnonzero(keep[: families.size.size])
    chosen = families.take(some)  # keeps numbers
    of_some = spread(families.number[some], families.size[some])
    same(chosen.listed(), grid.take(of_some))
    same(chosen.strategies(of_some), grid.take(of_some))


@given(ROWS, st.data())
def test_a_stretch_of_strategies_is_numbered_anew_and_stretches_join(rows, data) -> None:
    grid = grid_of(rows)
    families = families_of(grid)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=3))
    edges = sorted({0, *cuts, len(rows)})
    parts = [families.between(*pair) for pair in itertools.pairwise(edges)]
    for part, (first, behind) in zip(parts, itertools.pairwise(edges), strict=True):
        same(part.listed(), grid.take(slice(first, behind)))
        same(part.strategies(np.arange(len(part))), grid.take(slice(first, behind)))
    whole = joined(parts)
    same(whole.listed(), grid)
    same(whole.strategies(np.arange(len(rows))), grid)
