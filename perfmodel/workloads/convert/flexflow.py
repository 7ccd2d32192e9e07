"""FlexFlow's task graphs as execution traces, one per device.

Rules of mlcommons/chakra, ``et_converter/flexflow2chakra_converter.py`` (0c17c63): a
computation goes to its device; a message becomes a send on its source and a receive on its
destination, both with the message's number and one tag of their own; a message keeps only the
parents on the same device, a computation keeps all. Beyond upstream, every node states that it
runs on the device: some versions of the feeder take a node that does not for one of the host.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.formats.flexflow import TaskGraph
from perfmodel.workloads.trace import ABSENT, COMPUTE, RECEIVE, SEND, Trace, TraceBuilder, TraceSet

MILLISECOND = 1e-3  # unit of run times in FlexFlow's simulator [s]
LARGEST_TIME = 1e9  # s


def flexflow_traces(
    graph: TaskGraph, npu_frequency: float | None = None, run_time_unit: float = MILLISECOND
) -> TraceSet:
    """Convert a task graph to one trace per device.

    Parameters
    ----------
    graph : TaskGraph
    npu_frequency : float, optional
        Clock of a device [MHz]. Reproduces the upstream converter, which takes run times as
        seconds and stores cycles, rounded, where traces hold microseconds.
    run_time_unit : float, optional
        Unit of the graph's run times [s]; not used where `npu_frequency` is given.

    Returns
    -------
    TraceSet
        Nodes of a device in the order of their numbers, without computations of other devices.

    Raises
    ------
    FormatError
        A computation waits for a node of another device, or a time is too long.
    DataError
        Frequency or unit is not positive.
    """
    durations = _durations(graph, npu_frequency, run_time_unit)
    messages = np.flatnonzero(graph.messages)
    owners = [np.flatnonzero(graph.device != ABSENT), messages, messages]
    devices = [graph.device[owners[0]], graph.source[messages], graph.destination[messages]]
    position, device = np.concatenate(owners), np.concatenate(devices)
    order = np.lexsort((graph.identifiers[position], device))
    bounds = np.searchsorted(device[order], np.arange(graph.devices + 1))
    tags = _tags(graph)
    empty = TraceBuilder().build()
    return TraceSet(
        tuple(
            _device_trace(graph, durations, tags, rank, position[order[first:end]])
            if end > first
            else empty
            for rank, (first, end) in enumerate(pairwise(bounds))
        )
    )


def _durations(graph: TaskGraph, npu_frequency: float | None, unit: float) -> list[float]:
    """Return how long every computation takes [s]."""
    for name, value in (("npu_frequency", npu_frequency), ("run_time_unit", unit)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise DataError(f"{name} is {value}; it should be a finite number > 0")
    with np.errstate(over="ignore"):  # refused below
        if npu_frequency is None:
            seconds = graph.run_time * unit
        else:
            seconds = np.rint(graph.run_time * (npu_frequency * 1e6)) / 1e6
    longest = float(seconds.max(initial=0.0))
    if longest > LARGEST_TIME:
        node = graph.identifiers[int(seconds.argmax())]
        raise FormatError(f"node{node} takes {longest:.3g} s; at most {LARGEST_TIME:.0e} s are run")
    return [float(duration) for duration in seconds]


def _tags(graph: TaskGraph) -> Integers:
    """Return a tag per message: numbers in the order in which upstream meets messages.

    It goes through the devices and, for each, through the file's nodes.
    """
    messages = np.flatnonzero(graph.messages)
    first_device = np.minimum(graph.source, graph.destination)[messages]
    tags = np.full(graph.nodes, ABSENT, np.int64)
    tags[messages[np.argsort(first_device, kind="stable")]] = np.arange(len(messages))
    return tags


def _device_trace(
    graph: TaskGraph, durations: list[float], tags: Integers, rank: int, positions: Integers
) -> Trace:
    """Return what one device does, given the positions of its nodes."""
    builder = TraceBuilder()
    for position in map(int, positions):
        parents = graph.parents[position]
        here = _touches(graph, parents, rank)
        identifier = int(graph.identifiers[position])
        if graph.size[position] == ABSENT:
            if not here.all():
                raise FormatError(
                    f"node{identifier} ({graph.names[position]}) on device {rank} waits for "
                    f"node{graph.identifiers[parents[~here][0]]} of another device; a message "
                    "between them is missing"
                )
            builder.add(
                f"COMP_NODE_{graph.names[position]}",
                COMPUTE,
                identifier=identifier,
                duration=durations[position],
                on_cpu=0,
                data=graph.identifiers[parents].tolist(),
            )
            continue
        sends = graph.source[position] == rank
        builder.add(
            f"COMM_{'SEND' if sends else 'RECV'}_NODE_{graph.names[position]}",
            SEND if sends else RECEIVE,
            identifier=identifier,
            source=int(graph.source[position]),
            destination=int(graph.destination[position]),
            communication_size=int(graph.size[position]),
            tag=int(tags[position]),
            on_cpu=0,
            data=graph.identifiers[parents[here]].tolist(),
        )
    return builder.build()


def _touches(graph: TaskGraph, positions: Integers, rank: int) -> np.ndarray:
    """Tell which nodes have a part on a device."""
    columns = (graph.device, graph.source, graph.destination)
    return np.any([column[positions] == rank for column in columns], axis=0)
