"""Graphs of nodes: the generator's own come back byte for byte."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked
from perfmodel.wafer.formats.node_graph import (
    HEADER,
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
