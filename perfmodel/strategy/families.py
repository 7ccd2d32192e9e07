"""Families: strategies that differ in nothing but the batch, and so share most of their answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.strategy.rules import VALID

BATCH = "global_batch_size"


@dataclass(frozen=True, slots=True)
class Families:
    """Strategies in order, those of a family one after the other, in the order of their batches.

    Attributes
    ----------
    grid : StrategyGrid
        The first strategy of every family.
    first, size : ndarray of int64, shape (families,)
        Batches of family j are ``batch[first[j]:first[j] + size[j]]``, and ascend.
    number : ndarray of int64, shape (families,)
        Of its first strategy; those of the others follow.
    batch : ndarray of int64
        Sequences per step. Families may share them.
    """

    grid: StrategyGrid
    first: Integers
    size: Integers
    number: Integers
    batch: Integers

    def __len__(self) -> int:
        """Return the number of strategies."""
        return int(self.size.sum())

    def micro_batches(self, family: Integers) -> tuple[Integers, Integers]:
        """Return the micro-batches of all strategies of some families, and where each begins.

        Returns
        -------
        batches : ndarray of int64, shape (strategies of these families,)
        begin : ndarray of int64, shape (families + 1,)
        """
        grid, size = self.grid, self.size[family]
        each = (grid["data_parallel"] * grid["micro_batch_size"])[family]
        batches = self.batch[spread(self.first[family], size)] // np.repeat(each, size)
        return batches, np.concatenate(([0], np.cumsum(size)))

    def take(self, family: Integers | slice) -> Families:
        """Return some of the families; their strategies keep their numbers."""
        first, size, number = (column[family] for column in (self.first, self.size, self.number))
        return Families(self.grid.take(family), first, size, number, self.batch)

    def strategies(self, numbers: Integers) -> StrategyGrid:
        """Return some strategies, by their numbers; those of families must ascend."""
        family = np.searchsorted(self.number, numbers, "right") - 1
        found = self.grid.take(family)
        batch = self.batch[self.first[family] + numbers - self.number[family]]
        return StrategyGrid(
            found.devices, {**found.columns, BATCH: batch}, found.status, found.table
        )

    def like_the_one_before(self) -> Flags:
        """Tell which families have the batches of the family before, shape (families,)."""
        first, size = self.first, self.size
        found = np.zeros(size.size, bool)
        found[1:] = size[1:] == size[:-1]
        alike = np.flatnonzero(found)
        alike = alike[first[alike] != first[alike - 1]]
        own, other = spread(first[alike], size[alike]), spread(first[alike - 1], size[alike])
        if alike.size:
            begins = np.cumsum(size[alike]) - size[alike]
            found[alike] = np.logical_and.reduceat(self.batch[own] == self.batch[other], begins)
        return found


def spread(start: Integers, size: Integers) -> NDArray[np.int64]:
    """Return the numbers from each start on, `size` of each, one after the other."""
    if not size.size:
        return np.zeros(0, np.int64)
    ends = np.cumsum(size)
    return np.arange(ends[-1]) + np.repeat(start - (ends - size), size)


def families_of(grid: StrategyGrid) -> Families:
    """Return the families of the possible strategies of a grid.

    Parameters
    ----------
    grid : StrategyGrid
        Neighbours make a family whose batches ascend while nothing else differs. Strategies are
        numbered by their places.
    """
    batch = np.ascontiguousarray(grid[BATCH])
    possible = grid.status == VALID if grid.status.size else np.ones(batch.size, bool)
    begins = possible.copy()
    begins[1:] &= (batch[1:] <= batch[:-1]) | ~possible[:-1]
    for name, column in grid.columns.items():
        if name != BATCH:
            begins[1:] |= possible[1:] & (column[1:] != column[:-1])
    first = np.flatnonzero(begins)
    family = np.cumsum(begins) - 1
    size = np.bincount(family[possible], minlength=first.size)
    return Families(grid.take(first), first, size, first, batch)
