"""Which ranks do the same: they share one graph.

Ranks whose columns say the same share one `Graph`, whatever their identifiers, names, group
names and peers are called. Traces that are equal column by column, the usual case, are
found before any graph is made of them; others by what their graphs say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.base.errors import FormatError
from perfmodel.workloads.simulation.costs import Costs, LocalCosts
from perfmodel.workloads.simulation.graph import (
    RECORDING,
    Graph,
    Rank,
    known_names,
    make_graph,
    with_parents,
)
from perfmodel.workloads.trace import OtherPeers, Ragged, Trace, TraceSet

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
