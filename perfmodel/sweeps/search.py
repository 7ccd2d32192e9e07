"""Find the best strategies of spaces that are too large to be swept, and prove it.

Branch and bound in four steps, each of which proves away what it can:

1. *Layouts* (degrees, batches, schedule), with precision, documents and padding, and the level of
   recomputation: bounds of memory and compute (`perfmodel.training.bounds`). Best first:
2. how parameters are sharded and where ranks lie: the same bounds with the communication inside
   layers, then the projection without what is decided below, which bounds that;
3. which layers are recomputed: the same bounds of exactly these stages, then the projection;
4. what waits elsewhere, where that may be better: the projection.

Whatever is projected is projected by the ordinary sweep, and ranks as in its results: what is equal
stays in the order in which strategies are enumerated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.table import Table
from perfmodel.operations.flops import model_flops_per_token
from perfmodel.operations.priced import matrix_rates
from perfmodel.operations.uncertainty import memory_width
from perfmodel.software.framework import Framework
from perfmodel.strategy.enumerate import FREE_AXES
from perfmodel.strategy.factors import (
    AWAY,
    LAYERS,
    OUTER,
    SHARDING,
    Away,
    Space,
    strategy_space,
)
from perfmodel.strategy.grid import StrategyGrid, attended_lengths
from perfmodel.strategy.rules import PAIRED_STAGE
from perfmodel.sweeps.ranked import Ranked
from perfmodel.sweeps.results import LARGER_IS_BETTER, RATE, best, check_top, decide_safely
from perfmodel.sweeps.several import combinations, listed
from perfmodel.sweeps.sweep import Problem, hardware_rows, sweep_problems
from perfmodel.training.bounds import SLACK, Bounds, Open, lower_bounds
from perfmodel.training.project import check_host, framework_of_run
from perfmodel.training.ways import Ways, distinct_ways

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.build import ModelSpec

Values = NDArray[np.float64]
OBJECTIVES = (RATE, "step_time", "model_flops_utilization")
"""What a search can rank by: what follows from the time of a step, once a layout is chosen."""
BOUNDED = 1 << 14
"""Representatives whose bounds are found in one call, at most."""
PROJECTED = 1 << 16
"""Strategies that are projected in one call, at most."""
FIRST = 256
"""Of either in the first calls, while nothing good is known yet."""
TOGETHER, MOST_TOGETHER = 64, 1024
"""Layouts whose turn it is together, at first and later."""
TINY = 1e-30  # [s]
PASSES = (
    *("forward_time", "backward_time", "recompute_time", "host_time"),
    *("tensor_parallel_exposed", "context_parallel_exposed"),
)
REASONS = ("memory", "compute", "communication")


class Searched(NamedTuple):
    """One problem of a search: a space of strategies, and the software that runs them."""

    space: Space
    framework: Framework


@dataclass(slots=True)
class SearchResult:
    """What a search has found, and how.

    Attributes
    ----------
    table : Table or None
        Results of the best strategies, on all rows of hardware, in the order of their enumeration;
        None where none fits.
    possible : int
        Strategy-device pairs of the whole space.
    rejected : dict of str to int
        Impossible strategies by the name of the rule that they break.
    proved : dict of str to int
        Pairs that a bound of memory, of compute, or of compute with communication proved away.
    evaluated : int
        Pairs that were projected.
    lacking : dict of str to int
        Pairs by the hardware that has no matrix rate for their precision.
    unsettled : int
        Pairs that were left when the time was over.
    bound : float or None
        No unsettled strategy ranks better than this; None where none is left.
    least_memory : dict of str to float
        What any strategy needs at least, by hardware [B].
    seconds : float
    top : int
    by : str
        As searched for.
    """

    table: Table | None = None
    possible: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    proved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    evaluated: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    unsettled: int = 0
    bound: float | None = None
    least_memory: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    top: int = 5
    by: str = RATE

    @property
    def strategies(self) -> Ranked:
        """The best strategies as dictionaries, best first."""
        return Ranked() if self.table is None else best(self.table, self.top, by=self.by)

    @property
    def gap(self) -> float:
        """What the best strategy could still be bettered by, relative to it; 0: proved."""
        if self.bound is None:
            return 0.0
        found = self.strategies
        if not found:
            return math.inf
        value = float(found[0][self.by])
        return max(
            0.0,
            self.bound / value - 1.0 if self.by in LARGER_IS_BETTER else 1.0 - self.bound / value,
        )


def search(
    models: ModelSpec | str | Sequence[ModelSpec | str],
    hardware: Hardware | str | Sequence[Hardware | str],
    devices: int | Sequence[int],
    *,
    sequence_length: int | Sequence[int],
    global_batch_size: int | Sequence[int],
    framework: str | Framework | Sequence[str | Framework] = "megatron",
    scaling: str = "strong",
    top: int = 5,
    by: str = RATE,
    safe: bool = False,
    seconds: float | None = None,
    **axes: Any,
) -> SearchResult:
    """Find the best strategies of a space that is too large to be swept.

    Parameters
    ----------
    models : ModelSpec or str, or sequence of them
    hardware : Hardware or str, or sequence of them
    devices : int or sequence of int
    sequence_length, global_batch_size, **axes
        As of `strategy_grid`.
    framework : str or Framework, or sequence of them
    scaling : {"strong", "weak"}
        As of `sweep_several`.
    top : int
        How many.
    by : str
        One of `OBJECTIVES`.
    safe : bool
        A strategy fits where the 90th percentile of its memory does.
    seconds : float, optional
        Stop then, and say how much better what is left could be.

    Returns
    -------
    SearchResult
        Its ``strategies`` are what ``best`` of a sweep of the whole space would give.

    Raises
    ------
    StrategyError
        As of `sweep_several`.
    DataError
        As of `search_spaces`.

    Examples
    --------
    >>> found = search("gpt3-175b", ["dgx-h100", "dgx-b200"], [1024, 2048], mapping="all",
    ...                sequence_length=2048, global_batch_size=1536)
    >>> found.strategies
    """
    from perfmodel.model.presets import load_model
    from perfmodel.software.framework import load_framework
    from perfmodel.strategy.enumerate import describe_rejected

    rows = hardware_rows(hardware)
    counts = listed(devices)
    given = {"sequence_length": sequence_length, "global_batch_size": global_batch_size, **axes}
    problems = searched_problems(
        [load_model(item) for item in listed(models)],
        [load_framework(item) for item in listed(framework)],
        counts,
        given,
        hardware=rows,
        scaling=scaling,
    )
    found = search_spaces(problems, rows, top=top, by=by, safe=safe, seconds=seconds)
    if not found.possible:
        raise StrategyError(describe_rejected(found.rejected, max(counts)))
    return found


def searched_problems(
    models: Sequence[ModelSpec],
    frameworks: Sequence[Framework],
    devices: Sequence[int],
    axes: Mapping[str, Any],
    *,
    hardware: Sequence[Hardware],
    scaling: str = "strong",
) -> list[Searched]:
    """Return the space of every model on every number of devices, for every software.

    Takes what `perfmodel.sweeps.several.enumerate_problems` takes, in the order of its problems.
    """
    found = []
    for model, count, given in combinations(models, frameworks, devices, axes, scaling):
        space = strategy_space(model, count, given, hardware=hardware)
        found += [Searched(space, framework) for framework in frameworks]
    return found


def search_spaces(
    problems: Sequence[Searched],
    hardware: Sequence[Hardware],
    *,
    top: int = 5,
    by: str = RATE,
    safe: bool = False,
    seconds: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
) -> SearchResult:
    """Return the best strategies of several spaces on several devices.

    Parameters
    ----------
    problems : sequence of Searched
    hardware : sequence of Hardware
    top : int
        How many.
    by : str
        One of `OBJECTIVES`.
    safe : bool
        As of `perfmodel.sweeps.results.decide_safely`.
    seconds : float, optional
        Stop then, and say how much better what is left could be.
    progress : callable, optional
        Called with the pairs that are settled, and with all.
    hardware_values
        As of `perfmodel.sweeps.kept.sweep`.

    Raises
    ------
    DataError
        Another objective, or a number of strategies that is not positive.
    StrategyError
        Something may wait with a host that a profile does not have.
    """
    if by not in OBJECTIVES:
        raise DataError(f"a search cannot rank by '{by}'; it can by {', '.join(OBJECTIVES)}")
    check_top(top)
    start = time.monotonic()
    result = SearchResult(top=top, by=by)
    result.possible = sum(it.space.possible for it in problems) * len(hardware)
    for it in problems:
        for name, count in it.space.rejected.items():
            result.rejected[name] = result.rejected.get(name, 0) + count
    end = None if seconds is None else start + seconds
    found = _Search(problems, hardware, top, by, safe, end, progress, result)
    found.run()
    result.table = found.winners(hardware_values)
    result.seconds = time.monotonic() - start
    return result


@dataclass(frozen=True, slots=True)
class _Branch:
    """All strategies of a space on one device in one precision.

    Attributes
    ----------
    problem, row : int
        Number of the problem, and of the hardware.
    space, framework, hardware
        What they are; the framework as it is in this precision.
    precision : int
        Position in the values of that axis.
    ways : Ways
    peak : float
        Of the device in that precision [FLOP/s].
    """

    problem: int
    row: int
    space: Space
    framework: Framework
    hardware: Hardware
    precision: int
    ways: Ways
    peak: float


class _Nodes(NamedTuple):
    """Parts of a branch: layouts with positions on the outer axes, and bounds of each."""

    layout: Integers
    document: Integers
    padding: Integers
    way: Integers  # of `Ways`; -1: all that recompute some layers, or several as one
    sharding: Integers  # of `Shardings`; -1: all
    weight: Integers  # strategies
    passes: Values  # of `Bounds` [s]
    compute: Values
    shown: Values
    floor: Values  # of `_Search._floor` [s]

    def take(self, index: Any) -> _Nodes:
        """Return some of them."""
        return _Nodes(*(column[index] for column in self))

    @property
    def bound(self) -> Values:
        """Time of the step, at least [s]."""
        return np.maximum(np.maximum(self.compute, self.floor), self.passes + self.shown)


class _Search:
    """A search while it goes on: the best so far, and what is settled."""

    def __init__(
        self,
        problems: Sequence[Searched],
        hardware: Sequence[Hardware],
        top: int,
        by: str,
        safe: bool,
        end: float | None,
        progress: Callable[[int, int], None] | None,
        result: SearchResult,
    ) -> None:
        self.problems, self.hardware = problems, hardware
        self.top, self.by, self.safe, self.end, self.progress = top, by, safe, end, progress
        self.result = result
        # The best so far: rank, problem, layout, positions on FREE_AXES, hardware.
        self.best = np.zeros((0, len(FREE_AXES) + 4))
        self.block = FIRST
        self.trial = False  # only for what is good: nothing is settled
        self.left = np.inf  # rank of the best bound among what is not settled

    @property
    def limit(self) -> float:
        """Rank that a strategy may have at most to be among the best."""
        return float(self.best[-1, 0]) if len(self.best) == self.top else np.inf

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return self.end is not None and time.monotonic() > self.end

    def run(self) -> None:
        """Go through all branches, best layouts first."""
        branches = list(self._branches())
        listed = [self._layouts(branch) for branch in branches]
        numbers = np.repeat(np.arange(len(branches)), [it.layout.size for it in listed])
        places = [np.arange(it.layout.size) for it in listed]
        rows = np.concatenate([np.zeros(0, np.int64), *places])
        ranked = [self._rank(*both) for both in zip(branches, listed, strict=True)]
        ranks = np.concatenate([np.zeros(0), *ranked])
        order = np.argsort(ranks, kind="stable")
        ways = [branches[number].ways for number in range(len(branches))]
        more = any(len(it.members) > it.single.size for it in ways)
        more |= any(len(away.factor) > 1 for it in self.problems for away in it.space.away)
        single = np.concatenate([np.zeros(0, bool), *(it.way >= 0 for it in listed)])[order]

        def descend(chosen: Integers) -> int:
            """Go through so many of these layouts as may be good enough."""
            start, step = 0, TOGETHER
            while start < chosen.size and ranks[chosen[start]] <= self.limit and not self.late:
                some = chosen[start : start + step]
                for number in np.unique(numbers[some]):
                    nodes = listed[number].take(rows[some[numbers[some] == number]])
                    self._descend(branches[number], self._good(branches[number], nodes))
                start, step = start + step, min(2 * step, MOST_TOGETHER)
            return start

        if more:  # what is found at once proves away much of what takes long
            self.trial = True
            descend(order[single])
            self.trial = False
        start = descend(order)
        rest = order[start:]
        for number in np.unique(numbers[rest]):
            self._leave(branches[number], listed[number].take(rows[rest[numbers[rest] == number]]))
        if self.left < np.inf:
            self.result.bound = -self.left if self.by in LARGER_IS_BETTER else self.left
        self.result.unsettled = self.result.possible - self._settled()

    def _branches(self) -> Iterator[_Branch]:
        lacking = self.result.lacking
        for number, (space, framework) in enumerate(self.problems):
            if not space.possible:
                continue
            used = space.away[int(space.paired.max())].factor
            away = used.columns(space.free, slice(None))
            one = space.grid(np.zeros(len(used), np.int64), **away)
            for row, device in enumerate(self.hardware):
                check_host(one, device)
                for precision in np.flatnonzero(space.precisions).tolist():
                    code = int(space.free["precision"][precision])
                    peak = float(matrix_rates(device)[code])
                    if not peak > 0.0:
                        of = space.possible // int(space.precisions.sum())
                        lacking[device.name] = lacking.get(device.name, 0) + of
                        continue
                    run = framework_of_run(framework, space.model, device, _of(one, code))
                    ways = distinct_ways(space, run.stage_split)
                    yield _Branch(number, row, space, run, device, precision, ways, peak)

    def _layouts(self, branch: _Branch) -> _Nodes:
        """Return the layouts of a branch that fit, with their compute."""
        space = branch.space
        layout, document = np.nonzero(space.documents & (space.sharding.counts > 0)[:, None])
        classes = branch.ways.single
        if classes.size < len(space.layers):
            classes = np.append(classes, -1)
        paddings = np.arange(space.free["padding"].size)
        found = np.broadcast_arrays(
            layout[:, None, None], document[:, None, None], paddings[:, None], classes
        )
        layout, document, padding, way = (np.ravel(column) for column in found)
        blank, unknown = np.zeros(layout.size), np.full(layout.size, -1)
        chosen = layout, document, padding, way, unknown
        nodes = _Nodes(*chosen, unknown, blank, blank, blank, blank)
        return self._bounded(branch, self._weighed(branch, nodes))

    def _descend(self, branch: _Branch, nodes: _Nodes) -> None:
        """Settle some layouts."""
        groups, ways = branch.space.sharding, branch.ways
        owner, sharding = _listed(groups.offset, groups.kind[nodes.layout])
        nodes = self._weighed(branch, nodes.take(owner)._replace(sharding=sharding))
        nodes = self._bounded(branch, nodes)
        later, elsewhere = [nodes.take(slice(0, 0))], [nodes.take(slice(0, 0))]
        for block in self._blocks(branch, nodes, 1):
            table = self._projected(branch, block)
            floors = block._replace(floor=self._floor(branch, block, table))
            later.append(floors.take(block.way < 0))
            single = np.flatnonzero(block.way >= 0)
            elsewhere.append(self._entered(branch, floors, table, single))
        if self.trial:
            return
        several = len(branch.space.layers) - ways.single.size
        for block in self._blocks(branch, self._good(branch, _joined(later)), several):
            owner, way = _listed(ways.offset, ways.kind[block.layout])
            chosen = self._weighed(branch, block.take(owner)._replace(way=way))
            chosen = self._bounded(branch, chosen)
            for some in self._blocks(branch, chosen, 1):
                table = self._projected(branch, some)
                floors = some._replace(floor=self._floor(branch, some, table))
                elsewhere.append(self._entered(branch, floors, table, slice(None)))
        for some in _parts(_joined(elsewhere), PROJECTED):
            self._elsewhere(branch, self._good(branch, some))
        self._tell()

    def _blocks(self, branch: _Branch, nodes: _Nodes, each: int) -> Iterator[_Nodes]:
        """Yield nodes that may still be good enough, best first, and settle the others.

        They come in blocks of so many that `each` of a node are no more than a call takes.
        """
        ranks = self._rank(branch, nodes)
        order = np.argsort(ranks, kind="stable")
        nodes, ranks = nodes.take(order), ranks[order]
        start = 0
        while start < ranks.size and ranks[start] <= self.limit and not self.late:
            stop = start + max(1, self.block // each)
            some = self._good(branch, nodes.take(slice(start, stop)))
            start, self.block = stop, min(2 * self.block, PROJECTED)
            if some.layout.size:
                yield some
        self._leave(branch, nodes.take(slice(start, None)))

    # ------------------------------------------------------------ bounds

    def _bounded(
        self, branch: _Branch, nodes: _Nodes, activations: tuple[float, ...] = ()
    ) -> _Nodes:
        """Return nodes that fit and may be good enough, with their bounds.

        With these shares of `activations` elsewhere; without any, all that there are.
        """
        kept = [nodes.take(slice(0, 0))]
        for some in _parts(nodes, BOUNDED):
            some = self._good(branch, some)
            if not some.layout.size:
                continue
            least = self._lower(branch, some, activations)
            name = branch.hardware.name
            lowest = min(self.result.least_memory.get(name, np.inf), float(least.memory.min()))
            self.result.least_memory[name] = lowest
            fits = least.memory * SLACK <= self._capacity(branch)
            self._count("memory", some.weight[~fits])
            some = some._replace(passes=least.passes, compute=least.compute)
            if some.sharding[0] >= 0:
                some = some._replace(shown=least.shown)
            kept.append(self._good(branch, some.take(fits)))
        return _joined(kept)

    def _weighed(self, branch: _Branch, nodes: _Nodes) -> _Nodes:
        """Return nodes with the number of strategies for which they stand."""
        space, ways = branch.space, branch.ways
        away = np.array([int(it.counts.sum()) for it in space.away])[space.paired[nodes.layout]]
        several = len(space.layers) - ways.single.size
        recomputed = np.where(nodes.way < 0, several, ways.counts[nodes.way])
        alike = np.diff(space.sharding.start)[nodes.sharding]
        all_of_them = space.sharding.counts[nodes.layout]
        each = np.where(nodes.sharding < 0, all_of_them, alike)
        return nodes._replace(weight=away * recomputed * each)

    def _lower(self, branch: _Branch, nodes: _Nodes, activations: tuple[float, ...]) -> Bounds:
        """Return lower bounds of nodes; without a sharding, shown is that of one of them."""
        free = branch.space.free
        shares, optimizer, parameters = (free[name] for name in AWAY[::2])
        chosen = nodes.sharding[0] >= 0
        still = Open(
            self._capacity(branch),
            () if chosen else tuple(free["zero_stage"].tolist()),
            activations or tuple(shares.tolist()),
            float(optimizer.max()),
            float(parameters.max()),
            bool((free[AWAY[1]] == PAIRED_STAGE).any()),
        )
        at = branch.space.model, self._grid(branch, nodes), branch.hardware, branch.framework
        return lower_bounds(*at, still, nodes.way < 0)

    def _capacity(self, branch: _Branch) -> float:
        """Return the projected memory with which strategies fit, at most [B]."""
        capacity = branch.hardware.device.memory.capacity
        return capacity / math.exp(memory_width(branch.hardware)) if self.safe else capacity

    def _grid(self, branch: _Branch, nodes: _Nodes, **more: NDArray[Any]) -> StrategyGrid:
        """Return the strategies of nodes: where several ways are open, one that keeps all."""
        space = branch.space
        places = np.full(nodes.layout.size, branch.precision), nodes.document, nodes.padding
        columns = {name: space.free[name][place] for name, place in zip(OUTER, places, strict=True)}
        first = space.sharding.offset[space.sharding.kind[nodes.layout]]
        sharding = np.where(nodes.sharding < 0, first, nodes.sharding)
        columns |= space.sharding.factor.columns(space.free, sharding)
        ways = space.layers.columns(space.free, branch.ways.row[nodes.way])
        columns |= {name: np.where(nodes.way < 0, 0, column) for name, column in ways.items()}
        return space.grid(nodes.layout, **columns, **more)

    def _rank(self, branch: _Branch, nodes: _Nodes, least: Values | None = None) -> Values:
        """Return the rank of strategies whose step takes so long; less is better."""
        seconds = np.maximum((nodes.bound if least is None else least) * SLACK, TINY)
        if self.by == "step_time":
            return seconds
        layouts, free = branch.space.layouts, branch.space.free
        tokens = layouts["global_batch_size"][nodes.layout].astype(np.float64)
        tokens *= layouts["sequence_length"][nodes.layout]
        tokens *= 1.0 - free["padding"][nodes.padding]
        rate = tokens / (seconds * branch.space.devices)
        if self.by == RATE:
            return -rate
        lengths = {
            "document_length": free["document_length"][nodes.document],
            "sequence_length": layouts["sequence_length"][nodes.layout],
        }
        flops = model_flops_per_token(branch.space.model, attended_lengths(lengths), causal=True)
        return -rate * flops / branch.peak

    def _good(self, branch: _Branch, nodes: _Nodes) -> _Nodes:
        """Count the nodes whose bounds rank behind the best so far, and return the others."""
        slow = self._rank(branch, nodes, nodes.compute) > self.limit
        talks = ~slow & (self._rank(branch, nodes) > self.limit)
        self._count("compute", nodes.weight[slow])
        self._count("communication", nodes.weight[talks])
        return nodes.take(~(slow | talks))

    def _leave(self, branch: _Branch, nodes: _Nodes) -> None:
        """Count the nodes that are proved away now; the others stay open."""
        rest = self._good(branch, nodes)
        if self.trial:
            return
        self.left = min(self.left, float(self._rank(branch, rest).min(initial=np.inf)))

    def _floor(self, branch: _Branch, nodes: _Nodes, table: Table) -> Values:
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

        def value(name: str) -> Values:
            return np.asarray(table[name].values[:, 0], np.float64)

        passes = sum(value(name) for name in PASSES)
        zero = table["zero_stage"].values
        plain = passes + np.where(zero == 3, 0.0, value("pipeline_bubble"))
        if branch.framework.overlap_expert_parallel:  # what shows depends on the schedule
            return plain
        micro = table["data_parallel"].values * table["micro_batch_size"].values.astype(np.float64)
        first = value("data_parallel_total") * micro / (2.0 * table["global_batch_size"].values)
        moved = np.maximum(value("data_parallel_exposed") - first, 0.0)
        plain += value("expert_parallel_exposed") + np.where(zero == 3, moved, 0.0)
        free = branch.space.free
        stays = not free["offload_activations"].any() and not free["offload_parameters"].any()
        same = (table["pipeline_parallel"].values == 1) | (stays & (zero < 2) & (nodes.way >= 0))
        return np.where(same, value("step_time") - value("optimizer_time"), plain)

    # ------------------------------------------------------------ what is exact

    def _entered(self, branch: _Branch, nodes: _Nodes, table: Table, chosen: Any) -> _Nodes:
        """Enter what some nodes come to with nothing elsewhere, and return the rest of them."""
        nodes, rows = nodes.take(chosen), np.arange(nodes.layout.size)[chosen]
        kind, weight = branch.space.paired[nodes.layout], nodes.weight.copy()
        for number, held in enumerate(branch.space.away):
            mine = np.flatnonzero(kind == number)
            if held.nothing >= 0:
                nothing = np.full(rows.size, held.nothing)
                self._enter(branch, table, rows, mine, nodes, held, nothing)
                several = int(held.counts.sum())
                weight[mine] = weight[mine] // several * (several - held.counts[held.nothing])
        return nodes._replace(weight=weight).take(weight > 0)

    def _elsewhere(self, branch: _Branch, nodes: _Nodes) -> None:
        """Project what some nodes may leave elsewhere: share by share of the activations."""
        space = branch.space
        for number, held in enumerate(space.away):
            mine = nodes.take(space.paired[nodes.layout] == number)
            total = int(held.counts.sum()) - int(held.counts[held.nothing]) * (held.nothing >= 0)
            rest = np.flatnonzero(np.arange(len(held.factor)) != held.nothing)
            share = held.factor.index[rest, 0]
            for place in np.unique(share) if mine.layout.size else ():
                those = rest[share == place]
                times = int(held.counts[those].sum())
                some = mine._replace(weight=mine.weight // total * times)
                amount = (float(space.free[AWAY[0]][place]),)
                if space.free[AWAY[0]].size > 1:
                    some = self._bounded(branch, some, amount)
                for block in self._blocks(branch, some, those.size):
                    owner = np.repeat(np.arange(block.layout.size), those.size)
                    chosen = np.tile(those, block.layout.size)
                    several = block.take(owner)
                    away = held.factor.columns(space.free, chosen)
                    table = self._projected(branch, several, **away)
                    rows = np.arange(owner.size)
                    self._enter(branch, table, rows, rows, several, held, chosen)

    def _projected(self, branch: _Branch, nodes: _Nodes, **away: NDArray[Any]) -> Table:
        """Return the results of nodes, with nothing elsewhere unless it is said."""
        space, framework = branch.space, self.problems[branch.problem].framework
        grid = self._grid(branch, nodes, **away)
        table = sweep_problems([Problem(space.model, framework, grid)], [branch.hardware])
        if self.safe:
            decide_safely(table)
        return table

    def _places(self, branch: _Branch, nodes: _Nodes) -> Integers:
        """Return layouts and positions on outer axes; 0 on the others."""
        found = np.zeros((nodes.layout.size, 1 + len(FREE_AXES)), np.int64)
        found[:, 0] = nodes.layout
        places = np.full(nodes.layout.size, branch.precision), nodes.document, nodes.padding
        for name, place in zip(OUTER, places, strict=True):
            found[:, 1 + FREE_AXES.index(name)] = place
        return found

    def _enter(
        self,
        branch: _Branch,
        table: Table,
        rows: Integers,
        mine: Integers,
        nodes: _Nodes,
        held: Away,
        chosen: Integers,
    ) -> None:
        """Count projected strategies, and take the best of them.

        Those of `nodes` that are `mine`; `rows` are where nodes are in the table. Each stands for
        all whose way to recompute, sharding and what they leave elsewhere (the `chosen` of `held`)
        come to the same.
        """
        ways, shardings = branch.ways, branch.space.sharding
        alike = ways.counts[nodes.way[mine]] * np.diff(shardings.start)[nodes.sharding[mine]]
        if not self.trial:
            self.result.evaluated += int((alike * held.counts[chosen[mine]]).sum())
        values = table[self.by].values[rows[mine], 0].astype(np.float64)
        ranks = -values if self.by in LARGER_IS_BETTER else values
        good = table["fits"].values[rows[mine], 0].astype(bool) & (ranks <= self.limit)
        ranks, rows = ranks[good], mine[good]
        if not ranks.size:
            return
        if ranks.size > self.top:  # with all that are equal
            few = ranks <= np.partition(ranks, self.top - 1)[self.top - 1]
            ranks, rows = ranks[few], rows[few]
        some = nodes.take(rows)
        entered = np.zeros((rows.size, self.best.shape[1]))
        entered[:, 0], entered[:, 1], entered[:, -1] = ranks, branch.problem, branch.row
        entered[:, 2:-1] = self._places(branch, some)
        owner = np.arange(rows.size)
        for names, lists in (
            (LAYERS, [branch.space.layers.index[ways.members[way]] for way in some.way]),
            (
                SHARDING,
                [
                    shardings.members[shardings.start[number] : shardings.start[number + 1]]
                    for number in some.sharding
                ],
            ),
            (AWAY, [held.members[number] for number in chosen[rows]]),
        ):
            counts = np.array([len(it) for it in lists])[owner]
            index = np.concatenate([lists[number] for number in owner])
            entered, owner = np.repeat(entered, counts, axis=0), np.repeat(owner, counts)
            entered[:, [3 + FREE_AXES.index(name) for name in names]] = index
        self.best = np.unique(np.concatenate((self.best, entered)), axis=0)[: self.top]

    def winners(self, hardware_values: Mapping[str, Sequence[float]] | None) -> Table | None:
        """Return the results of the best strategies, as they are enumerated."""
        if not len(self.best):
            return None
        strategies = np.unique(self.best[:, 1:-1].astype(np.int64), axis=0)
        problems = []
        for number in np.unique(strategies[:, 0]).tolist():
            space, framework = self.problems[number]
            mine = strategies[strategies[:, 0] == number]
            columns = {
                name: space.free[name][mine[:, 2 + place]] for place, name in enumerate(FREE_AXES)
            }
            grid = space.grid(mine[:, 1], **columns)
            problems.append(Problem(space.model, framework, grid))
        table = sweep_problems(problems, self.hardware, hardware_values=hardware_values)
        if self.safe:
            decide_safely(table)
        return table

    # ------------------------------------------------------------ counts

    def _count(self, reason: str, weights: Integers) -> None:
        if not self.trial:
            self.result.proved[reason] += int(weights.sum())

    def _settled(self) -> int:
        counts = (*self.result.proved.values(), *self.result.lacking.values())
        return sum(counts) + self.result.evaluated

    def _tell(self) -> None:
        if self.progress:
            self.progress(self._settled(), self.result.possible)


def _of(grid: StrategyGrid, precision: int) -> StrategyGrid:
    """Return the first strategy of a grid in another precision."""
    one = grid.take(slice(0, 1))
    columns = {**one.columns, "precision": np.array([precision])}
    return StrategyGrid(one.devices, columns, one.status)


def _joined(parts: Sequence[_Nodes]) -> _Nodes:
    return _Nodes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _parts(nodes: _Nodes, size: int) -> Iterator[_Nodes]:
    for start in range(0, nodes.layout.size, size):
        yield nodes.take(slice(start, start + size))


def _listed(offset: Integers, kind: Integers) -> tuple[Integers, Integers]:
    """Return the lists of several kinds, one after another: the place of each, and its rows."""
    counts = np.diff(offset)[kind]
    owner = np.repeat(np.arange(kind.size), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(owner.size) - starts[owner] + offset[kind][owner]
