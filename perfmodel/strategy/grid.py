"""Sets of strategies in columns, and families of them that differ in nothing but the batch.

A strategy is everything that the user may choose for a run. A set of them is a struct of arrays:
one 1-D column per field, so that millions cost megabytes and no Python object per strategy ever
exists. Strategies of a family share most of their answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import decode
from perfmodel.base.columns import Flags, Integers
from perfmodel.base.units import facts_html

if TYPE_CHECKING:
    from perfmodel.strategy.pipelines import Pipeline

VALID = 0
"""Status of a strategy that breaks no rule."""


@dataclass(frozen=True, slots=True)
class StrategyGrid:
    """Columns of strategies for one number of devices.

    Attributes
    ----------
    devices : int
        Devices of the run; the same for every strategy.
    columns : mapping of str to ndarray, shape (strategies,)
        One column per field of `FIELDS`: of floats for shares, else of integers.
    status : ndarray of uint8, shape (strategies,)
        0 where a strategy is possible, else the code of the rule that it breaks
        (`perfmodel.strategy.rules`).
    table : Pipeline, optional
        What strategies run whose ``pipeline_schedule`` is "table".
    families : Families, optional
        The same strategies, where they are known by what they share.
    open : frozenset of str
        Fields that nobody named: the software that runs them has its own value.
    """

    devices: int
    columns: Mapping[str, Integers]
    status: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    table: Pipeline | None = None
    families: Families | None = field(default=None, repr=False, compare=False)
    open: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def __repr__(self) -> str:
        possible = int(np.count_nonzero(self.status == VALID))
        return (
            f"<StrategyGrid of {len(self):,} strategies on {self.devices:,} devices, "
            f"{possible:,} possible>"
        )

    def _repr_html_(self) -> str:
        axes = {}
        for name, column in self.columns.items():
            values = [str(decode(name, code)) for code in np.unique(column).tolist()]
            axes[name] = ", ".join(values[:20]) + (" …" if len(values) > 20 else "")
        return facts_html(repr(self)[1:-1], axes.items())

    def __len__(self) -> int:
        return len(self.columns["tensor_parallel"] if self.families is None else self.families)

    def __getitem__(self, name: str) -> Integers:
        return self.columns[name]

    def of_families(self, name: str) -> Integers:
        """Return the values of a field, once for strategies that are known to share it."""
        if self.families is None:
            return self.columns[name]
        shared = self.families.grid.columns
        return self.families.batch if name == "global_batch_size" else shared[name]

    def column(self, name: str, kind: Any) -> NDArray[Any]:
        """Return a field of every strategy as another type."""
        if self.families is None or name == "global_batch_size":
            return self.columns[name].astype(kind)
        return np.repeat(self.families.grid.columns[name].astype(kind), self.families.size)

    def row(self, index: int) -> dict[str, int | float | bool | str]:
        """Return one strategy with labels, for printing."""
        return {name: decode(name, column[index]) for name, column in self.columns.items()}

    def take(self, index: NDArray[Any] | slice) -> StrategyGrid:
        """Return the strategies at `index` (positions, mask or slice)."""
        return StrategyGrid(
            self.devices,
            {name: column[index] for name, column in self.columns.items()},
            self.status[index],
            self.table,
            open=self.open,
        )


def batches_of(grid: StrategyGrid) -> Integers:
    """Return the micro-batches of every strategy."""
    return grid["global_batch_size"] // (grid["data_parallel"] * grid["micro_batch_size"])


def attended_lengths(columns: Mapping[str, Integers]) -> Integers:
    """Return the tokens that attend to each other: of a packed document, or of a sequence."""
    documents = columns["document_length"]
    return np.where(documents > 0, documents, columns["sequence_length"])


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
