"""The best strategies of a sweep, without the columns of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, StrategyError, did_you_mean
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE, STEP_VARIABLES
from perfmodel.store.results import (
    LARGER_IS_BETTER,
    best_rows,
    check_front,
    check_top,
    decide_safely,
    front_rows,
)
from perfmodel.store.subject import TRAINING
from perfmodel.strategy.grid import Families, families_of
from perfmodel.sweeps.sweep import Problem, sweep_problems

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.training.ranked import Counts, Objectives

FAMILIES = 1 << 19
"""Families whose tables are made at once."""
MOST_WAITING = 1 << 17
"""Strategies that may be among the best, before they are projected and most of them dropped."""


@dataclass(frozen=True, slots=True)
class RankedSweep:
    """The best strategies of a sweep, and what became of the others.

    Attributes
    ----------
    table : Table
        Those that are, for their problem, among the best or on the front on any device.
    counts : list of Counts
        Of all strategies, for every row of hardware.
    """

    table: Table
    counts: list[Counts]


def objectives_of(
    top: int, by: str = RATE, pareto: Sequence[str] = (), *, safe: bool = False
) -> Objectives:
    """Check what strategies are to be ranked by.

    Raises
    ------
    DataError
        Not a positive number of strategies, a variable that is none of a step, or a front of one.
    """
    from perfmodel.training.ranked import Objectives

    check_top(top)
    if pareto:
        check_front(pareto)
    known = [variable.name for variable in STEP_VARIABLES]
    names = [TRAINING.aliases.get(name, name) for name in (by, *pareto)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise DataError(f"strategies cannot be ranked by '{name}' while they are swept{hint}")
    return Objectives(top, names[0], names[1:], frozenset(LARGER_IS_BETTER), safe=safe)


def rank_problems(
    problems: Sequence[Problem],
    rows: Sequence[Hardware],
    objectives: Objectives,
    *,
    dtype: Any = np.float64,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
) -> RankedSweep:
    """Find the best strategies of several problems on every row of hardware.

    The same as `perfmodel.store.results.best` and `pareto` of a sweep of all of them.

    Parameters
    ----------
    problems : sequence of Problem
    rows : sequence of Hardware
    objectives : Objectives
    dtype, threads, progress, hardware_values
        As of `perfmodel.sweeps.several.sweep`; `dtype` of what is returned.

    Raises
    ------
    StrategyError
        No strategy or no hardware given.
    """
    from perfmodel.training.ranked import Best, Counts
    from perfmodel.training.workload import Workload

    if not rows or not any(len(problem.grid) for problem in problems):
        raise StrategyError("a sweep needs at least one strategy and one hardware profile")
    counts = [Counts() for _ in rows]
    best: list[Problem] = []
    every = [families_of(problem.grid) for problem in problems]
    for problem, families in zip(problems, every, strict=True):
        kept = np.zeros(0, np.int64)
        so_far = [Best(objectives, row, found) for row, found in zip(rows, counts, strict=True)]

        def table(numbers: Integers, own: Problem = problem, of: Families = families) -> Table:
            chosen = replace(own, grid=of.strategies(numbers))
            found = sweep_problems([chosen], rows, threads=threads)
            if objectives.safe:
                decide_safely(found)
            return found

        for part in _parts(families):
            work = Workload(problem.model, part)
            for one in so_far:
                found = one.add(work, problem.framework, threads=threads, progress=progress)
                kept = np.union1d(kept, found)
            if kept.size > MOST_WAITING:
                kept = kept[_winners(table(kept), objectives)]
        if kept.size:
            kept = kept[_winners(table(kept), objectives)]
        if kept.size:
            best.append(replace(problem, grid=families.strategies(kept)))
    if not best:  # nothing fits: the first possible strategies stand for all
        best = [
            replace(problem, grid=families.strategies(families.number[:1]))
            for problem, families in zip(problems, every, strict=True)
            if len(families)
        ]
    results = sweep_problems(
        best, rows, dtype=dtype, threads=threads, hardware_values=hardware_values, among=problems
    )
    if objectives.safe:
        decide_safely(results)
    return RankedSweep(results, counts)


def _parts(families: Families) -> Iterator[Families]:
    """Yield families in parts whose tables find room in memory."""
    for start in range(0, families.size.size, FAMILIES):
        whole = families.size.size <= FAMILIES
        yield families if whole else families.take(slice(start, start + FAMILIES))


def _winners(table: Table, objectives: Objectives) -> NDArray[np.intp]:
    """Return the strategies that are among the best, or on the front, on any device."""
    found = []
    for hardware in range(table.sizes["hardware"]):
        own = table.isel(hardware=np.array([hardware]))
        found.append(best_rows(own, objectives.top, objectives.by))
        if objectives.front:
            found.append(front_rows(own, objectives.front))
    return np.unique(np.concatenate(found))
