"""A branch of a search: what its parts need and take at least, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.table import Table
from perfmodel.hwprofiles.rows import memory_width
from perfmodel.kernels.variables import RATE
from perfmodel.software.framework import Framework, product
from perfmodel.store.results import decide_safely
from perfmodel.strategy.factors import AWAY, OUTER, Space
from perfmodel.strategy.grid import StrategyGrid, attended_lengths
from perfmodel.strategy.rules import PAIRED_STAGE
from perfmodel.sweeps.sweep import Problem, sweep_problems
from perfmodel.training.best_layout import Ways
from perfmodel.training.bounds import SLACK, Bounds, Open, lower_bounds
from perfmodel.training.flops import model_flops_per_token

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

TINY = 1e-30  # [s]
PASSES = (
    *("forward_time", "backward_time", "recompute_time", "host_time"),
    *("tensor_parallel_exposed", "context_parallel_exposed"),
)


class Nodes(NamedTuple):
    """Parts of a branch: layouts with positions on the outer axes, and bounds of each."""

    layout: Integers
    document: Integers
    padding: Integers
    way: Integers  # of `Ways`; -1: all that recompute some layers, or several as one
    sharding: Integers  # of `Shardings`; -1: all
    weight: Integers  # strategies
    passes: Floats  # of `Bounds` [s]
    compute: Floats
    shown: Floats
    floor: Floats  # of `Branch.floor` [s]

    def take(self, index: Any) -> Nodes:
        """Return some of them."""
        return Nodes(*(column[index] for column in self))

    @property
    def bound(self) -> Floats:
        """Time of the step, at least [s]."""
        return np.maximum(np.maximum(self.compute, self.floor), self.passes + self.shown)


@dataclass(frozen=True, slots=True)
class Branch:
    """All strategies of a space on one device in one precision.

    Attributes
    ----------
    problem, row : int
        Number of the problem, and of the hardware.
    space, software, hardware
        What they are.
    framework : Framework
        The software as it is in this precision.
    precision : int
        Position in the values of that axis.
    ways : Ways
    peak : float
        Of the device in that precision [FLOP/s].
    by : str
        What strategies are ranked by.
    safe : bool
        A strategy fits where the 90th percentile of its memory does.
    """

    problem: int
    row: int
    space: Space
    software: Framework
    hardware: Hardware
    framework: Framework
    precision: int
    ways: Ways
    peak: float
    by: str
    safe: bool

    def weighed(self, nodes: Nodes) -> Nodes:
        """Return nodes with the number of strategies for which they stand."""
        space, ways = self.space, self.ways
        away = np.array([int(it.counts.sum()) for it in space.away])[space.paired[nodes.layout]]
        several = len(space.layers) - ways.single.size
        recomputed = np.where(nodes.way < 0, several, ways.counts[nodes.way])
        alike = np.diff(space.sharding.start)[nodes.sharding]
        all_of_them = space.sharding.counts[nodes.layout]
        each = np.where(nodes.sharding < 0, all_of_them, alike)
        return nodes._replace(weight=away * recomputed * each)

    def lower(self, nodes: Nodes, activations: tuple[float, ...]) -> Bounds:
        """Return lower bounds of nodes; without a sharding, shown is that of one of them."""
        free = self.space.free
        shares, optimizer, parameters = (free[name] for name in AWAY[::2])
        chosen = nodes.sharding[0] >= 0
        still = Open(
            self.capacity,
            () if chosen else tuple(free["zero_stage"].tolist()),
            activations or tuple(shares.tolist()),
            float(optimizer.max()),
            float(parameters.max()),
            bool((free[AWAY[1]] == PAIRED_STAGE).any()),
        )
        at = self.space.model, self.grid(nodes), self.hardware, self.framework
        return lower_bounds(*at, still, nodes.way < 0)

    @property
    def capacity(self) -> float:
        """Projected memory with which strategies fit, at most [B]."""
        capacity = self.hardware.device.memory.capacity
        if not self.safe:
            return capacity
        return capacity / math.exp(memory_width(self.hardware, product(self.framework)))

    def grid(self, nodes: Nodes, **more: NDArray[Any]) -> StrategyGrid:
        """Return the strategies of nodes: where several ways are open, one that keeps all."""
        space = self.space
        places = np.full(nodes.layout.size, self.precision), nodes.document, nodes.padding
        columns = {name: space.free[name][place] for name, place in zip(OUTER, places, strict=True)}
        first = space.sharding.offset[space.sharding.kind[nodes.layout]]
        sharding = np.where(nodes.sharding < 0, first, nodes.sharding)
        columns |= space.sharding.factor.columns(space.free, sharding)
        ways = space.layers.columns(space.free, self.ways.row[nodes.way])
        columns |= {name: np.where(nodes.way < 0, 0, column) for name, column in ways.items()}
        return space.grid(nodes.layout, **columns, **more)

    def rank(self, nodes: Nodes, least: Floats | None = None) -> Floats:
        """Return the rank of strategies whose step takes so long; less is better."""
        seconds = np.maximum((nodes.bound if least is None else least) * SLACK, TINY)
        if self.by == "step_time":
            return seconds
        layouts, free = self.space.layouts, self.space.free
        tokens = layouts["global_batch_size"][nodes.layout].astype(np.float64)
        tokens *= layouts["sequence_length"][nodes.layout]
        tokens *= 1.0 - free["padding"][nodes.padding]
        rate = tokens / (seconds * self.space.devices)
        if self.by == RATE:
            return -rate
        lengths = {
            "document_length": free["document_length"][nodes.document],
            "sequence_length": layouts["sequence_length"][nodes.layout],
        }
        flops = model_flops_per_token(self.space.model, attended_lengths(lengths), causal=True)
        return -rate * flops / self.peak

    def floor(self, nodes: Nodes, table: Table) -> Floats:
        """Return what steps take at least, whatever is recomputed besides or waits elsewhere [s].

        Neither makes a pass shorter, and what hides behind a longer pass is less than what it is
        longer by; but the host may take the update over, and another stage become the slowest.

        - On one stage the step without the update. So it is in a pipeline where only the
          optimizer's state may wait elsewhere and gradients are reduced once a step: then passes
          stay as they are.
        - Where parameters are not sharded, the passes with their bubble, as the makespan of a
          pipeline only grows with them. Where they are, what the slowest stage and its shards take;
          of what gradients and parameters show, only the first gather of a part comes once, which
          is no more than one of 2 m of what the stage moves.
        """

        def value(name: str) -> Floats:
            return np.asarray(table[name].values[:, 0], np.float64)

        passes = sum(value(name) for name in PASSES)
        zero = table["zero_stage"].values
        plain = passes + np.where(zero == 3, 0.0, value("pipeline_bubble"))
        if self.framework.overlap_expert_parallel:  # what shows depends on the schedule
            return plain
        micro = table["data_parallel"].values * table["micro_batch_size"].values.astype(np.float64)
        first = value("data_parallel_total") * micro / (2.0 * table["global_batch_size"].values)
        moved = np.maximum(value("data_parallel_exposed") - first, 0.0)
        plain += value("expert_parallel_exposed") + np.where(zero == 3, moved, 0.0)
        free = self.space.free
        stays = not free["offload_activations"].any() and not free["offload_parameters"].any()
        same = (table["pipeline_parallel"].values == 1) | (stays & (zero < 2) & (nodes.way >= 0))
        return np.where(same, value("step_time") - value("optimizer_time"), plain)

    def projected(self, nodes: Nodes, **away: NDArray[Any]) -> Table:
        """Return the results of nodes, with nothing elsewhere unless it is said."""
        problem = Problem(self.space.model, self.software, self.grid(nodes, **away))
        table = sweep_problems([problem], [self.hardware])
        if self.safe:
            decide_safely(table)
        return table


def joined(parts: Sequence[Nodes]) -> Nodes:
    """Return nodes one after another."""
    return Nodes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def parts_of(nodes: Nodes, size: int) -> Iterator[Nodes]:
    """Yield so many nodes at a time."""
    for start in range(0, nodes.layout.size, size):
        yield nodes.take(slice(start, start + size))
