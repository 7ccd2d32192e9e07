"""Rows of the node level: operations with what each node does in each step, and their graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.errors import DataError

# Rows of the node level: operations with what each node does in each step.

Amounts = NDArray[Any]
"""Something that broadcasts to (nodes, steps)."""

QUANTITIES = ("macs", "flops", "footprint", "reads", "writes", "sent", "received")
SIZES = ("rows", "inner", "outer", "instances")

KINDS = (
    "embedding",
    "linear",
    "grouped_linear",
    "attention",
    "latent_attention_naive",
    "latent_attention_absorbed",
    "all_reduce",
    "all_gather",
    "all_to_all",
    "multicast",
    "unicast",
    "send",
    "barrier",
    "add",
    "reduce_scatter",
)


@dataclass
class Operation:
    """An operation of the model on all nodes.

    Attributes
    ----------
    layer : str
        ``decode3``, ``lm_head``, …
    component : str
        ``attention.wkv_a``, ``moe.dispatch``, …
    kind : str
        One of `KINDS`.
    group : tuple of array of int
        First node, stride and size of each node's group, arrays of shape (nodes,).
    needs : tuple of int
        Earlier operations whose result it takes, of the same node.
    joins : bool
        It takes those of all nodes of its group.
    values : dict of str to array
        `QUANTITIES` and `SIZES` (rows, inner, outer: M, K, N of a product; queries, width, keys of
        attention; instances: products of a group), each broadcastable to (nodes, steps).
    """

    layer: str
    component: str
    kind: str
    group: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    needs: tuple[int, ...] = ()
    joins: bool = False
    values: dict[str, Amounts] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Layer and component."""
        return f"{self.layer}.{self.component}"


class OperationRows:
    """Collects operations in the order in which they run.

    Parameters
    ----------
    nodes : int
    """

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.operations: list[Operation] = []
        node = np.arange(nodes)
        self.alone = (node, np.ones(nodes, np.int64), np.ones(nodes, np.int64))

    def add(
        self,
        layer: str,
        component: str,
        kind: str,
        needs: tuple[int, ...] = (),
        group: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None,
        **values: Any,
    ) -> int:
        """Add an operation and return its number.

        A product's ``flops`` are twice its ``macs`` unless they are given.
        """
        arrays = {key: np.asarray(value) for key, value in values.items()}
        if "macs" in arrays and "flops" not in arrays:
            arrays["flops"] = 2.0 * arrays["macs"]
        place = self.alone if group is None else group
        self.operations.append(
            Operation(layer, component, kind, place, needs, group is not None, arrays)
        )
        return len(self.operations) - 1

    def again(self, first: int, last: int, layer: str, inputs: dict[int, int]) -> dict[int, int]:
        """Add operations once more for another layer that does the same.

        Parameters
        ----------
        first, last : int
            Those to repeat: from `first` to before `last`.
        layer : str
        inputs : dict of int to int
            What stands for operations before `first`.

        Returns
        -------
        dict of int to int
            Number of each -> number of its copy, `inputs` included.
        """
        copies = dict(inputs)
        for number in range(first, last):
            one = self.operations[number]
            needs = tuple(copies[need] for need in one.needs)
            self.operations.append(
                Operation(layer, one.component, one.kind, one.group, needs, one.joins, one.values)
            )
            copies[number] = len(self.operations) - 1
        return copies


# The operations of all nodes as one graph: who needs whose result.


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
        An operation that waits for one that does not come before it.
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
            if not 0 <= need < place:  # so that nothing waits for itself
                raise DataError(f"graph: operation {one.name} waits for number {need}")
            before = number[need, here]
            known = before >= 0
            edges.append(np.stack((before[known], into[known]), axis=1))
    table = np.concatenate(vertices)
    meeting = np.arange(count) >= len(at)
    return OperationGraph(table[:, 0], table[:, 1], meeting, np.concatenate(edges))


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
