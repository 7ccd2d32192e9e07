"""Strategies counted, and built block by block, without ever holding all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import FEWER_VALUES
from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.model.spec import ModelSpec
from perfmodel.strategy.enumerate import Axes, all_axes, families_in, layouts_in, slabs_of
from perfmodel.strategy.grid import BATCH, VALID, Families, StrategyGrid, joined

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.software.framework import Framework

BLOCK = 2**18
"""Strategies of a block; of all variables it takes 100 MB while it is projected."""
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
    model, devices, axes, hardware, framework, keep_impossible
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
    largest : mapping of str to int
        Largest value of every field of whole numbers among the strategies that are kept.

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
        framework: str | Framework | None = None,
        keep_impossible: bool = False,
        block_size: int = BLOCK,
    ) -> None:
        self.axes: Axes = all_axes(model, devices, axes, hardware, framework)
        self.devices = self.axes.devices
        self.block_size = block_size
        self.keep_impossible = keep_impossible
        self._read: tuple[int, _Slab] | None = None
        self.rejected: Counter[str] = Counter()
        self.possible = 0
        if self.axes.rows > MOST_ROWS:
            raise StrategyError(
                f"{self.axes.rows:,} combinations cannot be counted; {FEWER_VALUES}"
            )
        self._spread: dict[str, int] = {}
        self.largest: dict[str, int] = {}
        before = [0]
        self._slabs = list(slabs_of(self.axes, max(min(SLAB, WIDEST // self.axes.free_count), 1)))
        for start, stop in self._slabs:
            slab = _Slab(self.axes, start, stop, keep_impossible)
            self.rejected += slab.rejected
            self.possible += slab.possible
            for name, value in slab.largest():
                self.largest[name] = max(self.largest.get(name, 0), value)
            for name, number in slab.spread():
                self._spread.setdefault(name, before[-1] + number)
            before.append(before[-1] + len(slab.families))
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
        return joined([part for part in self._parts(start, stop) if len(part)]).listed()

    def examples(self) -> StrategyGrid:
        """Return the first strategy, and the first ones that spread along each of the axes."""
        numbers = sorted({0, *self._spread.values()})
        return joined([next(self._parts(it, it + 1)) for it in numbers]).listed()

    def _parts(self, start: int, stop: int) -> Iterator[Families]:
        first = int(np.searchsorted(self._before, start, side="right")) - 1
        last = int(np.searchsorted(self._before, stop, side="left"))
        for number in range(first, last):
            before = int(self._before[number])
            slab = self._slab_of(number)
            yield slab.families.between(max(start - before, 0), stop - before)

    def _slab_of(self, number: int) -> _Slab:
        """Return a slab; the last one is kept, as the next block begins where one ends."""
        if self._read is None or self._read[0] != number:
            self._read = number, _Slab(self.axes, *self._slabs[number], self.keep_impossible)
        return self._read[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}


class _Slab:
    """Some rows of the product of layout axes: the strategies that are kept."""

    def __init__(self, axes: Axes, start: int, stop: int, keep_impossible: bool) -> None:
        layouts = layouts_in(axes, start, stop, keep_impossible)
        self.families, late = families_in(axes, layouts, keep_impossible)
        self.rejected = layouts.rejected + late
        possible = self.families.grid.status == VALID
        self.possible = int(self.families.size[possible].sum())

    def largest(self) -> Iterator[tuple[str, int]]:
        """Yield fields of whole numbers, with the largest value of each."""
        families = self.families
        for spec in FIELDS:
            if spec.kind == "int":
                own = families.batch if spec.name == BATCH else families.grid[spec.name]
                yield spec.name, int(own.max(initial=0))

    def spread(self) -> Iterator[tuple[str, int]]:
        """Yield axes, and the number of the first strategy with more than one device along each."""
        for name in SPREAD:
            found = np.flatnonzero(self.families.grid[name] > 1)
            if found.size:
                yield name, int(self.families.number[found[0]])
