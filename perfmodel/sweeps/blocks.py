"""A sweep block by block: the tables of its blocks are those of the sweep, cut into pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.table import Column, Table
from perfmodel.model.build import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.store.cost import add_cost
from perfmodel.store.netcdf import whole_kind
from perfmodel.store.results import decide_safely
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.strategy.space import BLOCK, Space
from perfmodel.sweeps.several import combinations
from perfmodel.sweeps.sweep import Problem, sweep_problems

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

SMALLEST_BLOCK = 2**14


@dataclass(frozen=True)
class BlockSweep:
    """What is swept, and how; small, so that it can be sent to other processes.

    Attributes
    ----------
    problems : list of Problem
        Those with strategies; their grids have a few examples.
    spaces : list of Space
        All strategies of each.
    hardware : list of Hardware
    dtype, threads, hardware_values
        As of `perfmodel.sweeps.several.sweep`.
    costs : mapping
        What `perfmodel.store.cost.add_cost` takes; nothing for no costs.
    safe : bool
        As of `perfmodel.store.results.decide_safely`.
    scaling : str
        Attribute of the results; "" for none.
    block_size : int
        Strategies of every block but the last.
    rejected : Counter
        Impossible strategies by the name of the rule that they break.
    empty : dict of (str, int) to dict
        Model and devices without a possible strategy -> its rejected ones.
    """

    problems: list[Problem]
    spaces: list[Space]
    hardware: list[Hardware]
    dtype: Any = np.float32
    threads: int | None = None
    hardware_values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)
    safe: bool = False
    scaling: str = ""
    block_size: int = BLOCK
    rejected: Counter[str] = field(default_factory=Counter)
    empty: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of strategies."""
        return sum(len(space) for space in self.spaces)

    @property
    def possible(self) -> int:
        """Number of possible strategies."""
        return sum(space.possible for space in self.spaces)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.count // self.block_size)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first strategy of a block, and the one behind its last."""
        start = number * self.block_size
        return start, min(start + self.block_size, self.count)

    def table(self, start: int, stop: int, progress: Any = None) -> Table:
        """Return the results of some strategies, as they are in those of the whole sweep."""
        table = sweep_problems(
            list(self._problems(start, stop)),
            self.hardware,
            dtype=self.dtype,
            threads=self.threads,
            progress=progress,
            hardware_values=self.hardware_values,
            among=self.problems,
        )
        if self.scaling:
            table.attrs["scaling"] = self.scaling
        if self.safe:
            decide_safely(table)
        if self.costs:
            table = add_cost(table, **self.costs)
        coordinates = dict(table.coords)
        for name, column in coordinates.items():
            if name == "strategy":
                column = Column(column.dims, np.arange(start, stop), column.attrs)
            elif (
                "strategy" in column.dims and column.values.dtype.kind == "i" and not column.labels
            ):
                kind = whole_kind(self._largest(name))  # of all blocks
                column = Column(column.dims, column.values.astype(kind), column.attrs)
            coordinates[name] = column
        return Table(table.data_vars, coordinates, table.attrs, table.sizes)

    def _largest(self, name: str) -> int:
        """Return the largest value of a field that any strategy has."""
        if name == "devices":
            return max(space.devices for space in self.spaces)
        return max(space.largest.get(name, 0) for space in self.spaces)

    def _problems(self, start: int, stop: int) -> Iterator[Problem]:
        before = 0
        for problem, space in zip(self.problems, self.spaces, strict=True):
            first, last = max(start - before, 0), min(stop - before, len(space))
            if first < last:
                yield replace(problem, grid=space.part(first, last))
            before += len(space)


def block_sweep(
    models: Sequence[ModelSpec],
    frameworks: Sequence[Framework],
    devices: Sequence[int],
    axes: Mapping[str, Any],
    *,
    hardware: Sequence[Hardware],
    scaling: str = "strong",
    keep_impossible: bool = False,
    block_size: int | None = None,
    **how: Any,
) -> BlockSweep:
    """Count the strategies of every model on every number of devices, for every software.

    Parameters
    ----------
    models, frameworks, devices, axes, hardware, scaling, keep_impossible
        As of `perfmodel.sweeps.several.enumerate_problems`.
    block_size : int, optional
        Default: `BLOCK` strategy-device pairs.
    **how
        As of `BlockSweep`.

    Raises
    ------
    StrategyError
        As of `enumerate_problems`, but for memory.
    """
    if block_size is None:
        block_size = max(BLOCK >> (len(hardware) - 1).bit_length(), SMALLEST_BLOCK)
    problems, spaces = [], []
    rejected: Counter[str] = Counter()
    empty = {}
    for model, count, given in combinations(models, frameworks, devices, axes, scaling):
        space = Space(
            model,
            count,
            given,
            hardware=hardware,
            keep_impossible=keep_impossible,
            block_size=block_size,
        )
        for name, number in space.rejected.items():
            rejected[name] += number * len(frameworks)
        if not space.possible:
            empty[model.name, count] = space.rejected
        if len(space):
            examples: StrategyGrid = space.examples()
            problems += [Problem(model, framework, examples) for framework in frameworks]
            spaces += [space] * len(frameworks)
    return BlockSweep(
        problems,
        spaces,
        list(hardware),
        scaling=scaling if len(devices) > 1 else "",
        block_size=block_size,
        rejected=rejected,
        empty=empty,
        **how,
    )
