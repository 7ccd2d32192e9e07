"""Graphs of nodes: the generator's own come back byte for byte; cycles are found."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked
from perfmodel.wafer.formats.node_graph import (
    HEADER,
    GraphNode,
    check_graph,
    format_node_graph,
    parse_node_graph,
    read_node_graph,
)
from tests.data import WAFER, needed


@pytest.mark.parametrize(
    "name", ["out_small/graph_node_0/decode0.csv", "out_small/graph_node_0/decode9.csv.gz"]
)
def test_round_trip(name):
    file = needed(WAFER / name)
    graph = read_node_graph(file)
    assert format_node_graph(graph).encode() == read_unpacked(file)
    check_graph([graph])


def test_cycles_and_tensors_made_twice():
    first = GraphNode("a", "Add", ("0:z",), ("1:x",))
    second = GraphNode("b", "Add", ("1:x", "1:w"), ("0:y",))
    check_graph([[first], [second]])
    with pytest.raises(FormatError, match="operation 'a' waits for itself"):
        check_graph([[first], [second._replace(outputs=("0:z",))]])
    with pytest.raises(FormatError, match="'1:x' is made twice, by 'b' too"):
        check_graph([[first], [second._replace(outputs=("1:x",))]])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a;Add;[];[]", "4 cells; an operation has 5"),
        ("a;Add;['x'];[];", "should be a list of tensors"),
        ("a;Add;[];0:x;", "should be a list of tensors"),
    ],
)
def test_wrong(line, said):
    with pytest.raises(FormatError, match=said):
        parse_node_graph(f"{HEADER}\n{line}\n")
    with pytest.raises(FormatError, match="line 1: no graph"):
        parse_node_graph(line)
