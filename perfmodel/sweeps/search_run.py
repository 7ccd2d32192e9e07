"""A search while it goes on: branches best first, the best so far, what is settled; its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.table import Table
from perfmodel.hwprofiles.rows import matrix_rates
from perfmodel.kernels.variables import RATE
from perfmodel.software.framework import Framework
from perfmodel.store.results import LARGER_IS_BETTER, Ranked, best, decide_safely
from perfmodel.strategy.enumerate import FREE_AXES
from perfmodel.strategy.factors import AWAY, LAYERS, OUTER, SHARDING, Away, Space
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.sweeps.search_branch import Branch, Nodes, joined, parts_of
from perfmodel.sweeps.sweep import Problem, sweep_problems
from perfmodel.training.best_layout import distinct_ways
from perfmodel.training.bounds import SLACK
from perfmodel.training.project import check_host, framework_of_run

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

BOUNDED = 1 << 14
"""Representatives whose bounds are found in one call, at most."""
PROJECTED = 1 << 16
"""Strategies that are projected in one call, at most."""
FIRST = 256
"""Of either in the first calls, while nothing good is known yet."""
TOGETHER, MOST_TOGETHER = 64, 1024
"""Layouts whose turn it is together, at first and later."""


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


class SearchRun:
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
        ranked = [branch.rank(nodes) for branch, nodes in zip(branches, listed, strict=True)]
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

    def _branches(self) -> Iterator[Branch]:
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
                    yield Branch(
                        number,
                        row,
                        space,
                        framework,
                        device,
                        run,
                        precision,
                        ways,
                        peak,
                        self.by,
                        self.safe,
                    )

    def _layouts(self, branch: Branch) -> Nodes:
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
        nodes = Nodes(*chosen, unknown, blank, blank, blank, blank)
        return self._bounded(branch, branch.weighed(nodes))

    def _descend(self, branch: Branch, nodes: Nodes) -> None:
        """Settle some layouts."""
        groups, ways = branch.space.sharding, branch.ways
        owner, sharding = _listed(groups.offset, groups.kind[nodes.layout])
        nodes = branch.weighed(nodes.take(owner)._replace(sharding=sharding))
        nodes = self._bounded(branch, nodes)
        later, elsewhere = [nodes.take(slice(0, 0))], [nodes.take(slice(0, 0))]
        for block in self._blocks(branch, nodes, 1):
            table = branch.projected(block)
            floors = block._replace(floor=branch.floor(block, table))
            later.append(floors.take(block.way < 0))
            single = np.flatnonzero(block.way >= 0)
            elsewhere.append(self._entered(branch, floors, table, single))
        if self.trial:
            return
        several = len(branch.space.layers) - ways.single.size
        for block in self._blocks(branch, self._good(branch, joined(later)), several):
            owner, way = _listed(ways.offset, ways.kind[block.layout])
            chosen = branch.weighed(block.take(owner)._replace(way=way))
            chosen = self._bounded(branch, chosen)
            for some in self._blocks(branch, chosen, 1):
                table = branch.projected(some)
                floors = some._replace(floor=branch.floor(some, table))
                elsewhere.append(self._entered(branch, floors, table, slice(None)))
        for some in parts_of(joined(elsewhere), PROJECTED):
            self._elsewhere(branch, self._good(branch, some))
        self._tell()

    def _blocks(self, branch: Branch, nodes: Nodes, each: int) -> Iterator[Nodes]:
        """Yield nodes that may still be good enough, best first, and settle the others.

        They come in blocks of so many that `each` of a node are no more than a call takes.
        """
        ranks = branch.rank(nodes)
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

    def _bounded(self, branch: Branch, nodes: Nodes, activations: tuple[float, ...] = ()) -> Nodes:
        """Return nodes that fit and may be good enough, with their bounds.

        With these shares of `activations` elsewhere; without any, all that there are.
        """
        kept = [nodes.take(slice(0, 0))]
        for some in parts_of(nodes, BOUNDED):
            some = self._good(branch, some)
            if not some.layout.size:
                continue
            least = branch.lower(some, activations)
            name = branch.hardware.name
            lowest = min(self.result.least_memory.get(name, np.inf), float(least.memory.min()))
            self.result.least_memory[name] = lowest
            fits = least.memory * SLACK <= branch.capacity
            self._count("memory", some.weight[~fits])
            some = some._replace(passes=least.passes, compute=least.compute)
            if some.sharding[0] >= 0:
                some = some._replace(shown=least.shown)
            kept.append(self._good(branch, some.take(fits)))
        return joined(kept)

    def _good(self, branch: Branch, nodes: Nodes) -> Nodes:
        """Count the nodes whose bounds rank behind the best so far, and return the others."""
        slow = branch.rank(nodes, nodes.compute) > self.limit
        talks = ~slow & (branch.rank(nodes) > self.limit)
        self._count("compute", nodes.weight[slow])
        self._count("communication", nodes.weight[talks])
        return nodes.take(~(slow | talks))

    def _leave(self, branch: Branch, nodes: Nodes) -> None:
        """Count the nodes that are proved away now; the others stay open."""
        rest = self._good(branch, nodes)
        if self.trial:
            return
        self.left = min(self.left, float(branch.rank(rest).min(initial=np.inf)))

    # ------------------------------------------------------------ what is exact

    def _entered(self, branch: Branch, nodes: Nodes, table: Table, chosen: Any) -> Nodes:
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

    def _elsewhere(self, branch: Branch, nodes: Nodes) -> None:
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
                    table = branch.projected(several, **away)
                    rows = np.arange(owner.size)
                    self._enter(branch, table, rows, rows, several, held, chosen)

    def _places(self, branch: Branch, nodes: Nodes) -> Integers:
        """Return layouts and positions on outer axes; 0 on the others."""
        found = np.zeros((nodes.layout.size, 1 + len(FREE_AXES)), np.int64)
        found[:, 0] = nodes.layout
        places = np.full(nodes.layout.size, branch.precision), nodes.document, nodes.padding
        for name, place in zip(OUTER, places, strict=True):
            found[:, 1 + FREE_AXES.index(name)] = place
        return found

    def _enter(
        self,
        branch: Branch,
        table: Table,
        rows: Integers,
        mine: Integers,
        nodes: Nodes,
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


def _listed(offset: Integers, kind: Integers) -> tuple[Integers, Integers]:
    """Return the lists of several kinds, one after another: the place of each, and its rows."""
    counts = np.diff(offset)[kind]
    owner = np.repeat(np.arange(kind.size), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(owner.size) - starts[owner] + offset[kind][owner]
