"""In which order the generator maps operations of all nodes to cores.

Its barriers between operations are counted over the wafer in this order: that of
``networkx.topological_sort`` on the graph of all nodes, generation by generation. What an
operation feeds is visited in the order in which tensors are first named, node by node.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/common/graph.py``; networkx
3.6.1, ``algorithms/dag.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError
from perfmodel.wafer.formats.node_graph import GraphNode


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
