"""The operations of all nodes as one graph: who needs whose result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.nodes.rows import Operation


def edges(operations: Sequence[Operation], nodes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the edges of the graph.

    An operation needs results of its own node; one that nodes do together, those of all nodes
    of its group.

    Parameters
    ----------
    operations : sequence of Operation
    nodes : int

    Yields
    ------
    need, from_node, operation, node : int
        Operation `need` on `from_node` comes before `operation` on `node`.
    """
    for number, one in enumerate(operations):
        for need in one.needs:
            for node in range(nodes):
                if one.joins:
                    first, stride, size = (int(part[node]) for part in one.group)
                    for member in range(size):
                        yield need, first + member * stride, number, node
                else:
                    yield need, node, number, node


def working(operations: Sequence[Operation], nodes: int) -> Integers:
    """Return which nodes do anything in each operation, shape (operations, nodes), 0 or 1."""
    found = np.zeros((len(operations), nodes), np.int64)
    for number, one in enumerate(operations):
        if not one.values:
            found[number] = 1
        for name in ("flops", "footprint", "reads", "writes", "sent", "received"):
            if name in one.values:
                value = np.asarray(one.values[name])
                found[number] |= np.broadcast_to(
                    (value > 0).any(axis=-1) if value.ndim == 2 else value > 0, nodes
                )
    return found


def check_acyclic(count: int, pairs: Iterator[tuple[int, int]]) -> None:
    """Make sure that no operation waits for itself, by taking away what waits for nothing.

    Parameters
    ----------
    count : int
        Vertices, counted from 0.
    pairs : iterator of (int, int)
        Edges: the first comes before the second.

    Raises
    ------
    DataError
        A vertex that there is not, or a circle.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for before, after in pairs:
        if not (0 <= before < count and 0 <= after < count):
            raise DataError(f"graph: an edge from {before} to {after} of {count} operations")
        targets[before].append(after)
        waits[after] += 1
    ready = [vertex for vertex in range(count) if not waits[vertex]]
    done = 0
    while ready:
        vertex = ready.pop()
        done += 1
        for after in targets[vertex]:
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    if done < count:
        stuck = next(vertex for vertex in range(count) if waits[vertex] > 0)
        raise DataError(f"graph: operation {stuck} waits for itself")
