"""What a workload holds, in figures: nodes or rows, operations, bytes by collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.kernels.variables import PHASES
from perfmodel.workloads.convert.opening import (
    AICB_CSV,
    AICB_TEXT,
    AIOB,
    ASTRA_TEXT,
    VIDUR_CSV,
    open_traces,
    workload_kind,
)
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    NODE_KINDS,
    RECEIVE,
    REMARKS,
    SEND,
    Trace,
    TraceSet,
)

if TYPE_CHECKING:
    from perfmodel.workloads.formats.aicb_text import AicbPhase
    from perfmodel.workloads.formats.astra_text import AstraTextPhase


# Columns on which the figures of a rank depend.
SUMMED = ("kinds", "collective", "communication_size", "num_ops", "tensor_size", "duration")
REPORTED = 1000  # ranks
MOST_REMARKS = 20


def workload_summary(
    path: str | Path,
    kind: str | None = None,
    *,
    devices: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Return the figures of a workload file of any kind.

    Parameters
    ----------
    path : str or Path
    kind : str, optional
        One of `perfmodel.workloads.convert.opening.MEANINGS`; by default what the file is.
    devices : int, optional
        Ranks for which an ASTRA-sim text is converted; without, its layers are described.
    progress, **given
        As `perfmodel.workloads.convert.opening.open_traces`.

    Raises
    ------
    FormatError, StrategyError
        The file cannot be read.
    """
    kind = kind or workload_kind(path)
    readers = {AICB_TEXT: _aicb_text, AICB_CSV: _aicb_csv, VIDUR_CSV: _vidur, AIOB: _aiob}
    if devices is None:
        readers[ASTRA_TEXT] = _astra_text
    if kind in readers:
        return readers[kind](path)
    traces = open_traces(path, kind, devices=devices, progress=progress, **given)
    return traces_summary(traces, progress)


def trace_summary(trace: Trace) -> dict[str, Any]:
    """Return the figures of one rank.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    dict
        ``nodes`` by kind, ``dependencies``, ``num_ops`` and ``tensor_size`` [B] of compute
        nodes, their recorded ``duration`` [s], per collective ``count`` and ``bytes``, and
        messages ``sent`` and ``received`` (count and bytes).
    """
    compute = trace.kinds == COMPUTE
    kinds, counts = np.unique(trace.kinds, return_counts=True)
    collectives: dict[str, Any] = {}
    is_collective = (trace.kinds == COLLECTIVE) & (trace.collective >= 0)
    for kind in np.unique(trace.collective[is_collective]):
        chosen = is_collective & (trace.collective == kind)
        collectives[TRACED[kind]] = {
            "count": int(chosen.sum()),
            "bytes": _total(trace.communication_size[chosen]),
        }
    return {
        "nodes": {NODE_KINDS[k]: int(n) for k, n in zip(kinds, counts, strict=True)},
        "dependencies": len(trace.data_parents.values) + len(trace.control_parents.values),
        "num_ops": _total(trace.num_ops[compute]),
        "tensor_size": _total(trace.tensor_size[compute]),
        "duration": float(trace.duration[compute].sum()),
        "collectives": collectives,
        "sent": _messages(trace, SEND),
        "received": _messages(trace, RECEIVE),
    }


def traces_summary(
    traces: TraceSet, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Return the figures of all ranks, added up, and those of the first rank."""
    whole: dict[str, Any] = {
        "ranks": traces.devices,
        "nodes": traces.nodes,
        "groups": len(traces.groups),
        "num_ops": 0,
        "tensor_size": 0,
        "collectives": {},
        "sent": {"count": 0, "bytes": 0},
    }
    seen: dict[tuple[int, ...], dict[str, Any]] = {}
    for rank, trace in enumerate(traces.traces):
        if progress is not None and rank % REPORTED == 0:
            progress(rank, traces.devices)
        columns = tuple(id(getattr(trace, name)) for name in SUMMED)
        if columns not in seen:  # ranks may share their columns
            seen[columns] = trace_summary(trace)
        found = seen[columns]
        whole["num_ops"] += found["num_ops"]
        whole["tensor_size"] += found["tensor_size"]
        for name, row in [("", found["sent"]), *found["collectives"].items()]:
            into = whole["collectives"].setdefault(name, {}) if name else whole["sent"]
            for key in ("count", "bytes"):
                into[key] = into.get(key, 0) + row[key]
    remarks = trace_remarks(traces)
    if remarks:
        whole["remarks"] = remarks
    whole["first_rank"] = next(iter(seen.values()), None)
    return whole


def trace_remarks(traces: TraceSet) -> list[str]:
    """Return what conversions remarked, each line once, with the rank of which it is said first."""
    ranks: dict[str, int] = {}
    for rank, trace in enumerate(traces.traces):
        text = trace.metadata.get(REMARKS)
        for line in text.splitlines() if isinstance(text, str) else ():
            ranks.setdefault(line, rank)
    lines = [f"rank {rank}: {line}" for line, rank in ranks.items()]
    more = len(lines) - MOST_REMARKS
    return lines if more <= 0 else [*lines[:MOST_REMARKS], f"and {more} more such lines"]


def _aicb_text(path: str | Path) -> dict[str, Any]:
    """Return the figures of a SimAI text."""
    from perfmodel.workloads.formats.aicb_text import read_aicb_text

    workload = read_aicb_text(path)
    return {
        "policy": workload.header.policy,
        "header": dict(workload.header.entries),
        "rows": workload.rows,
        **_phases((workload.forward, workload.input_gradient, workload.weight_gradient)),
    }


def _astra_text(path: str | Path) -> dict[str, Any]:
    """Return the figures of an ASTRA-sim text; its numbers are nanoseconds."""
    from perfmodel.workloads.formats.astra_text import read_astra_text

    workload = read_astra_text(path)
    return {
        "policy": workload.policy,
        "layers": workload.layers,
        **_phases(workload.phases),
    }


def _phases(phases: Sequence[AicbPhase | AstraTextPhase]) -> dict[str, Any]:
    """Return compute time and collectives of forward, input gradient and weight gradient."""
    return {
        "compute_time": {
            name: float(phase.compute_time.astype(float).sum()) * 1e-9
            for name, phase in zip(PHASES, phases, strict=True)
        },
        "collectives": _by_kind(
            (str(kind), int(size))
            for phase in phases
            for kind, size in zip(phase.collective, phase.size, strict=True)
            if str(kind) != "NONE"
        ),
    }


def _aicb_csv(path: str | Path) -> dict[str, Any]:
    """Return the figures of AICB's table of calls."""
    from perfmodel.workloads.formats.aicb_tables import read_aicb_csv

    events = read_aicb_csv(path)
    calls = [
        (event.comm_type, int(event.message_size))
        for event in events
        if isinstance(event.message_size, int | float)
    ]
    operations = sum(event.floating_point_operations for event in events)
    return {"rows": len(events), "num_ops": operations, "collectives": _by_kind(calls)}


def _vidur(path: str | Path) -> dict[str, Any]:
    """Return the figures of AICB's table for Vidur."""
    from perfmodel.workloads.formats.aicb_tables import read_vidur_csv

    parts = read_vidur_csv(path)
    return {
        "rows": len(parts),
        "compute_time": float(sum(part.compute_time for part in parts)) * 1e-9,
        "communication_bytes": int(sum(part.message_size for part in parts)),
    }


def _aiob(path: str | Path) -> dict[str, Any]:
    """Return the average times of a computation file."""
    from perfmodel.workloads.formats.aiob import read_aiob

    found = read_aiob(path)
    return {
        "iterations": found.train_iter,
        "phase": found.inference_term,
        "times": {name: time.average * 1e-6 for name, time in found.sections.items()},
    }


def _by_kind(calls: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    """Return count and bytes of each kind of collective."""
    found: dict[str, dict[str, int]] = {}
    for kind, size in calls:
        row = found.setdefault(str(kind), {"count": 0, "bytes": 0})
        row["count"] += 1
        row["bytes"] += size
    return found


def _messages(trace: Trace, kind: int) -> dict[str, int]:
    """Return count and bytes of messages."""
    chosen = trace.kinds == kind
    return {"count": int(chosen.sum()), "bytes": _total(trace.communication_size[chosen])}


def _total(column: np.ndarray) -> int:
    """Add up what is stated; Python's whole numbers do not overflow."""
    return sum(int(value) for value in column[column > 0])
