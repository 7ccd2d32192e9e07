"""What ASTRA-sim reports of a rank, from when its nodes began and ended.

Sources: astra-sim af2492b, `workload/Statistics.cc` and `workload/Workload.cc`.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Floats, Integers
from perfmodel.workloads.simulation.costs import on_host
from perfmodel.workloads.simulation.graph import Graph, Rank
from perfmodel.workloads.simulation.result import ClassFigures
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, PAUSE, RECEIVE, SEND


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
