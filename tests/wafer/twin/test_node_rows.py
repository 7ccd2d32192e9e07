"""Rows of an iteration: what they sum to, and that nothing waits for itself."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.formats.node_graph import check_graph
from perfmodel.wafer.twin.node_rows import iteration_rows
from perfmodel.wafer.twin.nodes import iteration_components
from tests.wafer.twin.examples import ITERATIONS, routed


def tokens_of(iteration):
    return routed(iteration) if iteration.model.experts else None


@pytest.mark.parametrize("name", ITERATIONS)
def test_rows_sum_to_the_closed_forms(name):
    iteration = ITERATIONS[name]
    nodes = iteration.system.nodes
    summed = np.zeros((nodes, 4), np.int64)
    for rows in iteration_rows(iteration, tokens_of(iteration)):
        for row in rows.table:
            summed[rows.node] += (row.macs, row.footprint, row.reads, row.sent)
    closed = np.zeros((nodes, 4), np.int64)
    for _, components in iteration_components(iteration, tokens_of(iteration)):
        for part in components:
            columns = (part.macs, part.weights, part.weights, part.sent)
            closed += np.column_stack([np.broadcast_to(column, nodes) for column in columns])
    assert (summed == closed).all()


@pytest.mark.parametrize("name", ITERATIONS)
def test_graphs_of_all_nodes_together_have_no_cycle(name):
    iteration = ITERATIONS[name]
    graphs = [[] for _ in range(iteration.system.nodes)]
    for rows in iteration_rows(iteration, tokens_of(iteration)):
        graphs[rows.node] += rows.graph
    check_graph(graphs)
    made = {tensor for graph in graphs for node in graph for tensor in node.outputs}
    read = {tensor for graph in graphs for node in graph for tensor in node.inputs}
    unmade = {tensor.partition(":")[2] for tensor in read - made}
    # Buffers that nothing is in are made by nothing.
    assert "queries" in unmade
    assert all("empty" in tensor for tensor in unmade - {"queries"})
    for graph in graphs:
        names = [node.name for node in graph]
        assert len(set(names)) == len(names)


def test_chosen_nodes_alone_are_as_among_all():
    iteration = ITERATIONS["clusters"]
    every = {}
    for rows in iteration_rows(iteration, tokens_of(iteration)):
        every.setdefault(rows.node, []).extend(rows.table)
    alone = [
        row for rows in iteration_rows(iteration, tokens_of(iteration), [5]) for row in rows.table
    ]
    assert alone == every[5]
    with pytest.raises(DataError, match="there is no node 8; known: 0 to 7"):
        next(iteration_rows(iteration, None, [8]))


def test_layers_with_experts_need_a_routing():
    iteration = ITERATIONS["clusters"]
    with pytest.raises(DataError, match="layer 'decode1' has experts"):
        list(iteration_rows(iteration, None))


def test_barriers_are_rows_and_not_in_the_graph():
    iteration = ITERATIONS["multicast"]
    parts = list(iteration_rows(iteration, tokens_of(iteration), [0]))
    barriers = [row.name for rows in parts for row in rows.table if row.operation == "Barrier"]
    assert barriers[:3] == [
        "decode1_moe_barrier_disp_mc",
        "decode1_moe_barrier_uc",
        "decode1_moe_barrier_mc",
    ]
    graph = {node.name for rows in parts for node in rows.graph}
    assert not graph & set(barriers)
