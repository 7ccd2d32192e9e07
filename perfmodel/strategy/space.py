"""Strategies counted, and built block by block, without ever holding all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.model.build import ModelSpec
from perfmodel.strategy.enumerate import (
    Axes,
    Multiplied,
    all_axes,
    count_broken,
    late_status,
    layouts,
    may_break_late,
    repeats_of,
    strategies_of,
)
from perfmodel.strategy.grid import FEWER_VALUES, StrategyGrid, axis_rows
from perfmodel.strategy.rules import VALID

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

BLOCK = 2**18
"""Strategies of a block; of all variables it takes 200 MB while it is projected."""
SLAB = 2**16  # rows of the product of layout axes that are multiplied out at a time
WIDEST = 2**20  # strategies that may come of such a slab at most, but of one layout

MOST_ROWS = 2**36  # of that product; a core counts a million in a second
SPREAD = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")


class Space:
    """The strategies of a model on a number of devices, in blocks.

    Blocks follow each other as `perfmodel.strategy.enumerate.enumerate_strategies` orders all
    strategies: it is their concatenation, value for value.

    Parameters
    ----------
    model, devices, axes, hardware, keep_impossible
        As of `enumerate_strategies`.
    block_size : int
        Strategies of every block but the last.

    Attributes
    ----------
    count : int
        Strategies that are kept.
    possible : int
        Those of them that break no rule.
    rejected : mapping of str to int
        Impossible strategies by the name of the rule that they break.

    Raises
    ------
    StrategyError
        As of `enumerate_strategies`, but for memory.
    """

    def __init__(
        self,
        model: ModelSpec,
        devices: int,
        axes: Mapping[str, Any],
        *,
        hardware: Hardware | str | Sequence[Hardware | str] = (),
        keep_impossible: bool = False,
        block_size: int = BLOCK,
    ) -> None:
        self.axes: Axes = all_axes(model, devices, axes, hardware)
        self.devices = self.axes.devices
        self.block_size = block_size
        self.keep_impossible = keep_impossible
        sizes = [values.size for values in self.axes.layout.values()]
        self._rows = int(np.prod(sizes, dtype=object))
        self._slab = min(SLAB, max(WIDEST // self.axes.free_count, 1))
        self._read: tuple[int, _Slab] | None = None
        self.rejected: Counter[str] = Counter()
        self.possible = 0
        if self._rows > MOST_ROWS:
            raise StrategyError(f"{self._rows:,} combinations cannot be counted; {FEWER_VALUES}")
        self._spread: dict[str, int] = {}
        before = [0]
        for start in range(0, self._rows, self._slab):
            slab = _Slab(self.axes, start, min(start + self._slab, self._rows), keep_impossible)
            self.rejected += slab.rejected
            self.possible += slab.possible
            for name, number in slab.spread():
                self._spread.setdefault(name, before[-1] + number)
            before.append(before[-1] + int(slab.before[-1]))
        self._before = np.array(before)  # strategies before every slab
        self.count = before[-1]

    def __len__(self) -> int:
        return self.count

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.count // self.block_size)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Strategies of every block, shape (blocks,)."""
        found = np.full(self.blocks, self.block_size)
        found[-1:] -= self.blocks * self.block_size - self.count
        return found

    def grid(self, number: int) -> StrategyGrid:
        """Return the strategies of one block, from 0."""
        start = number * self.block_size
        return self.part(start, min(start + self.block_size, self.count))

    def part(self, start: int, stop: int) -> StrategyGrid:
        """Return the strategies from one number to before another."""
        return joined([grid for grid in self._parts(start, stop) if len(grid)])

    def examples(self) -> StrategyGrid:
        """Return the first strategy, and the first ones that spread along each of the axes."""
        return joined([self.part(it, it + 1) for it in sorted({0, *self._spread.values()})])

    def _parts(self, start: int, stop: int) -> Iterator[StrategyGrid]:
        first = int(np.searchsorted(self._before, start, side="right")) - 1
        last = int(np.searchsorted(self._before, stop, side="left"))
        for number in range(first, last):
            before = int(self._before[number])
            yield self._slab_of(number).part(max(start - before, 0), stop - before)

    def _slab_of(self, number: int) -> _Slab:
        """Return a slab; the last one is kept, as the next block begins where one ends."""
        if self._read is None or self._read[0] != number:
            start = number * self._slab
            stop = min(start + self._slab, self._rows)
            self._read = number, _Slab(self.axes, start, stop, self.keep_impossible)
        return self._read[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}


def joined(grids: Sequence[StrategyGrid]) -> StrategyGrid:
    """Return the strategies of grids of one number of devices, one after another."""
    if len(grids) == 1:
        return grids[0]
    columns = {name: np.concatenate([grid[name] for grid in grids]) for name in grids[0].columns}
    return StrategyGrid(grids[0].devices, columns, np.concatenate([it.status for it in grids]))


class _Slab:
    """Some rows of the product of layout axes: those that are kept, and what each becomes."""

    def __init__(self, axes: Axes, start: int, stop: int, keep_impossible: bool) -> None:
        self.axes, self.keep_impossible = axes, keep_impossible
        layout, status = layouts(axes, axis_rows(axes.layout, start, stop))
        repeats = repeats_of(axes, layout)
        self.rejected = Counter(count_broken(status, repeats))
        if not keep_impossible:
            kept = status == VALID
            layout = {name: column[kept] for name, column in layout.items()}
            status, repeats = status[kept], repeats[kept]
        self.layout, self.status = layout, status
        self.kept = repeats  # strategies that every layout becomes
        self.possible = int(repeats[status == VALID].sum())
        if may_break_late(axes.free, axes.model):
            columns = Multiplied(layout, axes.free)
            found, keep, late = late_status(axes, columns, status, keep_impossible)
            self.rejected += late
            self.kept = keep.reshape(-1, axes.free_count).sum(axis=1)
            self.possible = int(np.count_nonzero(found[keep] == VALID))
        self.before = np.concatenate(([0], np.cumsum(self.kept)))

    def spread(self) -> Iterator[tuple[str, int]]:
        """Yield axes, and the number of the first strategy with more than one device along each."""
        for name in SPREAD:
            found = np.flatnonzero((self.layout[name] > 1) & (self.kept > 0))
            if found.size:
                yield name, int(self.before[found[0]])

    def part(self, start: int, stop: int) -> StrategyGrid:
        """Return strategies of this slab, by their number in it."""
        first = int(np.searchsorted(self.before, start, side="right")) - 1
        last = int(np.searchsorted(self.before, stop, side="left"))
        layout: dict[str, Integers] = {
            name: column[first:last] for name, column in self.layout.items()
        }
        columns = Multiplied(layout, self.axes.free)
        status, keep, _ = late_status(
            self.axes, columns, self.status[first:last], self.keep_impossible
        )
        before = int(self.before[first])
        chosen = np.flatnonzero(keep)[start - before : stop - before]
        return strategies_of(self.axes, columns, status, chosen)
