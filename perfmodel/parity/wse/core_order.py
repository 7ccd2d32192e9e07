"""In which order the generator maps operations of all nodes to cores.

Its barriers between operations are counted over the wafer in this order: that of
``networkx.topological_sort`` on the graph of all nodes, generation by generation. What an
operation feeds is visited in the order in which tensors are first named, node by node.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/common/graph.py``; networkx
3.6.1, ``algorithms/dag.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.errors import FormatError
from perfmodel.formats.wafer.node_graph import GraphNode


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
    makers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    places: list[tuple[int, int]] = []
    for node, graph in enumerate(graphs):
        for at, operation in enumerate(graph):
            number = len(places)
            places.append((node, at))
            # The generator reads an empty list as one tensor without a name.
            for tensor in operation.inputs or ("",):
                makers.setdefault(tensor, [])
                readers.setdefault(tensor, []).append(number)
            for tensor in operation.outputs or ("",):
                makers.setdefault(tensor, []).append(number)
                readers.setdefault(tensor, [])
    fed: list[dict[int, None]] = [{} for _ in places]
    given: dict[int, None] = {}  # operations that read what nothing makes
    for tensor, sources in makers.items():
        if not sources:
            given.update(dict.fromkeys(readers[tensor]))
        for source in sources:
            fed[source].update(dict.fromkeys(readers[tensor]))
    waits = [0] * len(places)
    for targets in (*fed, given):
        for target in targets:
            waits[target] += 1
    order: list[int] = []
    ready: list[int] = []
    _finish(given, waits, ready)
    while ready:
        order.extend(ready)
        following: list[int] = []
        for number in ready:
            _finish(fed[number], waits, following)
        ready = following
    if len(order) < len(places):
        left = next(number for number, count in enumerate(waits) if count)
        node, at = places[left]
        raise FormatError(
            f"graph of node {node}: operation '{graphs[node][at].name}' waits for itself"
        )
    return [places[number] for number in order]


def _finish(targets: dict[int, None], waits: list[int], ready: list[int]) -> None:
    for target in targets:
        waits[target] -= 1
        if not waits[target]:
            ready.append(target)
