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
    readers: dict[str, list[int]] = {}  # in the same order
    places: list[tuple[int, int]] = []
    for node, graph in enumerate(graphs):
        for at, operation in enumerate(graph):
            number = len(places)
            places.append((node, at))
            # The generator reads an empty list as one tensor without a name.
            for tensor in operation.inputs or ("",):
                if tensor in readers:
                    readers[tensor].append(number)
                else:
                    makers[tensor], readers[tensor] = [], [number]
            for tensor in operation.outputs or ("",):
                if tensor in makers:
                    makers[tensor].append(number)
                else:
                    makers[tensor], readers[tensor] = [number], []
    # What an operation feeds, each once; the last entry: operations that read what none makes.
    fed: list[dict[int, None]] = [{} for _ in range(len(places) + 1)]
    for sources, targets in zip(makers.values(), readers.values(), strict=True):
        for source in sources or (-1,):
            fed[source].update(dict.fromkeys(targets))
    waits = [0] * len(places)
    for feeds in fed:
        for target in feeds:
            waits[target] += 1
    order: list[int] = []
    ready: Sequence[int] = _finish(fed[-1], waits)
    while ready:
        order.extend(ready)
        ready = [target for number in ready for target in _finish(fed[number], waits)]
    if len(order) < len(places):
        left = next(number for number, count in enumerate(waits) if count)
        node, at = places[left]
        raise FormatError(
            f"graph of node {node}: operation '{graphs[node][at].name}' waits for itself"
        )
    return [places[number] for number in order]


def _finish(feeds: dict[int, None], waits: list[int]) -> list[int]:
    """Count an operation as done; return those that wait for nothing else."""
    for target in feeds:
        waits[target] -= 1
    return [target for target in feeds if not waits[target]]
