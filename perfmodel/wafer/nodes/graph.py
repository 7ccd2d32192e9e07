"""The operations of all nodes as one graph: who needs whose result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.errors import DataError
from perfmodel.wafer.nodes.rows import Operation


class OperationGraph(NamedTuple):
    """Vertices and edges of all nodes' operations.

    Attributes
    ----------
    operation, node : array of int, shape (vertices,)
        What each vertex is; of a meeting, the first node of the group that meets.
    meeting : array of bool, shape (vertices,)
        A group's nodes wait for one another before they do an operation together: a vertex of
        its own, so that edges grow with the nodes and not with their square.
    edges : array of int, shape (edges, 2)
        The first comes before the second.
    """

    operation: Integers
    node: Integers
    meeting: Flags
    edges: Integers


def operation_graph(operations: Sequence[Operation], done: Integers) -> OperationGraph:
    """Return who needs whose result.

    An operation needs results of its own node; one that nodes do together, those of all nodes
    of its group.

    Parameters
    ----------
    operations : sequence of Operation
    done : array of int, shape (operations, nodes)
        From `working`.

    Raises
    ------
    DataError
        An operation that waits for itself.
    """
    number = np.where(done > 0, np.cumsum(done.ravel()).reshape(done.shape) - 1, -1)
    at, node = np.nonzero(done)
    vertices = [np.stack((at, node), axis=1)]
    count, edges = len(at), [np.empty((0, 2), np.int64)]
    for place, one in enumerate(operations):
        here = np.flatnonzero(done[place])
        into = number[place, here]
        if one.joins and here.size:
            first = one.group[0][here]
            groups, member = np.unique(first, return_inverse=True)
            vertices.append(np.stack((np.full(groups.size, place), groups), axis=1))
            edges.append(np.stack((count + member, into), axis=1))
            into = count + member
            count += groups.size
        for need in one.needs:
            before = number[need, here]
            known = before >= 0
            edges.append(np.stack((before[known], into[known]), axis=1))
    table = np.concatenate(vertices)
    found = OperationGraph(
        table[:, 0], table[:, 1], np.arange(count) >= len(at), np.concatenate(edges)
    )
    check_acyclic(count, found.edges)
    return found


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


def check_acyclic(count: int, edges: Integers) -> None:
    """Make sure that no operation waits for itself, by taking away what waits for nothing.

    Parameters
    ----------
    count : int
        Vertices, counted from 0.
    edges : array of int, shape (edges, 2)
        The first comes before the second.

    Raises
    ------
    DataError
        A vertex that there is not, or a circle.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for before, after in edges.tolist():
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
