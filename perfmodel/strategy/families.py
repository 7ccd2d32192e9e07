"""Families: strategies that differ in nothing but the batch, and so share most of their answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.strategy.grid import StrategyGrid

BATCH = "global_batch_size"


@dataclass(frozen=True, slots=True)
class Families:
    """Strategies in order, those of a family one after the other.

    Attributes
    ----------
    grid : StrategyGrid
        The first strategy of every family.
    offset : ndarray of int64, shape (families + 1,)
        Strategies of family j are ``offset[j]:offset[j + 1]``.
    batch : ndarray of int64, shape (strategies,)
        Sequences per step of each.
    """

    grid: StrategyGrid
    offset: Integers
    batch: Integers

    def __len__(self) -> int:
        """Return the number of strategies."""
        return int(self.batch.size)

    @property
    def sizes(self) -> Integers:
        """Strategies of every family."""
        return np.diff(self.offset)

    def micro_batches(self, family: Integers) -> tuple[Integers, Integers]:
        """Return the micro-batches of all strategies of some families, and where each begins.

        Returns
        -------
        batches : ndarray of int64, shape (strategies of these families,)
        offset : ndarray of int64, shape (families + 1,)
        """
        grid = self.grid
        size = self.sizes[family]
        offset = np.concatenate(([0], np.cumsum(size)))
        each = (grid["data_parallel"] * grid["micro_batch_size"])[family]
        return self.batch[spread(self.offset[family], size)] // np.repeat(each, size), offset

    def take(self, family: Integers) -> tuple[Families, Integers]:
        """Return some families, and the places of their strategies among all."""
        size = self.sizes[family]
        places = spread(self.offset[family], size)
        offset = np.concatenate(([0], np.cumsum(size)))
        return Families(self.grid.take(family), offset, self.batch[places]), places

    def like_the_one_before(self) -> Flags:
        """Tell which families have the batches of the family before, shape (families,)."""
        size = self.sizes
        found = np.zeros(size.size, bool)
        found[1:] = size[1:] == size[:-1]
        alike = np.flatnonzero(found)
        own, other = spread(self.offset[alike], size[alike]), self.offset[alike - 1]
        equal = self.batch[own] == self.batch[spread(other, size[alike])]
        if alike.size:
            starts = np.cumsum(size[alike]) - size[alike]
            found[alike] = np.logical_and.reduceat(equal, starts)
        return found


def spread(start: Integers, size: Integers) -> NDArray[np.int64]:
    """Return the numbers from each start on, `size` of each, one after the other."""
    if not size.size:
        return np.zeros(0, np.int64)
    ends = np.cumsum(size)
    return np.arange(ends[-1]) + np.repeat(start - (ends - size), size)


def families_of(grid: StrategyGrid) -> Families:
    """Return the families of a grid: neighbours that differ in nothing but the batch.

    Parameters
    ----------
    grid : StrategyGrid
    """
    count = len(grid)
    begins = np.zeros(count, bool)
    begins[:1] = True
    for name, column in grid.columns.items():
        if name != BATCH:
            begins[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(begins)
    offset = np.concatenate((first, [count]))
    return Families(grid.take(first), offset, np.ascontiguousarray(grid[BATCH]))
