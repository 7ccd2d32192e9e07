"""Tables of nodes: the generator's own come back byte for byte."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked
from perfmodel.wafer.formats.node_tree import (
    GRAPH_HEADER,
    TABLE_HEADER,
    NodeOperation,
    format_node_graph,
    format_node_table,
    parse_node_graph,
    parse_node_table,
    read_node_graph,
    read_node_table,
    shapes,
)
from tests.data import WAFER, needed


@pytest.mark.parametrize(
    "name", ["out_small/nodes_node_0/decode0.csv", "out_deepseekv3/nodes/node_13_decode0.csv.gz"]
)
def test_round_trip(name):
    file = needed(WAFER / name)
    assert format_node_table(read_node_table(file)).encode() == read_unpacked(file)


def test_cells():
    rows = [
        NodeOperation("a", "Linear", 4, 6, 4, 0, None, "[3, 2] x [2, 1] -> [3, 1]"),
        NodeOperation("b", "Unicast", 0, 0, 0, 8, (3,), "[1, 1, 4]"),
        NodeOperation("c", "Multicast", 0, 0, 0, 8, (), "[0, 1, 4]"),
    ]
    text = format_node_table(rows)
    assert "b;Unicast;0;0;0;8;3;[1, 1, 4]\r\n" in text
    assert parse_node_table(text) == rows
    assert shapes(rows[0].dimensions) == ((3, 2), (2, 1), (3, 1))
    assert shapes("0 -> [] -> [0, 1]") == ((), (0, 1))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a;Linear;0;0;0;0;N/A", "line 2: 7 cells; an operation has 8"),
        ("a;Linear;-1;0;0;0;N/A;x", "memory_footprint .B. '-1' should be a whole number"),
        ("a;Linear;0;nan;0;0;N/A;x", "num_ops .MAC. 'nan'"),
        ("a;Linear;0;0;0;99999999999999999999;N/A;x", "network_data"),
        ("a;Linear;0;0;0;0;[0 1];x", "group '.0 1.' should be"),
    ],
)
def test_wrong(line, said):
    with pytest.raises(FormatError, match=said):
        parse_node_table(f"{TABLE_HEADER}\n{line}\n", "n.csv")
    with pytest.raises(FormatError, match="line 1: no table"):
        parse_node_table(line)


@pytest.mark.parametrize(
    "name", ["out_small/graph_node_0/decode0.csv", "out_small/graph_node_0/decode9.csv.gz"]
)
def test_round_trip_node_graph(name):
    file = needed(WAFER / name)
    graph = read_node_graph(file)
    assert format_node_graph(graph).encode() == read_unpacked(file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a;Add;[];[]", "4 cells; an operation has 5"),
        ("a;Add;['x'];[];", "should be a list of tensors"),
        ("a;Add;[];0:x;", "should be a list of tensors"),
    ],
)
def test_wrong_node_graph(line, said):
    with pytest.raises(FormatError, match=said):
        parse_node_graph(f"{GRAPH_HEADER}\n{line}\n")
    with pytest.raises(FormatError, match="line 1: no graph"):
        parse_node_graph(line)
