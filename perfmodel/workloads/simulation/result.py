"""Results of a simulation of execution traces, per rank; as a timeline too.

What ASTRA-sim reports of a rank follows from when its nodes began and ended: astra-sim
af2492b, `workload/Statistics.cc` and `workload/Workload.cc`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Floats, Integers
from perfmodel.base.timelines import Track, write_timeline
from perfmodel.kernels.variables import read_variables
from perfmodel.workloads.simulation.costs import on_host
from perfmodel.workloads.simulation.graph import Graph, Rank
from perfmodel.workloads.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    PAUSE,
    RECEIVE,
    SEND,
    Trace,
    TraceSet,
)

if TYPE_CHECKING:
    import xarray

FIGURES, BY_COLLECTIVE = read_variables(Path(__file__).with_name("variables.csv")).values()
"""Of a rank, and of its collectives by kind; those in seconds are times."""


@dataclass(slots=True)
class ClassFigures:
    """Figures of ranks that behave alike; see `FIGURES` and `BY_COLLECTIVE`.

    Times are in the cost model's unit.

    Attributes
    ----------
    start, end : float64[nodes]
        Of each node in file order.
    """

    wall_time: float
    gpu_time: float
    cpu_time: float
    communication_time: float
    exposed_communication: float
    compute_bound_fraction: float
    compute_utilization: float
    memory_utilization: float
    operation_intensity: float
    peak_memory: float
    collective_bytes: Floats
    collective_count: Integers
    collective_time: Floats
    sent_bytes: float
    sent_count: int
    start: Floats
    end: Floats


@dataclass(frozen=True, slots=True)
class Simulation:
    """When what happened, and how much of it.

    Figures of `FIGURES` are attributes too: float64[ranks], SI units; NaN where there is
    nothing to report (utilizations without a roofline, peak memory without tensors).

    Attributes
    ----------
    representative : int64[ranks]
        The rank that was run for each.
    classes : tuple of ClassFigures
        One per rank that was run.
    class_of_rank : int64[ranks]
    tick : float
        Seconds per unit of the times in `classes`.
    whole : bool
        These times are whole numbers (ASTRA-sim's nanoseconds).
    nodes : int
        Of all ranks together.
    contention : bool
        Communication shared the ports of its devices.
    together : bool
        Members of some collective end with the slowest here, which in ASTRA-sim end one by one:
        the run was too large to follow every message.
    """

    representative: Integers
    classes: tuple[ClassFigures, ...]
    class_of_rank: Integers
    tick: float
    whole: bool
    nodes: int
    contention: bool = False
    together: bool = False

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        """Return a figure of every rank, in SI units."""
        for figure in FIGURES:
            if name == figure.name:
                return self._raw(name) * (self.tick if figure.units == "s" else 1.0)
        raise AttributeError(name)

    @property
    def nodes_run(self) -> int:
        """Nodes of the ranks that were run."""
        return sum(len(figures.start) for figures in self.classes)

    def ticks(self, name: str) -> tuple[int, ...]:
        """Return a time of every rank as whole nanoseconds.

        Raises
        ------
        ValueError
            Times are no whole numbers.
        """
        if not self.whole:
            raise ValueError("times are in seconds, not in whole nanoseconds")
        return tuple(int(value) for value in self._raw(name))

    def starts(self, rank: int) -> Floats:
        """Return when the nodes of a rank began [s], in file order."""
        return self.classes[self.class_of_rank[rank]].start * self.tick

    def ends(self, rank: int) -> Floats:
        """Return when the nodes of a rank ended [s], in file order."""
        return self.classes[self.class_of_rank[rank]].end * self.tick

    def to_dataset(self) -> xarray.Dataset:
        """Return all figures by rank, and those of collectives by rank and kind."""
        import xarray

        variables: dict[str, Any] = {}
        for figure in FIGURES:
            values = getattr(self, figure.name)
            variables[figure.name] = (("rank",), values, figure.attributes())
        for figure in BY_COLLECTIVE:
            rows = np.array([getattr(figures, figure.name) for figures in self.classes])
            rows = rows[self.class_of_rank] * (self.tick if figure.units == "s" else 1)
            variables[figure.name] = (("rank", "collective"), rows, figure.attributes())
        text = "Rank that was simulated for this one"
        attributes = {"units": "1", "long_name": text}
        variables["representative"] = (("rank",), self.representative, attributes)
        rank_text = {"units": "1", "long_name": "Rank"}
        collective_text = {"units": "1", "long_name": "Collective"}
        return xarray.Dataset(
            variables,
            coords={
                "rank": ("rank", np.arange(len(self.class_of_rank)), rank_text),
                "collective": ("collective", list(TRACED), collective_text),
            },
        )

    def summary(self) -> dict[str, Any]:
        """Return the figures of the whole run under keys that do not change.

        SI units; None where there is nothing to report. They are those of the slowest rank,
        but `peak_memory` is that of the rank that needs most, and messages and collectives
        are added up over all ranks. `wall_time_nanoseconds` and the like are there where
        times are whole nanoseconds, `contention` where communication shared ports,
        `members_end_together` where `together` holds.
        """
        result: dict[str, Any] = {
            "ranks": len(self.class_of_rank),
            "distinct_ranks": len(self.classes),
            "nodes": self.nodes,
            "nodes_run": self.nodes_run,
        }
        if self.contention:
            result["contention"] = "max-min fair"
        if self.together:
            result["members_end_together"] = True
        slowest = int(np.argmax(self._raw("wall_time")))
        result["slowest_rank"] = slowest
        for name in (figure.name for figure in FIGURES):
            values = getattr(self, name)
            if np.isnan(values).all():
                result[name] = None
            elif name == "peak_memory":
                result[name] = float(np.nanmax(values))
            elif name.startswith("sent_"):
                result[name] = math.fsum(values)
            else:
                own = float(values[slowest])
                result[name] = None if math.isnan(own) else own
        collectives = {}
        for position, name in enumerate(TRACED):
            figures = {}
            for key, unit in ((it.name, it.units) for it in BY_COLLECTIVE):
                rows = np.array([getattr(own, key)[position] for own in self.classes])
                amount = rows[self.class_of_rank].sum() * (self.tick if unit == "s" else 1)
                figures[key.removeprefix("collective_")] = (
                    int(amount) if key == "collective_count" else float(amount)
                )
            if figures["count"]:
                collectives[name] = figures
        result["collectives"] = collectives
        if self.whole:
            for name in (figure.name for figure in FIGURES if figure.units == "s"):
                value = getattr(self.classes[self.class_of_rank[slowest]], name)
                result[f"{name}_nanoseconds"] = int(value)
        return result

    def _raw(self, name: str) -> Floats:
        """Return a figure of every rank in the cost model's unit."""
        rows = np.array([getattr(figures, name) for figures in self.classes], np.float64)
        return rows[self.class_of_rank]


def class_figures(
    graph: Graph, rank: Rank, start: Floats, end: Floats, whole: bool
) -> ClassFigures:
    """Return the figures of a class of ranks; times in the cost model's unit.

    Parameters
    ----------
    graph : Graph
    rank : Rank
        That stands for the class.
    start, end : float64[nodes]
        In order of identifier.
    whole : bool
        Times are ASTRA-sim's nanoseconds.

    Returns
    -------
    ClassFigures
        Without peak memory.
    """
    kinds = graph.column("kinds")
    host = on_host(graph.trace)[graph.order]
    device = (kinds == COMPUTE) & ~host
    working = host & (graph.column("lane") != PAUSE)
    communication = ((kinds == COLLECTIVE) | (kinds == SEND) | (kinds == RECEIVE)) & ~host
    duration = end - start
    wall = float(end.max(initial=0.0))
    # ASTRA-sim divides by everything computed, host included, and 1 ns so that it never
    # divides by 0 (Statistics.cc extract_utilizations); by the device's own work elsewhere.
    counted_work = (kinds == COMPUTE) if whole else device
    computed = float(duration[counted_work].sum()) + float(whole)
    priced = graph.local.priced
    any_priced = bool(priced.any())

    def mean(weights: Floats) -> float:
        if not any_priced or computed == 0.0:
            return float("nan")
        return float((weights * duration)[priced].sum()) / computed

    by_collective = np.zeros((3, len(TRACED)))
    which = graph.column("collective")
    counted = communication & (kinds == COLLECTIVE) & (which >= 0)
    amounts = np.maximum(graph.column("communication_size"), 0)
    for row, weights in enumerate((amounts, np.ones(graph.nodes), duration)):
        by_collective[row] = np.bincount(
            which[counted], weights=weights[counted], minlength=len(TRACED)
        )
    messages = communication & (kinds == SEND)
    gpu_time = covered(start[device], end[device])
    in_file_order = np.empty((2, graph.nodes))
    in_file_order[0, rank.order] = start
    in_file_order[1, rank.order] = end
    return ClassFigures(
        wall_time=wall,
        gpu_time=gpu_time,
        cpu_time=covered(start[working], end[working]),
        communication_time=covered(start[communication], end[communication]),
        exposed_communication=wall - gpu_time,
        compute_bound_fraction=mean(graph.local.compute_bound.astype(np.float64)),
        compute_utilization=mean(graph.local.compute_utilization),
        memory_utilization=mean(graph.local.memory_utilization),
        operation_intensity=mean(graph.local.operation_intensity),
        peak_memory=float("nan"),
        collective_bytes=by_collective[0],
        collective_count=by_collective[1].astype(np.int64),
        collective_time=by_collective[2],
        sent_bytes=float(amounts[messages].sum()),
        sent_count=int(messages.sum()),
        start=in_file_order[0],
        end=in_file_order[1],
    )


def covered(start: Floats, end: Floats) -> float:
    """Return how long at least one of several intervals lasts (Statistics.cc:93)."""
    if not len(start):
        return 0.0
    order: Integers = np.argsort(start, kind="stable")
    begins, ends = start[order], end[order]
    latest = np.maximum.accumulate(ends)
    before = np.concatenate([begins[:1], latest[:-1]])
    return float(np.maximum(ends - np.maximum(begins, before), 0.0).sum())


def write_simulation(traces: TraceSet, result: Simulation, path: str | Path) -> int:
    """Write the timeline of a run for https://ui.perfetto.dev, completely or not at all.

    Parameters
    ----------
    traces : TraceSet
        What was run.
    result : Simulation
    path : str or Path

    Returns
    -------
    int
        Operations written.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    wall_time = {"wall time [s]": float(result.wall_time.max())}
    return write_timeline(simulation_tracks(traces, result), path, wall_time)


def simulation_tracks(traces: TraceSet, result: Simulation) -> Iterator[Track]:
    """Yield the tracks of the distinct ranks: compute, communication, host; by lane if stated."""
    for rank in sorted({int(rank) for rank in result.representative}):
        trace = traces.traces[rank]
        yield from _rank_tracks(trace, rank, result.starts(rank), result.ends(rank))


def _rank_tracks(trace: Trace, rank: int, start: np.ndarray, end: np.ndarray) -> Iterator[Track]:
    """Yield the tracks of one rank, without nodes that take no time."""
    communicates = np.isin(trace.kinds, [COLLECTIVE, SEND])
    receives = trace.kinds == RECEIVE
    host = trace.on_cpu == 1
    kinds = {
        "compute": ~communicates & ~receives & ~host,
        "communication": communicates & ~host,
        "receive": receives & ~host,
        "host": host,
    }
    duration = np.maximum(end - start, 0.0)
    threads = [
        (f"{name} {lane}" if lane != ABSENT else name, name, chosen & (trace.lane == lane))
        for name, chosen in kinds.items()
        for lane in np.unique(trace.lane[chosen]).tolist()
        if lane != PAUSE
    ]
    for thread, category, chosen in threads:
        places = np.flatnonzero(chosen & (duration > 0.0))
        if not places.size:
            continue
        places = places[np.argsort(start[places], kind="stable")]
        arguments: dict[str, Any] = {
            "node": trace.identifiers[places],
            "operations [FLOP]": _stated(trace.num_ops[places]),
            "memory traffic [B]": _stated(trace.tensor_size[places]),
            "bytes": _stated(trace.communication_size[places]),
            "collective": [
                TRACED[kind] if kind >= 0 else None for kind in trace.collective[places]
            ],
            "group": [
                trace.group_names[group] if group >= 0 else None for group in trace.group[places]
            ],
        }
        yield Track(
            f"rank {rank}",
            thread,
            [trace.names[int(place)] for place in places],
            start[places],
            duration[places],
            category,
            arguments,
        )


def _stated(column: np.ndarray) -> list[int | None]:
    """Return the numbers that are stated."""
    return [int(value) if value >= 0 else None for value in column]
