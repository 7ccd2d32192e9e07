"""Families: strategies that differ in nothing but the batch, and so share most of their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

    def between(self, start: int, stop: int) -> Families:
        """Return the strategies from one number to before another, of families one after another.

        They are numbered anew.
        """
        ends = self.number + self.size
        rows = slice(
            int(np.searchsorted(ends, start, "right")), int(np.searchsorted(self.number, stop))
        )
        left = np.maximum(start - self.number[rows], 0)
        size = np.minimum(ends[rows], stop) - self.number[rows] - left
        number = np.cumsum(size) - size
        return Families(self.grid.take(rows), self.first[rows] + left, size, number, self.batch)

    def strategies(self, numbers: Integers) -> StrategyGrid:
        """Return some strategies, by their numbers; those of families must ascend."""
        family = np.searchsorted(self.number, numbers, "right") - 1
        found = self.grid.take(family)
        batch = self.batch[self.first[family] + numbers - self.number[family]]
        return StrategyGrid(
            found.devices, {**found.columns, BATCH: batch}, found.status, found.table
        )

    def listed(self) -> StrategyGrid:
        """Return all strategies, whose columns are made when they are asked for."""
        grid = self.grid
        status = np.repeat(grid.status, self.size)
        columns = Listed(self)
        return StrategyGrid(grid.devices, columns, status, grid.table, self)

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


class Listed(Mapping[str, Integers]):
    """The columns of all strategies of some families; each is made when it is asked for."""

    def __init__(self, families: Families) -> None:
        self.families = families

    def __getitem__(self, name: str) -> Integers:
        families = self.families
        if name == BATCH:
            return families.batch[spread(families.first, families.size)]
        return np.repeat(families.grid[name], families.size)

    def __iter__(self) -> Iterator[str]:
        return iter(self.families.grid.columns)

    def __len__(self) -> int:
        return len(self.families.grid.columns)


def joined(parts: Sequence[Families]) -> Families:
    """Return families of one number of devices, one after another; their strategies anew."""
    grids = [part.grid for part in parts]
    columns = {name: np.concatenate([it[name] for it in grids]) for name in grids[0].columns}
    status = np.concatenate([it.status for it in grids])
    before = np.cumsum([0, *(part.batch.size for part in parts)])
    size = np.concatenate([part.size for part in parts])
    return Families(
        StrategyGrid(grids[0].devices, columns, status, grids[0].table),
        np.concatenate([part.first + it for part, it in zip(parts, before, strict=False)]),
        size,
        np.cumsum(size) - size,
        np.concatenate([part.batch for part in parts]),
    )


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
    if grid.families is not None and np.all(grid.status == VALID):
        return grid.families
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
