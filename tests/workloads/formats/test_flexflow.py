"""FlexFlow's task graphs: reading, and errors that say where."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.flexflow import parse_flexflow, read_flexflow
from perfmodel.workloads.trace import ABSENT
from tests.data import ASTRA, needed

FLEXFLOW = ASTRA / "flexflow"
# Nodes, edges and computations, counted with grep in the graphs of Chakra's first release.
COUNTS = {
    "alexnet.4": (240, 440, 128),
    "alexnet.64": (4640, 8704, 1744),
    "cifar10_cnn.4": (172, 308, 100),
    "mnist_mlp.16": (346, 590, 166),
    "mnist_mlp.4": (82, 134, 46),
    "multi_head_attention.4": (64, 56, 64),
    "resnet.4": (2650, 5190, 1366),
}
COMPUTATION = (
    'node{0} [color=red,label="{{device_id={1}|{2}|Forward|COMP_NODE|simulated_run_time={3}}}",'
    "shape=record];"
)
MESSAGE = (
    'node{0} [label="{{device_id={1}|Comm from A to B|Comm|COMM_SEND_RECV_NODE|src_device_id={2}|'
    'dst_device_id={3}|comm_size={4}|run_time=0.000122071}}",shape=record];'
)
GRAPH = "\n".join(
    [
        "digraph taskgraph {  " + COMPUTATION.format(0, 0, "A_1", "0.279776"),
        "  node0 -> node7;",
        "  " + MESSAGE.format(7, 14, 0, 1, 131072),
        "  node7 -> node3;",
        "  " + COMPUTATION.format(3, 1, "B_2", "1e-3"),
        "}",
    ]
)


def test_computations_and_messages_become_columns():
    graph = parse_flexflow(GRAPH)
    assert graph.identifiers.tolist() == [0, 7, 3]
    assert graph.names == ("A_1", "Comm from A to B", "B_2")
    assert graph.phases == ("Forward", "Comm", "Forward")
    assert graph.device.tolist() == [0, ABSENT, 1]  # a message's own number is a link's
    assert graph.run_time.tolist() == [0.279776, 0.000122071, 0.001]
    assert graph.source.tolist() == [ABSENT, 0, ABSENT]
    assert graph.destination.tolist() == [ABSENT, 1, ABSENT]
    assert graph.size.tolist() == [ABSENT, 131072, ABSENT]
    assert [graph.parents[i].tolist() for i in range(3)] == [[], [0], [1]]
    assert (graph.devices, graph.messages.tolist()) == (2, [False, True, False])


def test_white_space_and_the_order_of_statements_do_not_matter():
    words = GRAPH.replace("\n", "\r\n\t").replace("->", "  ->\n").replace(",shape", " ,\nshape")
    graph = parse_flexflow(words)
    assert graph.identifiers.tolist() == [0, 7, 3]
    assert graph.parents.values.tolist() == [0, 1]


def test_an_empty_graph_has_no_devices():
    graph = parse_flexflow("digraph taskgraph {}")
    assert (graph.nodes, graph.devices) == (0, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("digraph", "graph", "line 1: 'graph' should be 'digraph'"),
        ("node7 -> node3", "node7 -- node3", "line 4: '-' should be a word"),
        ("node7 -> node3", "node7 -> node9", "line 4: the edge node7 -> node9 names node9"),
        ("node7 -> node3", "edge -> node3", "line 4: 'edge' should be the name of a node"),
        ("node7 -> node3;", "node7 = node3;", "line 4: '=' should be '->' or '\\['"),
        ("  node7 [", "  node0 [", "line 3, node0: a second node"),
        ("COMP_NODE", "COMP_NOED", "line 1, node0: label .*did you mean COMP_NODE"),
        ("label=", "lable=", "line 1, node0: label ''"),
        ("|Forward", "", "line 1, node0: label"),
        ("|comm_size=131072", "", "line 3, node7: the label has 7 fields"),
        ("comm_size=", "size=", "field 'size=131072' should be 'comm_size="),
        ("comm_size=131072", "comm_size=-1", "comm_size is '-1'"),
        ("comm_size=131072", "comm_size=" + "9" * 19, "comm_size is"),
        ("dst_device_id=1", "dst_device_id=0", "device 0 sends to itself"),
        ("device_id=0|A", "device_id=99999999|A", "device_id is '99999999'"),
        ("0.279776", "nan", "simulated_run_time='nan' should be a finite number"),
        ("0.279776", "1e999", "simulated_run_time='1e999' should be a finite number"),
        ("0.279776", "-1", "should be a finite number >= 0"),
        ("node3 [", "node" + "9" * 40 + " [", "should be the name of a node"),
        (",shape=record];\n  node0", ",shape=record;\n  node0", "line 1: ';' should be the name"),
        ("\n}", "", "the file ends where the name of a node"),
        ("\n}", "\n} node1", "line 6: 'node1' should be the end"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    assert old in GRAPH
    with pytest.raises(FormatError, match=message) as error:
        parse_flexflow(GRAPH.replace(old, new, 1), "x.graph")
    assert str(error.value).startswith("x.graph")
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FormatError, match=r"cannot read .*none\.graph"):
        read_flexflow(tmp_path / "none.graph")
    (tmp_path / "binary.graph").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not UTF-8"):
        read_flexflow(tmp_path / "binary.graph")


@given(st.integers(0, len(GRAPH) - 1), st.text(max_size=6), st.integers(0, 12))
@example(0, "", 0)
def test_any_damage_gives_a_graph_or_one_line(place, insertion, deleted):
    text = GRAPH[:place] + insertion + GRAPH[place + deleted :]
    assert outcome(text) in (0, 1, 2, 3, "one line")


def outcome(text):
    """Number of nodes read, or whether the error is what it should be."""
    try:
        return parse_flexflow(text, "x.graph").nodes
    except FormatError as error:
        good = str(error).startswith("x.graph") and len(str(error).splitlines()) == 1
        return "one line" if good else str(error)


@pytest.mark.parametrize("name", COUNTS)
def test_published_graphs_have_all_nodes_and_edges(name):
    path = needed(FLEXFLOW / f"{name}.graph")
    graph = read_flexflow(path)
    computations = int((~graph.messages).sum())
    assert (graph.nodes, len(graph.parents.values), computations) == COUNTS[name]
    assert graph.devices == int(name.rpartition(".")[2])
