"""Find the best strategies of spaces that are too large to be swept, and prove it.

Branch and bound in four steps, each of which proves away what it can:

1. *Layouts* (degrees, batches, schedule), with precision, documents and padding, and the level of
   recomputation: bounds of memory and compute (`perfmodel.training.bounds`). They are gone through
   best first, and those whose turn it is bounded by the communication that cannot hide, too.
2. Which layers each recomputes: the same bounds, of exactly these stages.
3. How parameters are sharded and where ranks lie: projected exactly, with nothing elsewhere.
4. What waits elsewhere, where that may be better: projected exactly.

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

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.operations.flops import model_flops_per_token
from perfmodel.operations.priced import matrix_rates
from perfmodel.operations.uncertainty import memory_width
from perfmodel.software.framework import Framework
from perfmodel.strategy.enumerate import FREE_AXES
from perfmodel.strategy.grid import StrategyGrid, attended_lengths
from perfmodel.strategy.rules import PAIRED_STAGE
from perfmodel.strategy.space import AWAY, LAYERS, OUTER, SHARDING, Away, Factor, Groups, Space
from perfmodel.sweeps.results import LARGER_IS_BETTER, RATE, decide_safely
from perfmodel.sweeps.sweep import Problem, sweep_problems
from perfmodel.training.bounds import SLACK, Bounds, Open, lower_bounds
from perfmodel.training.project import Workload, check_host, framework_of_run
from perfmodel.training.ways import Ways, distinct_ways

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

Values = NDArray[np.float64]
OBJECTIVES = (RATE, "step_time", "model_flops_utilization")
"""What a search can rank by: what follows from the time of a step, once a layout is chosen."""
BOUNDED = 1 << 14
"""Representatives whose bounds are found in one call, at most."""
PROJECTED = 1 << 16
"""Strategies that are projected in one call, at most."""
FIRST = 256
"""Of either in the first calls, while nothing good is known yet."""
TOGETHER = 16
"""Layouts whose turn it is together, at first."""
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
        As of `perfmodel.sweeps.sweep.sweep`.

    Raises
    ------
    DataError
        Another objective, or a number of strategies that is not positive.
    StrategyError
        Something may wait with a host that a profile does not have.
    """
    if by not in OBJECTIVES:
        raise DataError(f"a search cannot rank by '{by}'; it can by {', '.join(OBJECTIVES)}")
    if top < 1:
        raise DataError(f"top: {top} is not a positive number of strategies")
    start = time.monotonic()
    result = SearchResult()
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
    placements : Groups
        Of `Space.placements`.
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
    placements: Groups
    ways: Ways
    peak: float


class _Nodes(NamedTuple):
    """Parts of a branch: layouts with positions on the outer axes, and bounds of each."""

    layout: Integers
    document: Integers
    padding: Integers
    way: Integers  # of `Ways`; -1: all that recompute some layers, or several as one
    weight: Integers  # strategies
    passes: Values  # of `Bounds` [s]
    compute: Values
    shown: Values

    def take(self, index: Any) -> _Nodes:
        """Return some of them."""
        return _Nodes(*(column[index] for column in self))

    @property
    def bound(self) -> Values:
        """Time of the step, at least [s]."""
        return np.maximum(self.compute, self.passes + self.shown)


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
        self.left = np.inf  # rank of the best bound among what is not settled

    @property
    def limit(self) -> float:
        """Rank that a strategy may have at most to be among the best."""
        return float(self.best[-1, 0]) if len(self.best) == self.top else np.inf

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return self.end is not None and time.monotonic() > self.end

    # ------------------------------------------------------------ step 1: layouts

    def run(self) -> None:
        """Go through all branches, best layouts first."""
        branches = list(self._branches())
        listed = [self._layouts(branch) for branch in branches]
        numbers = np.repeat(np.arange(len(branches)), [it.layout.size for it in listed])
        rows = np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(it.layout.size) for it in listed)]
        )
        ranked = [self._rank(*both) for both in zip(branches, listed, strict=True)]
        ranks = np.concatenate([np.zeros(0), *ranked])
        order = np.argsort(ranks, kind="stable")
        start, step = 0, TOGETHER
        while start < order.size and ranks[order[start]] <= self.limit and not self.late:
            chosen = order[start : start + step]
            for number in np.unique(numbers[chosen]):
                nodes = listed[number].take(rows[chosen[numbers[chosen] == number]])
                self._ways(branches[number], nodes)
            start, step = start + step, min(2 * step, BOUNDED)
            self._tell()
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
            placements = space.placements()
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
                    at = number, row, space, run, device
                    yield _Branch(*at, precision, placements, ways, peak)

    def _layouts(self, branch: _Branch) -> _Nodes:
        """Return the layouts of a branch that fit, with their compute."""
        space = branch.space
        layout, document = np.nonzero(space.documents & (space.weights > 0)[:, None])
        ways = branch.ways
        classes = ways.single
        if several := len(space.layers) - classes.size:
            classes = np.append(classes, -1)
        paddings = np.arange(space.free["padding"].size)
        shape = layout.size, paddings.size, classes.size
        found = np.broadcast_arrays(
            layout[:, None, None], document[:, None, None], paddings[:, None], classes
        )
        weight = space.weights[layout][:, None, None] * np.where(classes < 0, several, 1)
        blank = np.zeros(math.prod(shape))
        weight = np.broadcast_to(weight, shape).ravel()
        return self._bounded(branch, _Nodes(*map(np.ravel, found), weight, blank, blank, blank))

    def _bounded(self, branch: _Branch, nodes: _Nodes) -> _Nodes:
        """Return nodes that fit and may be good enough, with their compute."""
        kept = [nodes.take(slice(0, 0))]
        step = max(1, BOUNDED)
        for start in range(0, nodes.layout.size, step):
            some = nodes.take(slice(start, start + step))
            first = branch.placements.offset[branch.placements.kind[some.layout]]
            least = self._lower(branch, some, np.arange(some.layout.size), first)
            name = branch.hardware.name
            lowest = min(self.result.least_memory.get(name, np.inf), float(least.memory.min()))
            self.result.least_memory[name] = lowest
            fits = least.memory * SLACK <= self._capacity(branch)
            self._count("memory", some.weight[~fits])
            some = some._replace(passes=least.passes, compute=least.compute)
            kept.append(self._good(branch, some.take(fits)))
        return _joined(kept)

    def _with_shown(self, branch: _Branch, nodes: _Nodes) -> _Nodes:
        """Return nodes that may be good enough, with what communication shows of any placement."""
        groups = branch.placements
        kept = [nodes.take(slice(0, 0))]
        step = max(1, BOUNDED // int(np.diff(groups.offset).max()))
        layouts, back = np.unique(nodes.layout, return_inverse=True)
        first = np.zeros(layouts.size, np.int64)
        first[back] = np.arange(back.size)  # any of its nodes: layers that keep all show least
        some = nodes.take(first)._replace(way=np.full(layouts.size, -1))
        shown = np.zeros(layouts.size)
        for start in range(0, layouts.size, step):
            part = some.take(slice(start, start + step))
            owner, rows = _listed(groups.offset, groups.kind[part.layout])
            least = self._lower(branch, part, owner, rows).shown
            starts = np.flatnonzero(np.diff(owner, prepend=-1))
            shown[start : start + step] = np.minimum.reduceat(least, starts)
        kept.append(self._good(branch, nodes._replace(shown=shown[back])))
        return _joined(kept)

    def _lower(self, branch: _Branch, nodes: _Nodes, owner: Integers, rows: Integers) -> Bounds:
        """Return lower bounds of nodes with these placements of ranks."""
        space = branch.space
        columns = self._outer(branch, nodes, owner)
        columns |= branch.placements.factor.columns(space.free, rows)
        columns["zero_stage"] = columns["shard_group"] = np.zeros(owner.size, np.int64)
        layers = nodes.way[owner] < 0
        way = branch.ways.row[np.maximum(nodes.way[owner], 0)]
        for name, column in space.layers.columns(space.free, way).items():
            columns[name] = np.where(layers, 0, column)
        grid = space.grid(nodes.layout[owner], **columns)
        work = Workload(space.model, grid)
        still = self._open(branch)
        return lower_bounds(work, branch.hardware, branch.framework, still, layers)

    def _open(self, branch: _Branch) -> Open:
        """Return what is open until strategies are projected."""
        free = branch.space.free
        activations, optimizer, parameters = (free[name] for name in AWAY[::2])
        return Open(
            self._capacity(branch),
            tuple(free["zero_stage"].tolist()),
            tuple(activations.tolist()),
            float(optimizer.max()),
            float(parameters.max()),
            bool((free[AWAY[1]] == PAIRED_STAGE).any()),
        )

    def _capacity(self, branch: _Branch) -> float:
        """Return the projected memory with which strategies fit, at most [B]."""
        capacity = branch.hardware.device.memory.capacity
        return capacity / math.exp(memory_width(branch.hardware)) if self.safe else capacity

    def _outer(self, branch: _Branch, nodes: _Nodes, owner: Integers) -> dict[str, NDArray[Any]]:
        """Return the values on outer axes of nodes."""
        free = branch.space.free
        places = np.full(nodes.layout.size, branch.precision), nodes.document, nodes.padding
        return {name: free[name][place[owner]] for name, place in zip(OUTER, places, strict=True)}

    def _rank(self, branch: _Branch, nodes: _Nodes, least: Values | None = None) -> Values:
        """Return the rank of strategies whose step takes so long; less is better."""
        seconds = (nodes.bound if least is None else least) * SLACK
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
        self.left = min(self.left, float(self._rank(branch, rest).min(initial=np.inf)))

    # ------------------------------------------------------------ step 2: which layers recompute

    def _ways(self, branch: _Branch, nodes: _Nodes) -> None:
        """Go through every way to recompute of some layouts."""
        nodes = self._with_shown(branch, self._good(branch, nodes))
        ready = [nodes.take(nodes.way >= 0)]
        nodes = nodes.take(nodes.way < 0)
        ways = branch.ways
        owner, way = _listed(ways.offset, ways.kind[nodes.layout])
        several = len(branch.space.layers) - ways.single.size
        for start in range(0, owner.size, BOUNDED):
            some = slice(start, start + BOUNDED)
            part = nodes.take(owner[some])
            weight = part.weight // several * ways.counts[way[some]]
            ready.append(self._bounded(branch, part._replace(way=way[some], weight=weight)))
        self._shardings(branch, _joined(ready))

    # ------------------------------------------------------------ step 3: shards and places

    def _shardings(self, branch: _Branch, nodes: _Nodes) -> None:
        """Project every sharding and mapping of some nodes, with nothing elsewhere."""
        nodes = nodes.take(np.argsort(self._rank(branch, nodes), kind="stable"))
        ranks = self._rank(branch, nodes)
        groups = branch.space.sharding
        sizes = np.diff(groups.offset)[groups.kind[nodes.layout]]
        start = 0
        while start < nodes.layout.size:
            if ranks[start] > self.limit or self.late:
                break
            together = np.cumsum(sizes[start : start + self.block])
            stop = start + max(1, int(np.searchsorted(together, self.block, "right")))
            self._project(branch, nodes.take(slice(start, stop)))
            start, self.block = stop, min(2 * self.block, PROJECTED)
        self._leave(branch, nodes.take(slice(start, None)))

    def _project(self, branch: _Branch, nodes: _Nodes) -> None:
        space, groups = branch.space, branch.space.sharding
        owner, rows = _listed(groups.offset, groups.kind[nodes.layout])
        columns = self._outer(branch, nodes, owner)
        columns |= groups.factor.columns(space.free, rows)
        columns |= space.layers.columns(space.free, branch.ways.row[nodes.way[owner]])
        away = space.paired[nodes.layout[owner]]
        table = self._swept(branch, space.grid(nodes.layout[owner], **columns))
        listed = nodes.take(owner)
        places = self._places(branch, listed, groups.factor.index[rows])
        for kind, held in enumerate(space.away):
            mine = np.flatnonzero(away == kind)
            if not mine.size:
                continue
            nothing = np.full(owner.size, held.nothing)
            if held.nothing >= 0:
                self._enter(branch, table, mine, listed, places, held, nothing)
            rest = np.flatnonzero(np.arange(len(held.factor)) != held.nothing)
            if not rest.size:
                continue
            those = listed.take(mine)
            least = np.maximum(those.bound, self._passes(branch, table, mine))
            ranks = self._rank(branch, those, least)
            self._elsewhere(branch, kind, rest, columns, listed, mine, ranks, places)

    def _passes(self, branch: _Branch, table: Table, rows: Integers) -> Values:
        """Return what the passes alone take, with nothing elsewhere [s].

        No copy to or from elsewhere makes a stage faster. Without shards of parameters the step of
        a pipeline is its makespan, which only grows with what passes take; with them the slowest
        stage, whose bubble may be shorter then.
        """
        names = ["forward_time", "backward_time", "recompute_time", "host_time"]
        names += ["tensor_parallel_exposed", "context_parallel_exposed"]
        if not branch.framework.overlap_expert_parallel:
            names.append("expert_parallel_exposed")
        passes = sum(table[name].values[rows, 0] for name in names)
        whole = table["zero_stage"].values[rows] < 3
        return passes + np.where(whole, table["pipeline_bubble"].values[rows, 0], 0.0)

    # ------------------------------------------------------------ step 4: what waits elsewhere

    def _elsewhere(
        self,
        branch: _Branch,
        kind: int,
        rest: Integers,
        columns: Mapping[str, NDArray[Any]],
        nodes: _Nodes,
        rows: Integers,
        bound: Values,
        places: Integers,
    ) -> None:
        """Project what some strategies may leave elsewhere, where that may be better."""
        space = branch.space
        held = space.away[kind]
        weight = branch.ways.counts[nodes.way] * int(held.counts[rest].sum())
        slow = bound > self.limit
        self._count("communication", weight[rows[slow]])
        rows, bound = rows[~slow], bound[~slow]
        if rows.size and not (kind and self._open(branch).on_stages):
            fits = self._fits_lean(branch, nodes, columns, rows, held.factor)
            self._count("memory", weight[rows[~fits]])
            rows, bound = rows[fits], bound[fits]
        order = np.argsort(bound, kind="stable")
        rows, bound = rows[order], bound[order]
        step = max(1, PROJECTED // rest.size)
        for start in range(0, rows.size, step):
            some = slice(start, start + step)
            keep = bound[some] <= self.limit
            self._count("communication", weight[rows[some][~keep]])
            mine = rows[some][keep]
            if self.late:
                self.left = min(self.left, float(bound[some][keep].min(initial=np.inf)))
                continue
            if not mine.size:
                continue
            owner, chosen = np.repeat(mine, rest.size), np.tile(rest, mine.size)
            values = {name: column[owner] for name, column in columns.items()}
            values |= held.factor.columns(space.free, chosen)
            table = self._swept(branch, space.grid(nodes.layout[owner], **values))
            those = np.arange(owner.size)
            self._enter(branch, table, those, nodes.take(owner), places[owner], held, chosen)

    def _fits_lean(
        self,
        branch: _Branch,
        nodes: _Nodes,
        columns: Mapping[str, NDArray[Any]],
        rows: Integers,
        factor: Factor,
    ) -> Flags:
        """Tell which strategies fit with as much elsewhere as can be, on the device alone."""
        free = branch.space.free
        values = {name: column[rows] for name, column in columns.items()}
        for place in range(0, len(AWAY), 2):
            most = np.argmax(free[AWAY[place]][factor.index[:, place]])
            lean = factor.columns(free, np.array([most]))
            for name in AWAY[place : place + 2]:
                values[name] = np.repeat(lean[name], rows.size)
        table = self._swept(branch, branch.space.grid(nodes.layout[rows], **values))
        name = "memory_high" if self.safe else "memory_total"
        return table[name].values[:, 0] <= table["memory_capacity"].values[0]

    # ------------------------------------------------------------ what is exact

    def _swept(self, branch: _Branch, grid: StrategyGrid) -> Table:
        model, framework = branch.space.model, self.problems[branch.problem].framework
        table = sweep_problems([Problem(model, framework, grid)], [branch.hardware])
        if self.safe:
            decide_safely(table)
        return table

    def _places(self, branch: _Branch, nodes: _Nodes, sharding: Integers) -> Integers:
        """Return layouts and positions on `FREE_AXES`, in what waits elsewhere 0."""
        found = np.zeros((nodes.layout.size, 1 + len(FREE_AXES)), np.int64)
        found[:, 0] = nodes.layout
        places = np.full(nodes.layout.size, branch.precision), nodes.document, nodes.padding
        for names, index in (
            (OUTER, np.stack(places, axis=1)),
            (LAYERS, branch.space.layers.index[branch.ways.row[nodes.way]]),
            (SHARDING, sharding),
        ):
            found[:, [1 + FREE_AXES.index(name) for name in names]] = index
        return found

    def _enter(
        self,
        branch: _Branch,
        table: Table,
        rows: Integers,
        nodes: _Nodes,
        places: Integers,
        held: Away,
        chosen: Integers,
    ) -> None:
        """Count projected strategies, and take the best of them.

        Each stands for all whose ways to recompute come to the same, and so does what they leave
        elsewhere: the `chosen` of `held`.
        """
        ways = branch.ways
        stands_for = ways.counts[nodes.way[rows]] * held.counts[chosen[rows]]
        self.result.evaluated += int(stands_for.sum())
        values = table[self.by].values[rows, 0].astype(np.float64)
        ranks = -values if self.by in LARGER_IS_BETTER else values
        good = table["fits"].values[rows, 0].astype(bool) & (ranks <= self.limit)
        ranks, rows = ranks[good], rows[good]
        if not ranks.size:
            return
        if ranks.size > self.top:  # equal ones all
            few = ranks <= np.partition(ranks, self.top - 1)[self.top - 1]
            ranks, rows = ranks[few], rows[few]
        entered = np.zeros((rows.size, self.best.shape[1]))
        entered[:, 0], entered[:, 1], entered[:, -1] = ranks, branch.problem, branch.row
        entered[:, 2:-1] = places[rows]
        alike = [ways.members[way] for way in nodes.way[rows]]
        entered = np.repeat(entered, [len(it) for it in alike], axis=0)
        index = branch.space.layers.index[np.concatenate(alike)]
        entered[:, [3 + FREE_AXES.index(name) for name in LAYERS]] = index
        alike = [
            held.members[number]
            for number, same in zip(chosen[rows], alike, strict=True)
            for _ in same
        ]
        entered = np.repeat(entered, [len(it) for it in alike], axis=0)
        entered[:, [3 + FREE_AXES.index(name) for name in AWAY]] = np.concatenate(alike)
        together = np.concatenate((self.best, entered))
        self.best = together[np.lexsort(together.T[::-1])[: self.top]]

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


def _listed(offset: Integers, kind: Integers) -> tuple[Integers, Integers]:
    """Return the lists of several kinds, one after another: the place of each, and its rows."""
    counts = np.diff(offset)[kind]
    owner = np.repeat(np.arange(kind.size), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(owner.size) - starts[owner] + offset[kind][owner]
