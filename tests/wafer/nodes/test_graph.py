"""Graphs of nodes' operations: edges, meetings, circles."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.nodes.graph import check_acyclic, operation_graph, working
from perfmodel.wafer.nodes.rows import OperationRows


def test_nodes_of_a_group_meet() -> None:
    rows = OperationRows(3)
    one = rows.add("decode0", "wo", "linear", macs=np.array([[1.0], [1.0], [0.0]]))
    group = (np.array([0, 0, 2]), np.array([1, 1, 1]), np.array([2, 2, 1]))
    rows.add("decode0", "sum", "all_reduce", (one,), group, sent=np.array([[5.0], [5.0], [0.0]]))
    done = working(rows.operations, 3)
    assert done.tolist() == [[1, 1, 0], [1, 1, 0]]
    graph = operation_graph(rows.operations, done)
    assert graph.meeting.tolist() == [False] * 4 + [True]
    edges = {tuple(edge) for edge in graph.edges.tolist()}
    assert edges == {(0, 4), (1, 4), (4, 2), (4, 3)}


def test_circles_are_refused() -> None:
    check_acyclic(3, np.array([[0, 1], [1, 2], [0, 2]]))
    with pytest.raises(DataError, match="operation 1 waits for itself"):
        check_acyclic(3, np.array([[0, 1], [1, 2], [2, 1]]))
    with pytest.raises(DataError, match="an edge from 0 to 3"):
        check_acyclic(3, np.array([[0, 3]]))
