"""Graphs of ranks as the simulation reads them: sorted, numbered, shared.

Nodes are numbered in ascending order of identifier, which is the order in which ready nodes
begin. Ranks whose columns say the same share one `Graph`, whatever their identifiers, names,
group names and peers are called. Traces that are equal column by column, the usual case, are
found before any graph is made of them; others by what their graphs say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError
from perfmodel.workloads.simulation.costs import Costs, LocalCosts, check_columns, on_host
from perfmodel.workloads.trace import (
    ABSENT,
    COMPUTE,
    EVERYBODY,
    METADATA,
    RECEIVE,
    SEND,
    NamedSizes,
    OtherPeers,
    Ragged,
    Trace,
    TraceSet,
)

UNLIMITED, DEVICE, COMMUNICATION, HOST = range(4)  # resources; more follow for streams
INVALID = 0
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
        As `kernels.trace.schedule` has them.
    local : LocalCosts
    child_offsets, children, parents : int64
        As `kernels.trace.schedule` has them.
    collectives : int64[nodes of synchronised collectives]
        Ascending numbers of nodes.
    by_slot : Ragged
        Numbers of the collectives of each of the rank's groups, ascending.
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
    by_slot: Ragged
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
    peers : OtherPeers or None
        Where the peers of its messages are not those of the trace.
    """

    graph: int
    trace: Trace
    order: Integers
    slots: tuple[tuple[str, tuple[bool, ...] | None], ...]
    peers: OtherPeers | None = None

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of what the rank does, its peers included."""
        column: NDArray[Any] = (
            getattr(self.trace, name) if self.peers is None else self.peers.column(name)
        )
        return column


def with_parents(trace: Trace, control_parents: str, alone: bool) -> Trace:
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


def make_graph(
    trace: Trace, costs: Costs, memory: bool, traces: TraceSet, before: Graph | None
) -> tuple[Graph, tuple[tuple[str, tuple[bool, ...] | None], ...]]:
    """Return a trace's graph, and what `Rank.slots` says.

    Parameters
    ----------
    trace : Trace
    costs : Costs
    memory : bool
        Also read the tensors.
    traces : TraceSet
        Of which the trace is one.
    before : Graph or None
        Another rank's graph, which may have the same tensors.

    Raises
    ------
    FormatError
        Parents are missing, identifiers repeat, or a node cannot be priced.
    """
    from perfmodel.kernels.workloads.trace.schedule import COLLECTIVE as MEETING
    from perfmodel.kernels.workloads.trace.schedule import INSTANT, TIMED
    from perfmodel.kernels.workloads.trace.schedule import RECEIVE as RECEIVING
    from perfmodel.kernels.workloads.trace.schedule import SEND as SENDING

    check_columns(trace)
    alone, groups = traces.devices == 1, traces.groups
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
    # Parents hold the order of lanes; that of communication between ranks is the groups'.
    side_by_side = (trace.lane[order] != ABSENT) & ((kinds == COMPUTE) | alone)
    resource[side_by_side] = UNLIMITED
    resource[(kinds == RECEIVE) & ~host] = UNLIMITED

    collectives = np.flatnonzero(meeting)
    slots, slot = _slots(trace, order[collectives], groups, costs)
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
        _by_slot(collectives, slot, len(slots)),
        np.flatnonzero(messages),
        _tensors(trace, order, before) if memory and trace.tensors else None,
    )
    return graph, slots


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


def known_names(trace: Trace, groups: Collection[str]) -> tuple[str, ...]:
    """Return the names of a trace's groups; newer versions call all ranks "0"."""
    return tuple("" if name == "0" and name not in groups else name for name in trace.group_names)


def _by_slot(collectives: Integers, slot: Integers, slots: int) -> Ragged:
    """Return the collectives of each slot."""
    offsets = np.zeros(slots + 1, np.int64)
    np.cumsum(np.bincount(slot, minlength=slots), out=offsets[1:])
    return Ragged(offsets, collectives[np.argsort(slot, kind="stable")])


def _slots(
    trace: Trace, positions: Integers, groups: Collection[str], costs: Costs
) -> tuple[tuple[tuple[str, tuple[bool, ...] | None], ...], Integers]:
    """Return a rank's groups in order of first use, and which one each collective uses.

    All dimensions are no restriction.
    """
    pairs = (trace.group[positions].astype(np.int64) << 32) + trace.involved[positions]
    different, first, slot = np.unique(pairs, return_index=True, return_inverse=True)
    group_names = known_names(trace, groups)
    names: dict[tuple[str, tuple[bool, ...] | None], int] = {}
    number = np.zeros(len(different), np.int64)
    for row in np.argsort(first):
        position = positions[first[row]]
        group, involved = trace.group[position], trace.involved[position]
        name = "" if group == EVERYBODY else group_names[group]
        stated = None if involved == ABSENT else trace.involved_dimensions[involved]
        flags = costs.restriction(stated, trace.involved_attributes, bool(name))
        name = name if flags is None else ""
        restricted = flags is not None and not all(flags)
        number[row] = names.setdefault((name, flags if restricted else None), len(names))
    return tuple(names), number[np.reshape(slot, -1)]


def _tensors(trace: Trace, order: Integers, before: Graph | None) -> Tensors:
    """Return what nodes read and write, in order of identifier, names numbered."""
    inputs, outputs = _rows(trace.inputs, order), _rows(trace.outputs, order)
    if before is not None and before.tensors and before.trace.tensors == trace.tensors:
        return replace(before.tensors, inputs=inputs, outputs=outputs)
    named = NamedSizes.of(trace.tensors)
    return Tensors(inputs, outputs, named.name, named.size)


def _rows(lists: Ragged, order: Integers) -> Ragged:
    """Return lists in another order."""
    lengths = np.diff(lists.offsets)[order]
    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    shift = np.repeat(lists.offsets[:-1][order] - offsets[:-1], lengths)
    return Ragged(offsets, lists.values[np.arange(offsets[-1]) + shift])


# Columns of which graphs are made, those first in which ranks are likely to differ.
READ = (
    *("identifiers", "kinds", "duration", "num_ops", "tensor_size", "collective"),
    *("communication_size", "group", "involved", "on_cpu", "lane", "involved_dimensions"),
    *("involved_attributes", "whole_microseconds"),
    *("data_parents", "control_parents", "inputs", "outputs", "tensors"),
)
MOST_COMPARED = 4  # traces of one size to which another is compared column by column


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
    by_content = _Contents(graphs)
    by_object: dict[int, Rank] = {}
    by_length: dict[tuple[int, ...], list[Rank]] = {}
    ranks: list[Rank] = []
    alone = traces.devices == 1
    for part in traces.parts:
        trace, peers = (part.trace, part) if isinstance(part, OtherPeers) else (part, None)
        known = by_object.get(id(trace))
        if known is None:
            alike = by_length.setdefault(trace.sizes, [])
            same = next((rank for rank in alike if _alike(rank.trace, trace)), None)
            known = _renamed(same, trace, traces.groups)
        if known is None:
            found = with_parents(trace, control_parents, alone)
            before = graphs[-1] if graphs else None
            try:
                graph, slots = make_graph(found, costs, memory, traces, before)
            except FormatError as error:
                raise FormatError(f"rank {len(ranks)}, {error}") from None
            known = Rank(by_content.find(graph), trace, graph.order, slots)
            alike.insert(0, known)
            del alike[MOST_COMPARED:]
        by_object[id(trace)] = known
        ranks.append(known if known.peers is peers else replace(known, peers=peers))
    return graphs, tuple(ranks)


def _alike(one: Trace, other: Trace) -> bool:
    """Tell whether two traces say the same but for names, peers and recorded begins."""
    return all(_equal(getattr(one, name), getattr(other, name)) for name in READ) and all(
        (key in one.metadata) == (key in other.metadata) for key in RECORDING
    )


def _equal(one: Any, other: Any) -> bool:
    """Tell whether two columns are equal."""
    if one is other:
        return True
    if isinstance(one, Ragged):
        return _equal(one.offsets, other.offsets) and _equal(one.values, other.values)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def _renamed(known: Rank | None, trace: Trace, groups: Collection[str]) -> Rank | None:
    """Return a rank whose trace shares all columns with one known: only its groups differ."""
    if known is None:
        return None
    old, new = (known_names(one, groups) for one in (known.trace, trace))
    if len(old) != len(new) or any(len({*names, ""}) <= len(names) for names in (old, new)):
        return None
    names = {"": "", **dict(zip(old, new, strict=True))}
    slots = tuple((names[name], involved) for name, involved in known.slots)
    return Rank(known.graph, trace, known.order, slots)


class _Contents:
    """Graphs by what they say; those of one size only are read in full."""

    def __init__(self, graphs: list[Graph]) -> None:
        self._graphs = graphs
        self._by_size: dict[tuple[int, ...], list[int]] = {}
        self._by_digest: dict[bytes, int] = {}

    def find(self, graph: Graph) -> int:
        """Return the position of an equal graph; without one, that of this one, now added."""
        size = (graph.nodes, len(graph.children), len(graph.collectives), len(graph.messages))
        alike = self._by_size.setdefault(size, [])
        if len(alike) == 1:
            self._by_digest[_digest(self._graphs[alike[0]])] = alike[0]
        index = len(self._graphs)
        if alike:
            index = self._by_digest.setdefault(_digest(graph), index)
        if index == len(self._graphs):
            self._graphs.append(graph)
            alike.append(index)
        return index


def _digest(graph: Graph) -> bytes:
    """Return a digest of all that a graph says."""
    digest = hashlib.blake2b(digest_size=16)
    for column in _said(graph):
        data = np.ascontiguousarray(column)
        digest.update(f"{data.dtype.str}{data.shape}".encode())
        digest.update(data.data if data.size else b"")
    return digest.digest()


def _said(graph: Graph) -> Iterator[Any]:
    """Yield all columns in which graphs may differ."""
    yield from (graph.role, graph.resource, graph.child_offsets, graph.children, graph.parents)
    for name in LocalCosts.__slots__:
        yield getattr(graph.local, name)
    yield from (graph.by_slot.offsets, graph.by_slot.values)
    for name in ("kinds", "collective", "communication_size"):
        yield graph.column(name)
    if graph.tensors is not None:
        for column in (graph.tensors.inputs, graph.tensors.outputs):
            yield from (column.offsets, column.values)
        yield from (graph.tensors.key, graph.tensors.size)
