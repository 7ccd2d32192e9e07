"""What execution traces hold, in figures: nodes, operations, bytes by collective."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.trace import COLLECTIVE, COMPUTE, NODE_KINDS, RECEIVE, SEND, Trace, TraceSet


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


def traces_summary(traces: TraceSet) -> dict[str, Any]:
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
    seen: dict[int, dict[str, Any]] = {}
    for trace in traces.traces:
        if id(trace) not in seen:  # ranks may share one
            seen[id(trace)] = trace_summary(trace)
        found = seen[id(trace)]
        whole["num_ops"] += found["num_ops"]
        whole["tensor_size"] += found["tensor_size"]
        for name, row in [("", found["sent"]), *found["collectives"].items()]:
            into = whole["collectives"].setdefault(name, {}) if name else whole["sent"]
            for key in ("count", "bytes"):
                into[key] = into.get(key, 0) + row[key]
    whole["first_rank"] = seen[id(traces.traces[0])] if traces.traces else None
    return whole


def _messages(trace: Trace, kind: int) -> dict[str, int]:
    """Return count and bytes of messages."""
    chosen = trace.kinds == kind
    return {"count": int(chosen.sum()), "bytes": _total(trace.communication_size[chosen])}


def _total(column: np.ndarray) -> int:
    """Add up what is stated; Python's whole numbers do not overflow."""
    return sum(int(value) for value in column[column > 0])
