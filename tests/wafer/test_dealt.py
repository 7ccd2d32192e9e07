"""Contexts dealt to the cores of a node."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.dealt import deal_contexts, snake


def hops(one: np.ndarray, other: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    rows, columns = np.divmod(one, grid[1])
    to_rows, to_columns = np.divmod(other, grid[1])
    return abs(rows - to_rows) + abs(columns - to_columns)


@pytest.mark.parametrize("lengths", [[1024] * 147, [1], [5, 3000, 17, 1, 1], list(range(1, 60))])
@pytest.mark.parametrize("grid", [(6, 6), (1, 3), (2, 2)])
def test_every_position_is_dealt_once(lengths: list[int], grid: tuple[int, int]) -> None:
    dealt = deal_contexts(np.array(lengths), grid)
    assert (dealt.first % 16 == 0).all()
    for sequence, length in enumerate(lengths):
        mine = dealt.sequence == sequence
        begins, ends = dealt.first[mine], dealt.last[mine]
        assert (begins[0], ends[-1]) == (0, length)
        assert (begins[1:] == ends[:-1]).all()
        cores = dealt.core[mine]
        assert (hops(cores[1:], cores[:-1], grid) == 1).all()


def test_the_example_keeps_its_cores_busy() -> None:
    """147 sequences of 1,024 positions on 36 cores: the generator's halves give 0.91."""
    dealt = deal_contexts(np.full(147, 1024), (6, 6))
    load = np.bincount(dealt.core, weights=dealt.last - dealt.first, minlength=36)
    assert load.mean() / load.max() > 0.99
    assert len(dealt.core) <= 147 + 35


def test_a_snake_goes_to_neighbours() -> None:
    assert snake((2, 3)).tolist() == [0, 1, 2, 5, 4, 3]


def test_bad_contexts_are_named() -> None:
    for lengths in ([], [0], [-3], [2**41]):
        with pytest.raises(StrategyError, match="'context'"):
            deal_contexts(np.array(lengths), (2, 2))
    with pytest.raises(StrategyError, match="'granule'"):
        deal_contexts(np.array([4]), (2, 2), 0)
