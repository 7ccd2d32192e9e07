"""Rows of operations: what follows from what, and layers that do the same."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.nodes.rows import KINDS, OperationRows, operation_graph, working


def test_a_layer_again() -> None:
    rows = OperationRows(2)
    given = rows.add("input", "tokens", "barrier")
    one = rows.add("decode0", "wq", "linear", (given,), macs=3.0)
    rows.add("decode0", "wo", "linear", (one, given), macs=4.0)
    copies = rows.again(1, 3, "decode1", {given: 2})
    assert copies == {0: 2, 1: 3, 2: 4}
    assert [one.name for one in rows.operations[3:]] == ["decode1.wq", "decode1.wo"]
    assert rows.operations[4].needs == (3, 2)
    assert rows.operations[4].values["flops"] == 8.0
    assert not rows.operations[4].joins
    assert {one.kind for one in rows.operations} <= set(KINDS)


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


@pytest.mark.parametrize("need", [1, 2, -1])
def test_circles_are_refused(need: int) -> None:
    rows = OperationRows(1)
    one = rows.add("decode0", "wq", "linear", macs=1.0)
    rows.add("decode0", "wo", "linear", (one, need), macs=1.0)
    with pytest.raises(DataError, match=rf"decode0.wo waits for number {need}"):
        operation_graph(rows.operations, working(rows.operations, 1))
