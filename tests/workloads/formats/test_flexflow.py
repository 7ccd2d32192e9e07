"""FlexFlow's task graphs: reading, and errors that say where."""

from __future__ import annotations

import re

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.formats.chakra.files import read_traces, write_traces
from perfmodel.workloads.formats.flexflow import flexflow_traces, parse_flexflow, read_flexflow
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import ABSENT, COMPUTE, RECEIVE, SEND
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.data import ASTRA, needed, table_of

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
PARSED = "\n".join(
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
    graph = parse_flexflow(PARSED)
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
    words = PARSED.replace("\n", "\r\n\t").replace("->", "  ->\n").replace(",shape", " ,\nshape")
    graph = parse_flexflow(words)
    assert graph.identifiers.tolist() == [0, 7, 3]
    assert graph.parents.values.tolist() == [0, 1]


def test_an_empty_graph_has_no_devices():
    graph = parse_flexflow("digraph taskgraph {}")
    assert (graph.nodes, graph.devices) == (0, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        *table_of(__file__, "what_is_wrong_is_said_with_its_line"),
        ("comm_size=131072", "comm_size=" + "9" * 19, "comm_size is"),
        ("node3 [", "node" + "9" * 40 + " [", "should be the name of a node"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    assert old in PARSED
    with pytest.raises(FormatError, match=message) as error:
        parse_flexflow(PARSED.replace(old, new, 1), "x.graph")
    assert str(error.value).startswith("x.graph")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", COUNTS)
def test_published_graphs_have_all_nodes_and_edges(name):
    path = needed(FLEXFLOW / f"{name}.graph")
    graph = read_flexflow(path)
    computations = int((~graph.messages).sum())
    assert (graph.nodes, len(graph.parents.values), computations) == COUNTS[name]
    assert graph.devices == int(name.rpartition(".")[2])


def computation(node, device, milliseconds):
    return COMPUTATION.format(node, device, f"N_{node}", milliseconds)


def message(node, source, destination, size=4096):
    return MESSAGE.format(node, 77, source, destination, size)


def graph_of(*statements):
    return parse_flexflow("digraph taskgraph {\n" + "\n".join(statements) + "\n}")


# Device 0 computes 5 and sends to 1 (node 9) and 2 (node 8); both compute on.
GRAPH = (
    computation(5, 0, 2.0),
    message(9, 0, 1),
    message(8, 0, 2),
    computation(3, 1, 1.0),
    computation(4, 2, 3.0),
    "node5 -> node9; node5 -> node8; node9 -> node3; node8 -> node4;",
)


def run(traces, bandwidth=50.0, latency=500.0):
    network = AstraNetwork(("Ring",), (traces.devices,), (bandwidth,), (latency,))
    return simulate(traces, AstraCosts(network, uniform_system(["ring"])))


def critical_path(graph):
    """Longest chain of computations [s], messages taking no time."""
    end = np.full(graph.nodes, np.nan)
    order = list(range(graph.nodes))
    while order:
        waiting = []
        for node in order:
            before = end[graph.parents[node]]
            if np.isnan(before).any():
                waiting.append(node)
                continue
            own = 0.0 if graph.messages[node] else graph.run_time[node] * 1e-3
            end[node] = before.max(initial=0.0) + own
        assert len(waiting) < len(order)
        order = waiting
    return end.max()


def test_a_message_becomes_a_send_and_a_receive_with_one_number_and_tag():
    first, second, third = flexflow_traces(graph_of(*GRAPH)).traces
    assert first.identifiers.tolist() == [5, 8, 9]  # in the order of numbers
    assert first.kinds.tolist() == [COMPUTE, SEND, SEND]
    assert second.identifiers.tolist() == [3, 9]
    assert second.kinds.tolist() == [COMPUTE, RECEIVE]
    assert third.identifiers.tolist() == [4, 8]
    assert first.names[0] == "COMP_NODE_N_5"
    assert first.names[1] == "COMM_SEND_NODE_Comm from A to B"
    assert second.names[1] == "COMM_RECV_NODE_Comm from A to B"
    assert first.tag.tolist() == [ABSENT, 1, 0]  # in the order of the file
    assert (second.tag[1], third.tag[1]) == (0, 1)
    assert (second.source[1], second.destination[1]) == (0, 1)
    assert second.communication_size.tolist() == [ABSENT, 4096]


def test_a_message_keeps_parents_of_its_device_and_a_computation_waits_for_the_receive():
    first, second, _ = flexflow_traces(graph_of(*GRAPH)).traces
    assert [first.data_parents[i].tolist() for i in range(3)] == [[], [5], [5]]
    assert [second.data_parents[i].tolist() for i in range(2)] == [[9], []]


def test_run_times_are_milliseconds_unless_said_otherwise():
    graph = graph_of(*GRAPH)
    assert flexflow_traces(graph).traces[0].duration[0] == 2e-3
    assert flexflow_traces(graph, run_time_unit=1e-6).traces[0].duration[0] == 2e-6


def test_a_frequency_reproduces_the_cycles_of_the_upstream_converter():
    # alexnet's first convolution: round(0.279776 * 1000 * 1e6) cycles, kept as microseconds.
    graph = graph_of(computation(0, 0, "0.279776"))
    assert round(flexflow_traces(graph, 1000).traces[0].duration[0] * 1e6) == 279_776_000


def test_the_run_takes_computation_and_messages_one_after_another():
    result = run(flexflow_traces(graph_of(*GRAPH)))
    alone = run(flexflow_traces(graph_of(message(1, 0, 2), computation(0, 1, 0))))
    to_second = alone.ticks("wall_time")[2]  # 0 and 2 are neighbours in a ring of three
    # Node 8 is sent before node 9: one message at a time.
    assert result.ticks("wall_time") == (
        2_000_000 + 2 * to_second,
        2_000_000 + 2 * to_second + 1_000_000,
        2_000_000 + to_second + 3_000_000,
    )


def test_a_computation_that_waits_for_another_device_without_a_message_is_refused():
    graph = graph_of(computation(0, 0, 1), computation(1, 1, 1), "node0 -> node1;")
    with pytest.raises(FormatError, match=r"node1 .*on device 1 waits for node0 of another device"):
        flexflow_traces(graph)


def test_tasks_that_wait_for_each_other_are_refused():
    graph = graph_of(
        computation(0, 0, 1),
        computation(1, 0, 1),
        "node0 -> node1; node1 -> node0;",
        computation(2, 1, 1),
    )
    with pytest.raises(FormatError):
        run(flexflow_traces(graph))


@pytest.mark.parametrize("values", [{"npu_frequency": 0}, {"run_time_unit": float("nan")}])
def test_a_unit_that_is_not_positive_is_refused(values):
    with pytest.raises(DataError, match="should be a finite number > 0"):
        flexflow_traces(graph_of(*GRAPH), **values)


def test_devices_without_tasks_do_nothing():
    traces = flexflow_traces(graph_of(computation(0, 0, 1), computation(1, 3, 2)))
    assert [trace.nodes for trace in traces.traces] == [1, 0, 0, 1]
    assert run(traces).ticks("wall_time") == (1_000_000, 0, 0, 2_000_000)


def test_converted_traces_survive_their_files(tmp_path):
    traces = flexflow_traces(graph_of(*GRAPH))
    write_traces(traces, tmp_path / "graph")
    assert read_traces(tmp_path / "graph").equals(traces)


def upstream(text, frequency):
    """The rules of flexflow2chakra_converter.py (63c2f32), from the words of the file.

    By device and number: type, name, parents, and of a message source, destination, size, tag;
    of a computation the cycles.
    """
    labels = {
        int(number): [field.strip() for field in label.split("|")]
        for number, label in re.findall(r'node(\d+) \[[^\]]*?label="\{(.*?)\}"', text)
    }
    value = {
        number: [field.split("=")[-1] for field in fields] for number, fields in labels.items()
    }
    parents = {number: [] for number in labels}
    for parent, child in re.findall(r"node(\d+) -> node(\d+)", text):
        parents[int(child)].append(int(parent))
    tags, devices = {}, {}
    computes = {number for number in labels if value[number][3] == "COMP_NODE"}
    for device in sorted({int(value[number][0]) for number in computes}):
        nodes = devices[device] = {}
        for number, words in value.items():
            if number in computes:
                if int(words[0]) == device:
                    cycles = round(float(words[4]) * frequency * 1e6)
                    nodes[number] = (COMPUTE, f"COMP_NODE_{words[1]}", parents[number], cycles)
            elif device in (ends := (int(words[4]), int(words[5]))):
                tag = tags.setdefault((number, *ends), len(tags))
                kept = [parent for parent in parents[number] if int(value[parent][0]) == device]
                kind, name = (SEND, "SEND") if ends[0] == device else (RECEIVE, "RECV")
                nodes[number] = (
                    kind, f"COMM_{name}_NODE_{words[1]}", kept, *ends, int(words[6]), tag
                )  # fmt: skip
    return devices


def ours(text, frequency):
    """The same of our conversion."""
    devices = {}
    for device, trace in enumerate(flexflow_traces(parse_flexflow(text), frequency).traces):
        nodes = devices[device] = {}
        for i, number in enumerate(trace.identifiers.tolist()):
            entry = (int(trace.kinds[i]), trace.names[i], trace.data_parents[i].tolist())
            if entry[0] == COMPUTE:
                nodes[number] = (*entry, round(trace.duration[i] * 1e6))
            else:
                columns = (trace.source, trace.destination, trace.communication_size, trace.tag)
                nodes[number] = (*entry, *(int(column[i]) for column in columns))
    return devices


def test_a_conversion_is_that_of_the_upstream_rules():
    text = "digraph taskgraph {\n" + "\n".join(GRAPH) + "\n}"
    assert ours(text, 1000) == upstream(text, 1000)
    assert len(ours(text, 1000)[0]) == 3


@pytest.mark.parametrize("name", COUNTS)
def test_published_graphs_are_converted_by_the_upstream_rules(name):
    path = needed(FLEXFLOW / f"{name}.graph")
    text = path.read_text("utf-8")
    assert ours(text, 1000) == upstream(text, 1000)


@pytest.mark.parametrize("name", COUNTS)
def test_published_graphs_run_to_the_end(name):
    path = needed(FLEXFLOW / f"{name}.graph")
    graph = read_flexflow(path)
    traces = flexflow_traces(graph)
    computations = ~graph.messages
    assert traces.nodes == computations.sum() + 2 * graph.messages.sum()

    result = run(traces)
    seconds = graph.run_time[computations].sum() * 1e-3
    # Whole nanoseconds, at least one each.
    assert abs(result.gpu_time.sum() - seconds) < 1e-9 * computations.sum()
    assert result.sent_bytes.sum() == graph.size[graph.messages].sum()
    rounding = 1e-9 * graph.nodes
    assert result.wall_time.max() >= critical_path(graph) - rounding
    assert result.wall_time.max() >= result.gpu_time.max()
    assert run(traces, bandwidth=5000.0).wall_time.max() <= result.wall_time.max()


@pytest.mark.parametrize("npu_frequency", [None, 1000.0])
def test_a_time_beyond_all_numbers_is_refused_without_a_warning(npu_frequency):
    graph = graph_of(computation(0, 0, "1e308"))
    with pytest.raises(FormatError, match=r"^node0 takes .* s; at most 1e\+09 s are run"):
        flexflow_traces(graph, npu_frequency)
