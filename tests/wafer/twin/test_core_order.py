"""Order of mapping, against a retelling of networkx's sort by generations."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import FormatError
from perfmodel.wafer.formats.node_graph import GraphNode
from perfmodel.wafer.twin.core_order import mapping_order


def told(graphs):
    """Visit what each operation feeds, operation by operation."""
    makers, readers = {}, {}
    for node, graph in enumerate(graphs):
        for at, one in enumerate(graph):
            for tensor in one.inputs:
                readers.setdefault(tensor, []).append((node, at))
                makers.setdefault(tensor, [])
            for tensor in one.outputs:
                makers.setdefault(tensor, []).append((node, at))
    feeds = {}
    for tensor, sources in makers.items():
        for source in sources or ["root"]:
            feeds.setdefault(source, {}).update(dict.fromkeys(readers.get(tensor, [])))
    waits = {}
    for targets in feeds.values():
        for target in targets:
            waits[target] = waits.get(target, 0) + 1
    order, ready = [], ["root"]
    while ready:
        order += ready
        following = []
        for one in ready:
            for target in feeds.get(one, ()):
                waits[target] -= 1
                if not waits[target]:
                    following.append(target)
        ready = following
    return order[1:]


def test_order_of_graphs_of_any_shape():
    random = np.random.default_rng(5)
    for _ in range(20):
        names = ["0:queries", "1:queries"]
        graphs = [[], []]
        for at in range(40):
            node = int(random.integers(2))
            chosen = [names[one] for one in random.integers(0, len(names), random.integers(1, 4))]
            made = [f"{int(random.integers(2))}:t{at}_{n}" for n in range(random.integers(1, 3))]
            graphs[node].append(GraphNode(f"o{at}", "View", tuple(chosen), tuple(made)))
            names += made
        assert mapping_order(graphs) == told(graphs)


def test_nothing_and_circles():
    assert mapping_order([[], []]) == []
    circle = [
        GraphNode("a", "View", ("0:y",), ("0:x",)),
        GraphNode("b", "View", ("0:x",), ("0:y",)),
    ]
    with pytest.raises(FormatError, match="graph of node 0: operation 'a' waits for itself"):
        mapping_order([circle])
