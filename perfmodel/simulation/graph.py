"""Graphs of ranks as the simulation reads them: sorted, numbered and shared.

Nodes are numbered in ascending order of identifier, which is the order in which ready nodes
begin. Ranks whose columns say the same share one `Graph`, whatever their identifiers,
names, group names and peers are called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from perfmodel.errors import FormatError
from perfmodel.simulation.costs import Costs, Integers, LocalCosts, node_text, on_host
from perfmodel.trace import (
    ABSENT,
    COMPUTE,
    EVERYBODY,
    METADATA,
    RECEIVE,
    SEND,
    Ragged,
    Trace,
    TraceSet,
)

UNLIMITED, DEVICE, COMMUNICATION, HOST = range(4)  # resources; more follow for streams
INVALID = 0
LONGEST = 1e9  # [s]
RECORDING = ("pid", "start_ts", "finish_ts")  # metadata of PyTorch's traces


@dataclass(frozen=True, slots=True)
class Tensors:
    """What nodes read and write.

    Attributes
    ----------
    inputs, outputs : Ragged
        Per node in order of identifier, rows of the next two.
    key, size : int64[tensors]
        Number of its name; [B].
    """

    inputs: Ragged
    outputs: Ragged
    key: Integers
    size: Integers


@dataclass(frozen=True, slots=True)
class Graph:
    """What ranks share that do the same; nodes in order of identifier.

    Attributes
    ----------
    trace : Trace
        Of the first such rank.
    order : int64[nodes]
        Position of each node in that trace.
    role, resource : int64[nodes]
        As `kernels.trace_schedule` has them.
    local : LocalCosts
    child_offsets, children, parents : int64
        As `kernels.trace_schedule` has them.
    collectives : int64[nodes of synchronised collectives]
        Ascending numbers of nodes.
    slot : int64[nodes of synchronised collectives]
        Which of the rank's groups each of them uses.
    slots : int
    messages : int64[sends and receives]
        Ascending numbers of nodes.
    tensors : Tensors or None
    """

    trace: Trace
    order: Integers
    role: Any
    resource: Any
    local: LocalCosts
    child_offsets: Integers
    children: Integers
    parents: Integers
    collectives: Integers
    slot: Integers
    slots: int
    messages: Integers
    tensors: Tensors | None

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.order)

    def column(self, name: str) -> Any:
        """Return a column of the trace in order of identifier."""
        return getattr(self.trace, name)[self.order]


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank has by itself.

    Attributes
    ----------
    graph : int
        Position among the graphs.
    trace : Trace
    order : int64[nodes]
        Position in the trace of each node in order of identifier.
    slots : tuple of (str, tuple of bool or None)
        Name of each slot's communicator group ("": all ranks), and the dimensions that
        take part (None: all).
    """

    graph: int
    trace: Trace
    order: Integers
    slots: tuple[tuple[str, tuple[bool, ...] | None], ...]


def share_graphs(
    traces: TraceSet, costs: Costs, memory: bool, control_parents: str
) -> tuple[list[Graph], tuple[Rank, ...]]:
    """Return the different graphs of all ranks, and each rank's part.

    Parameters
    ----------
    traces : TraceSet
    costs : Costs
    memory : bool
        Also read the tensors.
    control_parents : {"auto", "obey", "ignore"}

    Raises
    ------
    FormatError
        Parents are missing, identifiers repeat, or a node cannot be priced.
    """
    graphs: list[Graph] = []
    by_content: dict[bytes, int] = {}
    by_object: dict[int, Rank] = {}
    by_columns: dict[tuple[int, ...], Rank] = {}
    ranks = []
    alone = traces.devices == 1
    for trace in traces.traces:
        known = by_object.get(id(trace)) or _renamed(by_columns.get(_columns(trace)), trace)
        if known is None:
            found = _with_parents(trace, control_parents, alone)
            before = graphs[-1] if graphs else None
            graph, slots, digest = _graph(found, costs, memory, alone, before)
            index = by_content.setdefault(digest, len(graphs))
            if index == len(graphs):
                graphs.append(graph)
            known = Rank(index, trace, graph.order, slots)
            by_columns[_columns(trace)] = known
        by_object[id(trace)] = known
        ranks.append(known)
    return graphs, tuple(ranks)


def _columns(trace: Trace) -> tuple[int, ...]:
    """Return which objects a trace consists of, but for the names of its groups."""
    return tuple(
        id(getattr(trace, item.name)) for item in fields(trace) if item.name != "group_names"
    )


def _renamed(known: Rank | None, trace: Trace) -> Rank | None:
    """Return a rank whose trace shares all columns with one known: only its groups differ."""
    if known is None:
        return None
    old, new = known.trace.group_names, trace.group_names
    if len(old) != len(new) or any(len({*names, ""}) <= len(names) for names in (old, new)):
        return None
    names = {"": "", **dict(zip(old, new, strict=True))}
    slots = tuple((names[name], involved) for name, involved in known.slots)
    return Rank(known.graph, trace, known.order, slots)


def _with_parents(trace: Trace, control_parents: str, alone: bool) -> Trace:
    """Return a trace without control parents where they are to be ignored.

    Those of a profiler's recording say which operation called which, and name threads and
    processes that are no nodes; Chakra's own feeder obeys data parents only.
    """
    if control_parents == "obey":
        return trace
    recorded = all(key in trace.metadata for key in RECORDING)
    if alone and not recorded:
        recorded = not np.isin(trace.control_parents.values, trace.identifiers).all()
    if control_parents == "auto" and not recorded:
        return trace
    nothing = Ragged(np.zeros(trace.nodes + 1, np.int64), np.zeros(0, np.int64))
    return replace(trace, control_parents=nothing)


def _graph(
    trace: Trace, costs: Costs, memory: bool, alone: bool, before: Graph | None
) -> tuple[Graph, tuple[tuple[str, tuple[bool, ...] | None], ...], bytes]:
    """Return a trace's graph, its groups, and a digest of all that the graph says.

    `before` is another rank's graph, which may have the same tensors.
    """
    from perfmodel.kernels.trace_schedule import COLLECTIVE as MEETING
    from perfmodel.kernels.trace_schedule import INSTANT, TIMED
    from perfmodel.kernels.trace_schedule import RECEIVE as RECEIVING
    from perfmodel.kernels.trace_schedule import SEND as SENDING

    _check_durations(trace)
    order = np.argsort(trace.identifiers, kind="stable")
    child_offsets, children, parents = _edges(trace, order)
    local = _ordered(costs.local(trace), order)
    # One rank alone has nobody to talk to: its communication lasts as recorded.
    meeting = np.zeros(trace.nodes, np.bool_) if alone else costs.synchronised(trace)[order]
    kinds = trace.kinds[order]
    host = on_host(trace)[order]
    messages = np.isin(kinds, (SEND, RECEIVE)) & (not alone) & ~host

    role = np.full(trace.nodes, TIMED, np.int64)
    role[np.isin(kinds, (INVALID, METADATA)) | local.skipped] = INSTANT
    role[meeting] = MEETING
    role[messages & (kinds == SEND)] = SENDING
    role[messages & (kinds == RECEIVE)] = RECEIVING
    resource = np.full(trace.nodes, COMMUNICATION, np.int64)
    resource[kinds == COMPUTE] = DEVICE
    resource[host] = HOST
    resource[(kinds == RECEIVE) & ~host] = UNLIMITED

    collectives = np.flatnonzero(meeting)
    slots, slot = _slots(trace, order[collectives])
    if costs.streams == "per-group":
        resource[collectives] = HOST + 1 + slot
    graph = Graph(
        trace,
        order,
        role,
        resource,
        local,
        child_offsets,
        children,
        parents,
        collectives,
        slot,
        len(slots),
        np.flatnonzero(messages),
        _tensors(trace, order, before) if memory and trace.tensors else None,
    )
    digest = hashlib.blake2b(digest_size=16)
    for column in _said(graph):
        data = np.ascontiguousarray(column)
        digest.update(f"{data.dtype.str}{data.shape}".encode())
        digest.update(data.data if data.size else b"")
    return graph, slots, digest.digest()


def _check_durations(trace: Trace) -> None:
    """Raise unless all durations are times that can be counted."""
    wrong = np.flatnonzero(~((trace.duration >= 0) & (trace.duration <= LONGEST)))
    if wrong.size:
        position = int(wrong[0])
        raise FormatError(
            f"{node_text(trace, position)} lasts {trace.duration[position]:g} s; durations "
            f"should be 0 to {LONGEST:g} s"
        )


def _said(graph: Graph) -> Iterator[Any]:
    """Yield all columns in which graphs may differ."""
    yield from (graph.role, graph.resource, graph.child_offsets, graph.children, graph.parents)
    for name in LocalCosts.__slots__:
        yield getattr(graph.local, name)
    yield graph.slot
    for name in ("kinds", "collective", "communication_size"):
        yield graph.column(name)
    if graph.tensors is not None:
        for column in (graph.tensors.inputs, graph.tensors.outputs):
            yield from (column.offsets, column.values)
        yield from (graph.tensors.key, graph.tensors.size)


def _edges(trace: Trace, order: Integers) -> tuple[Integers, Integers, Integers]:
    """Return every node's children, and how many nodes it waits for, by order of identifier.

    A parent that is named twice counts twice, as a child and as a parent.
    """
    waits = trace.parent_positions()
    number = np.empty(trace.nodes, np.int64)
    number[order] = np.arange(trace.nodes)
    lengths = np.diff(waits.offsets)
    child = np.repeat(number, lengths)
    parent = number[waits.values]
    by_parent = np.argsort(parent, kind="stable")
    offsets = np.zeros(trace.nodes + 1, np.int64)
    np.cumsum(np.bincount(parent, minlength=trace.nodes), out=offsets[1:])
    return offsets, child[by_parent], lengths[order]


def _ordered(local: LocalCosts, order: Integers) -> LocalCosts:
    """Return costs in order of identifier."""
    return LocalCosts(*(getattr(local, name)[order] for name in LocalCosts.__slots__))


def _slots(
    trace: Trace, positions: Integers
) -> tuple[tuple[tuple[str, tuple[bool, ...] | None], ...], Integers]:
    """Return a rank's groups in order of first use, and which one each collective uses.

    Involved dimensions override the group (Workload.cc of the simulator); all of them are
    no restriction.
    """
    pairs = np.stack([trace.group[positions], trace.involved[positions]], axis=1).astype(np.int64)
    different, first, slot = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    names: dict[tuple[str, tuple[bool, ...] | None], int] = {}
    number = np.zeros(len(different), np.int64)
    for row in np.argsort(first):
        group, involved = different[row]
        flags = None if involved == ABSENT else trace.involved_dimensions[involved]
        restricted = flags is not None and not all(flags)
        name = "" if flags is not None or group == EVERYBODY else trace.group_names[group]
        number[row] = names.setdefault((name, flags if restricted else None), len(names))
    return tuple(names), number[np.reshape(slot, -1)]


def _tensors(trace: Trace, order: Integers, before: Graph | None) -> Tensors:
    """Return what nodes read and write, in order of identifier, names numbered."""
    inputs, outputs = _rows(trace.inputs, order), _rows(trace.outputs, order)
    if before is not None and before.tensors and before.trace.tensors == trace.tensors:
        return replace(before.tensors, inputs=inputs, outputs=outputs)
    names: dict[str, int] = {}
    key = np.array([names.setdefault(name, len(names)) for name, _ in trace.tensors], np.int64)
    size = np.array([size for _, size in trace.tensors], np.int64)
    return Tensors(inputs, outputs, key, size)


def _rows(lists: Ragged, order: Integers) -> Ragged:
    """Return lists in another order."""
    lengths = np.diff(lists.offsets)[order]
    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    shift = np.repeat(lists.offsets[:-1][order] - offsets[:-1], lengths)
    return Ragged(offsets, lists.values[np.arange(offsets[-1]) + shift])
