"""A simulation of execution traces as a timeline: what each distinct rank did, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.timelines import Track, write_timeline
from perfmodel.workloads.simulation.result import Simulation
from perfmodel.workloads.trace import ABSENT, COLLECTIVE, PAUSE, RECEIVE, SEND, Trace, TraceSet


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
