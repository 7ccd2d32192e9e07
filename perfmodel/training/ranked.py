"""The best strategies of a workload on one device, without keeping the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.kernels.variables import STEP_ROWS
from perfmodel.software.framework import Framework
from perfmodel.training.project import Share, add_waits, in_chunks, shares_of
from perfmodel.training.workload import Workload

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.step.ranking import Ranking
    from perfmodel.kernels.step.tables import Waits

ROOM = 1 << 16
"""Strategies of a front, and of those that may come in, that there is room for at first."""
FOUND = ("cost", "best", "front_cost", "front", "pending", "counts")
"""What the kernel writes of a `Ranking`."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """What strategies are ranked by.

    Attributes
    ----------
    top : int
        How many of the best.
    by : str
        Variable of a step.
    front : sequence of str
        Variables of a front: strategies that no other one is as good as in all of them.
    larger : set of str
        Those of all these of which more is better.
    fitting : bool
        What does not fit in memory is out.
    safe : bool
        The 90th percentile of the memory decides what fits.
    """

    top: int
    by: str
    front: Sequence[str]
    larger: frozenset[str]
    fitting: bool = True
    safe: bool = False


@dataclass(slots=True)
class Counts:
    """How many strategies were what.

    Attributes
    ----------
    strategies : int
        All of them.
    fitting : int
        Those that fit in memory.
    lacking : int
        Those in a precision that the device lacks.
    ruled_out : int
        Those that a bound showed to be worse than the best.
    """

    strategies: int = 0
    fitting: int = 0
    lacking: int = 0
    ruled_out: int = 0


class Best:
    """The best strategies so far on one device, of one workload after another.

    Parameters
    ----------
    objectives : Objectives
    hardware : Hardware
    counts : Counts, optional
        Added to.
    """

    def __init__(
        self, objectives: Objectives, hardware: Hardware, counts: Counts | None = None
    ) -> None:
        self.objectives, self.hardware = objectives, hardware
        self.counts = Counts() if counts is None else counts
        self.costs: NDArray[np.float64] = np.zeros(0)
        """Of the best so far, lowest first."""
        self.front: NDArray[np.float64] = np.zeros((0, 1 + len(objectives.front)))

    def add(
        self,
        work: Workload,
        framework: Framework,
        *,
        threads: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Integers:
        """Return the numbers of a workload's strategies that may be among the best.

        All that are, and few others: those whose passes run one by one are not run, but bounded
        from below.

        Parameters
        ----------
        work : Workload
        framework : Framework
        threads, progress
            As of `perfmodel.training.project.project_grid`.

        Returns
        -------
        ndarray of int64
            Ascending.
        """
        found: list[Integers] = []
        for share in shares_of(work, self.hardware, framework):
            waits = add_waits(share, bounds=True)
            of_events = share.work.strategies.waits >= 0
            for some in (~of_events, of_events):  # first those that are known for sure
                if some.any():
                    own = _part(share, some)
                    found.append(self._ranked(own, waits, threads, progress))
        self.counts.strategies += len(work.families)
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def _ranked(
        self,
        share: Share,
        waits: Waits,
        threads: int | None,
        progress: Callable[[int], None] | None,
    ) -> Integers:
        from perfmodel.kernels.plain import plain
        from perfmodel.kernels.step import ranking as kernel

        every: list[Ranking] = []
        lock = threading.Lock()
        room = [ROOM]

        def close(chunk: NDArray[Any]) -> None:
            with lock:
                ranking = every.pop() if every else self._blank(room[0])
            families, batch, *tables = share.arguments(chunk, waits)
            before = _copied(ranking)
            arguments = tuple(map(plain, (families, batch, True, *tables)))
            kernel.rank_strategies(*arguments, ranking)
            while ranking.counts[kernel.PENDING] > ranking.pending.size:
                room[0] *= 4
                ranking = self._with_room(before, room[0])
                before = _copied(ranking)
                kernel.rank_strategies(*arguments, ranking)
            with lock:
                every.append(ranking)

        in_chunks(share, close, threads, progress, "ranked_strategies")
        return self._taken(every)

    def _blank(self, room: int) -> Ranking:
        """Return a ranking that knows the costs of the best so far, but no strategy."""
        from perfmodel.kernels.step import ranking as kernel

        asked, memory = self.objectives, self.hardware.device.memory
        host = self.hardware.system.host
        names = (asked.by, *asked.front)
        known, front = self.costs.size, len(self.front)
        room = max(room, 2 * front)
        ranking = kernel.Ranking(
            np.array([STEP_ROWS[name] for name in names]),
            np.array([-1.0 if name in asked.larger else 1.0 for name in names]),
            np.array([memory.capacity, host.memory_capacity, host.nvme_capacity], np.float64),
            STEP_ROWS["memory_high" if asked.safe else "memory_total"],
            asked.fitting,
            np.zeros(asked.top),
            np.full(asked.top, -1),
            np.zeros((room, len(names))),
            np.full(room, -1),
            np.zeros(room, np.int64),
            np.zeros(kernel.COUNTS, np.int64),
        )
        ranking.cost[:known] = self.costs
        ranking.front_cost[:front] = self.front
        ranking.counts[kernel.BEST], ranking.counts[kernel.FRONT] = known, front
        return ranking

    def _with_room(self, before: Ranking, room: int) -> Ranking:
        """Return a ranking as it was before, with more room."""
        found = self._blank(room)
        for name in FOUND:
            old = getattr(before, name)
            getattr(found, name)[: len(old)] = old
        return found

    def _taken(self, every: Sequence[Ranking]) -> Integers:
        """Keep what rankings of several threads found; return the numbers of new strategies."""
        from perfmodel.kernels.step import ranking as kernel

        found, costs, fronts = [], [self.costs], []
        for ranking in every:
            best, front, pending = ranking.counts[[kernel.BEST, kernel.FRONT, kernel.PENDING]]
            new = ranking.best[:best] >= 0
            found += [ranking.best[:best][new], ranking.pending[:pending]]
            costs.append(ranking.cost[:best][new])
            found.append(ranking.front[:front][ranking.front[:front] >= 0])
            fronts.append(ranking.front_cost[:front])
            self.counts.fitting += int(ranking.counts[kernel.FITTING])
            self.counts.lacking += int(ranking.counts[kernel.LACKING])
            self.counts.ruled_out += int(ranking.counts[kernel.RULED_OUT])
        self.costs = np.sort(np.concatenate(costs))[: self.objectives.top]
        self.front = np.unique(np.concatenate(fronts), axis=0)
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def _part(share: Share, some: NDArray[np.bool_]) -> Share:
    """Return a share of some of its families."""
    if some.all():
        return share
    return share._replace(work=share.work.part(np.flatnonzero(some)))


def _copied(ranking: Ranking) -> Ranking:
    return ranking._replace(**{name: getattr(ranking, name).copy() for name in FOUND})
