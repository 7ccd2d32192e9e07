"""The generator's second program: operations of all nodes in its order, on cores.

Its barriers between operations are counted over the wafer in this order: that of
``networkx.topological_sort`` on the graph of all nodes, generation by generation. What an
operation feeds is visited in the order in which tensors are first named, node by node.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/common/graph.py``; networkx
3.6.1, ``algorithms/dag.py``.

The generator goes through the operations of all nodes, decides which bank each block of every
tensor lies in, and gives every tile of an operation to a core. Before each operation that has
instructions all cores of a node meet at a barrier, but before its first.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/generate_traces.py``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import shortened
from perfmodel.wafer.core_trace import TracePiece
from perfmodel.wafer.cores.instructions import BARRIER, build
from perfmodel.wafer.generator_files import GraphNode, NodeOperation, Tiling, shapes
from perfmodel.wafer.twin import layouts
from perfmodel.wafer.twin.core_lines import (
    DEFAULT_TILING,
    attention_tile,
    barrier_number,
    product_tile,
)
from perfmodel.wafer.twin.core_pieces import (
    CoreNode,
    all_reduce_pieces,
    attention_pieces,
    copy_piece,
    multicast_piece,
    product_pieces,
    sum_piece,
)
from perfmodel.wafer.twin.layouts import Layout, Row, Shape


def mapping_order(graphs: Sequence[Sequence[GraphNode]]) -> list[tuple[int, int]]:
    """Return all operations of a wafer in the order in which they are mapped.

    Parameters
    ----------
    graphs : sequence of sequence of GraphNode
        Of every node.

    Returns
    -------
    list of (int, int)
        Node, and place in its graph.

    Raises
    ------
    FormatError
        Operations wait for one another in a circle.
    """
    number: dict[str, int] = {}  # of tensors, in the order in which they are first named
    places: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []  # tensor, operation
    made: list[tuple[int, int]] = []
    nameless = ("",)  # as the generator reads an empty list
    for node, graph in enumerate(graphs):
        for at, (_, _, inputs, outputs) in enumerate(graph):
            for listed, pairs in ((inputs, read), (outputs, made)):
                for tensor in listed or nameless:
                    pairs.append((number.setdefault(tensor, len(number)), len(places)))
            places.append((node, at))
    order = _sorted(_edges(_table(read), _table(made), len(number), len(places)), len(places))
    if len(order) < len(places):
        node, at = places[min(set(range(len(places))) - set(order))]
        raise FormatError(
            f"graph of node {node}: operation '{graphs[node][at].name}' waits for itself"
        )
    return [places[one] for one in order]


def _table(pairs: list[tuple[int, int]]) -> Integers:
    return np.array(pairs, np.int64).reshape(-1, 2)


def _edges(
    read: Integers, made: Integers, tensors: int, operations: int
) -> tuple[Integers, Integers]:
    """Return which operation feeds which, each pair once, in the order of visits.

    What nothing makes comes from a root, which is numbered behind all operations.
    """
    by_tensor = read[np.argsort(read[:, 0], kind="stable")]
    readers = np.bincount(read[:, 0], minlength=tensors)
    first = np.cumsum(readers) - readers
    unmade = np.setdiff1d(np.arange(tensors), made[:, 0])
    roots = np.stack((unmade, np.full(len(unmade), operations)), axis=1)
    made = np.concatenate((made, roots))
    made = made[np.lexsort((made[:, 0], made[:, 1]))]
    counts = readers[made[:, 0]]
    begin = np.cumsum(counts) - counts
    within = np.arange(counts.sum()) - np.repeat(begin, counts)
    source = np.repeat(made[:, 1], counts)
    target = by_tensor[np.repeat(first[made[:, 0]], counts) + within, 1]
    _, kept = np.unique(source * (operations + 1) + target, return_index=True)
    kept.sort()
    return source[kept], target[kept]


def _sorted(edges: tuple[Integers, Integers], operations: int) -> list[int]:
    """Return operations generation by generation, without those in a circle."""
    source, target = edges
    waits = np.bincount(target, minlength=operations)
    counts = np.bincount(source, minlength=operations + 1)
    first = np.cumsum(counts) - counts
    order: list[int] = []
    ready = np.array([operations])
    while ready.size:
        fed = counts[ready]
        begin = np.cumsum(fed) - fed
        visited = target[np.repeat(first[ready] - begin, fed) + np.arange(fed.sum())]
        waits -= np.bincount(visited, minlength=operations)
        # An operation is ready at the last visit of those that it waits for.
        last = visited[::-1]
        freed, at = np.unique(last, return_index=True)
        free = waits[freed] == 0
        ready = freed[free][np.argsort(-at[free])]
        order.extend(ready.tolist())
    return order


# Instructions of all cores, as the wafer workload generator makes them of its nodes' tree.

PASSED_OVER = ("Add", "Barrier")
"""Operations of a node of which the generator makes no instruction."""

IMPOSSIBLE = {
    "AllGather": "it has no all-gather",
    "SelfAttention": "its attention over heads passes instructions without their numbers",
    "MLANaiveAttention": "it knows the absorbed latent attention only, so no prefill",
}
"""Operations at which the generator stops, and why."""

ROOT = "queries"
BETWEEN = "cross_layer"
"""What barriers between operations are called."""


_shapes = functools.lru_cache(maxsize=2**14)(shapes)
"""The same few of thousands of slices; read once."""


class NodePieces(NamedTuple):
    """Instructions of an operation on a node, after those of all `NodePieces` before."""

    node: int
    operation: str
    pieces: Sequence[TracePiece]


class _Step(NamedTuple):
    """An operation that is mapped: its row, its tensors, its node."""

    row: NodeOperation
    graph: GraphNode
    node: int
    core_node: CoreNode

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return _shapes(self.row.dimensions)


class CoreMapping:
    """All operations of a wafer on its cores.

    Parameters
    ----------
    tables : sequence of sequence of NodeOperation
        Operations of every node in one step.
    graphs : sequence of sequence of GraphNode
        Their graphs.
    cores : int
        Of a node.
    element_bytes : int, optional
        [B]
    tiling : Tiling, optional
        Tiles of attention.
    layers : collection of str, optional
        Of which operations instructions are made, such as ``decode10``; all of them otherwise.

    Raises
    ------
    FormatError
        Operations wait for one another in a circle.
    DataError
        An operation at which the generator stops, a layer that no operation belongs to, or
        tables and graphs of different nodes.
    """

    def __init__(
        self,
        tables: Sequence[Sequence[NodeOperation]],
        graphs: Sequence[Sequence[GraphNode]],
        cores: int,
        element_bytes: int = 2,
        tiling: Tiling = DEFAULT_TILING,
        layers: Collection[str] | None = None,
    ) -> None:
        if len(tables) != len(graphs):
            raise DataError(f"tables of {len(tables)} nodes, but graphs of {len(graphs)}")
        self._graphs = graphs
        self._tiling = tiling
        self._nodes = [CoreNode(node * cores, cores, element_bytes) for node in range(len(tables))]
        self._rows = [
            {row.name: row for row in table if layers is None or layer_of(row.name) in layers}
            for table in tables
        ]
        known = {layer_of(row.name) for table in tables for row in table}
        for layer in layers or ():
            if layer not in known:
                raise DataError(f"layer '{layer}' has no operation; there are {_some(known)}")
        for node, rows in enumerate(self._rows):
            for row in rows.values():
                _check(node, row)
        self._order = mapping_order(graphs)
        self._of_name = [{one.name: one for one in graph} for graph in graphs]
        self._layouts: dict[str, Layout | Row] = {}
        self._uses = self._count_uses()

    def pieces(self) -> Iterator[NodePieces]:
        """Map one operation after the other, once.

        Yields
        ------
        NodePieces

        Raises
        ------
        DataError
            Tiles or tensors that do not fit; names the operation.
        """
        begun: set[int] = set()
        count = 0
        for node, at in self._order:
            graph = self._graphs[node][at]
            row = self._rows[node].get(graph.name)
            if row is None or layer_of(row.name) == ROOT or row.operation in PASSED_OVER:
                continue
            step = _Step(row, graph, node, self._nodes[node])
            try:
                made = self._mapped(step)
            except DataError as error:
                raise DataError(f"node {node}, '{row.name}': {error}") from None
            except (ValueError, IndexError):  # other shapes or tensors than the operation has
                raise DataError(
                    f"node {node}, '{row.name}': dimensions '{shortened(row.dimensions)}' are "
                    f"not those of {row.operation}"
                ) from None
            for tensor in self._used(step):
                self._uses[tensor] -= 1
                if not self._uses[tensor]:
                    self._layouts.pop(tensor, None)
            if made is None:
                continue
            if node in begun:
                yield NodePieces(node, BETWEEN, [self._barrier(node, count)])
                count += 1
            begun.add(node)
            yield NodePieces(node, row.name, made)

    def _barrier(self, node: int, count: int) -> TracePiece:
        """Return a barrier of all cores of a node."""
        first, cores, _ = self._nodes[node]
        names = "_".join(map(str, range(first, first + cores)))
        halves = barrier_number(f"{BETWEEN}_{count}", names)
        return TracePiece(build(BARRIER, np.arange(cores), halves), BETWEEN, np.array([[count]]))

    def _mapped(self, step: _Step) -> list[TracePiece] | None:
        """Return an operation's instructions; None for what only views tensors."""
        operation = step.row.operation
        view = _VIEWS.get(operation)
        # A node without tokens of its own, which stops the generator, has nothing to do.
        empty = operation != "AlltoAll" and 0 in step.shapes[-1]
        if view is not None:
            if not empty:
                view(self, step)
            return None
        work = _WORK.get(operation)
        if work is None:
            raise DataError(f"unknown operation {operation}")
        return [] if empty else work(self, step)

    # Tensors

    def _count_uses(self) -> dict[str, int]:
        """Return how often each tensor's layout is needed."""
        uses: dict[str, int] = {}
        for node, graphs in enumerate(self._graphs):
            rows = self._rows[node]
            for graph in graphs:
                row = rows.get(graph.name)
                if row is None:
                    continue
                tensors = graph.inputs
                if row.operation == "AllReduce":
                    tensors = self._used(_Step(row, graph, node, self._nodes[node]))
                for tensor in tensors:
                    uses[tensor] = uses.get(tensor, 0) + 1
        return uses

    def _used(self, step: _Step) -> tuple[str, ...]:
        """Return the tensors whose layout an operation needs."""
        if step.row.operation == "AllReduce":
            return (*step.graph.inputs, self._following(step)[1])
        return step.graph.inputs

    def _following(self, step: _Step) -> tuple[int, str]:
        """Return the next node of a ring, and what it reduces."""
        group = step.row.group or ()
        if step.node not in group:
            raise DataError(f"'{step.row.name}': node {step.node} is not in its group")
        following = group[(group.index(step.node) + 1) % len(group)]
        other = None
        if following < len(self._of_name):
            other = self._of_name[following].get(step.row.name)
        if other is None:
            raise DataError(f"'{step.row.name}': node {following} of its group has no such one")
        return following, other.inputs[0]

    def _read(self, tensor: str, dims: Shape) -> Layout:
        """Return where a tensor lies that an operation before has made."""
        if tensor not in self._layouts:
            raise DataError(f"nothing before it makes '{tensor}'")
        held = self._layouts[tensor]
        layout = layouts.with_ones(held.taken() if isinstance(held, Row) else held, dims)
        self._layouts[tensor] = layout
        return layout

    def _read_or_made(self, tensor: str, node: CoreNode, dims: Shape, tile: Shape) -> Layout:
        """Return where a tensor lies, spread over the node's banks if nothing made it."""
        if tensor not in self._layouts:
            self._layouts[tensor] = node.fresh(dims, tile)
        return self._read(tensor, dims)

    def _keep(self, tensor: str, layout: Layout | Row) -> None:
        if self._uses.get(tensor):
            self._layouts[tensor] = layout

    # What only views tensors

    def _view(self, step: _Step) -> None:
        before, after = step.shapes
        self._keep(step.graph.outputs[0], layouts.viewed(self._input(step, before), after))

    def _split(self, step: _Step) -> None:
        sizes, dims = step.shapes
        parts = layouts.split(self._input(step, dims), _axis(step, len(dims)), sizes)
        for tensor, part in zip(step.graph.outputs, parts, strict=True):
            self._keep(tensor, part)

    def _transpose(self, step: _Step) -> None:
        axes, before, _ = step.shapes
        self._keep(step.graph.outputs[0], layouts.transposed(self._input(step, before), *axes))

    def _slice(self, step: _Step) -> None:
        whole, axis_text, span = step.row.dimensions.split(" -> ")
        (dims,) = _shapes(whole)
        first, _, last = span.partition(":")
        axis, begin, end = int(axis_text) % len(dims), int(first), int(last)
        tensor, made = step.graph.inputs[0], step.graph.outputs[0]
        held = self._layouts.get(tensor)
        if isinstance(held, Row) and axis and (begin, end, held.layout.tile[axis]) == (0, 1, 1):
            self._keep(made, held)  # all that there is of this axis
            return
        layout = self._read(tensor, dims)
        if not axis and 0 <= begin == end - 1 < dims[0]:
            self._keep(made, Row(layout, begin))  # most of these are put together at once
        else:
            self._keep(made, layouts.sliced(layout, axis, begin, end))

    def _concat(self, step: _Step) -> None:
        sizes, dims = step.shapes
        axis = _axis(step, len(dims))
        pairs = [pair for pair in zip(step.graph.inputs, sizes, strict=True) if pair[1]]
        held = [self._layouts.get(tensor) for tensor, _ in pairs]
        rows = [one for one in held if isinstance(one, Row)]
        if not axis and len(rows) == len(held) and sum(sizes) == dims[0]:
            together = layouts.rows_together(rows)
        else:
            parts = [
                self._read(tensor, (*dims[:axis], size, *dims[axis + 1 :]))
                for tensor, size in pairs
            ]
            together = layouts.concatenated(parts, axis)
        self._keep(step.graph.outputs[0], together)

    def _input(self, step: _Step, dims: Shape) -> Layout:
        return self._read(step.graph.inputs[0], dims)

    # What has instructions

    def _product(self, step: _Step) -> list[TracePiece]:
        source, _, out = step.shapes
        dims = (*source, out[-1])
        tile = product_tile(dims, step.core_node.cores)
        layout = self._read_or_made(step.graph.inputs[0], step.core_node, source, tile[:-1])
        self._keep(step.graph.outputs[0], step.core_node.fresh(out, (*tile[:-2], tile[-1])))
        return product_pieces(step.row.name, step.core_node, layout, dims, tile)

    def _attention(self, step: _Step) -> list[TracePiece]:
        queries, keys, rotary, out = step.shapes
        name = step.row.name
        query_tile = attention_tile(self._tiling, "MLAQ", queries, name)
        key_tile = attention_tile(self._tiling, "MLAKV", keys, name)
        width = keys[2] + rotary[2]
        layout = self._read_or_made(
            step.graph.inputs[0], step.core_node, (*queries[:3], width), (*query_tile[:3], width)
        )
        out_tile = (*query_tile[:3], keys[2])
        self._keep(step.graph.outputs[0], step.core_node.fresh(out, out_tile))
        dims = (queries[0], queries[2], keys[1], keys[2], rotary[2])
        return attention_pieces(name, step.core_node, layout, dims, query_tile, key_tile)

    def _sum(self, step: _Step) -> list[TracePiece]:
        source, out = step.shapes
        layout = self._input(step, source)
        axis = _axis(step, len(source))
        tile = (*layout.tile[:axis], 1, *layout.tile[axis + 1 :])
        self._keep(step.graph.outputs[0], step.core_node.fresh(out, tile))
        if axis:
            return []  # as the generator, which adds up the first axis only
        return sum_piece(step.row.name, step.core_node, layout)

    def _all_reduce(self, step: _Step) -> list[TracePiece]:
        (dims,) = step.shapes
        layout = self._input(step, dims)
        node, tensor = self._following(step)
        following = self._read_or_made(tensor, self._nodes[node], dims, layout.tile)
        self._keep(step.graph.outputs[0], layout)
        group = step.row.group or ()
        return all_reduce_pieces(step.row.name, step.core_node, layout, following, group, step.node)

    def _copied(self, step: _Step) -> list[TracePiece]:
        dims, *several = step.shapes
        graph = step.graph
        sent = several[0] if several else dims[:1]  # rows to each node, or all to one
        pairs = []
        sides = zip(graph.inputs, graph.outputs, sent, step.row.group or (), strict=True)
        for source, target, rows, node in sides:
            if rows:
                layout = self._read(source, (rows, *dims[1:]))
                received = self._nodes[node].fresh(layout.dims, layout.tile)
                self._keep(target, received)
                pairs.append((layout, received))
        return [copy_piece(step.row.name, step.core_node, pairs)]

    def _multicast(self, step: _Step) -> list[TracePiece]:
        (dims,) = step.shapes
        layout = self._input(step, dims)
        received = []
        for tensor, node in zip(step.graph.outputs, step.row.group or (), strict=True):
            received.append(self._nodes[node].fresh(dims, layout.tile))
            self._keep(tensor, received[-1])
        if not received:  # a cluster of one node, whose empty group stops the generator
            return []
        return [multicast_piece(step.row.name, step.core_node, layout, received)]


_VIEWS: dict[str, Callable[[CoreMapping, _Step], None]] = {
    "View": CoreMapping._view,
    "Split": CoreMapping._split,
    "Transpose": CoreMapping._transpose,
    "Slice": CoreMapping._slice,
    "Concat": CoreMapping._concat,
}
_WORK: dict[str, Callable[[CoreMapping, _Step], list[TracePiece]]] = {
    "Linear": CoreMapping._product,
    "GroupedLinear": CoreMapping._product,
    "MLAAbsorbAttention": CoreMapping._attention,
    "Sum": CoreMapping._sum,
    "AllReduce": CoreMapping._all_reduce,
    "AlltoAll": CoreMapping._copied,
    "Unicast": CoreMapping._copied,
    "Multicast": CoreMapping._multicast,
}
_AXIS = re.compile(r"(?:^|-> )(-?\d+) ->")


def _axis(step: _Step, axes: int) -> int:
    found = _AXIS.search(step.row.dimensions)
    if not found:
        raise DataError(f"dimensions '{step.row.dimensions}' name no axis")
    return int(found[1]) % axes


def _check(node: int, row: NodeOperation) -> None:
    """Raise for an operation at which the generator stops."""
    reason = IMPOSSIBLE.get(row.operation)
    if reason:
        raise DataError(
            f"node {node}, '{row.name}': the generator stops at {row.operation}: {reason}"
        )


def layer_of(name: str) -> str:
    """Return the layer of an operation, such as ``decode10``."""
    return name.partition("_")[0]


def _some(names: Collection[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:6]) + (" …" if len(shown) > 6 else "")
