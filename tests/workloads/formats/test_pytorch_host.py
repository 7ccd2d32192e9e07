"""PyTorch's host traces: reading, and errors that say where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.base.files import PROFILE, parse_json
from perfmodel.workloads.formats.pytorch_collectives import (
    CollectiveRecord,
)
from perfmodel.workloads.formats.pytorch_host import read_host_trace
from perfmodel.workloads.trace import ABSENT
from tests.data import ASTRA, MISSING
from tests.workloads.formats.made_pytorch import (
    VALUES,
    groups_node,
    host,
    node,
    parse_host_trace,
    reads,
)

SAMPLES = ASTRA / "chakra_samples"
HOST_SAMPLE = SAMPLES / "pytorch_host_et_1.0.2-chakra.0.0.4.json"
TENSOR = [14, 15, 0, 256, 4, "cuda:0"]  # 256 elements of 4 B

# The first form is the sample's (PyTorch 2.2), the second PyTorch 2.4's.
OLD = ([[TENSOR], 12, 82149104, 0, "all_gather", [], [], 2], ["GenericList[Tensor(float)]"])

NEW = (
    [[TENSOR], [7, False], ["1", "tp"], 0, "allreduce", [], [], 4, 2, 2],
    ["GenericList[Tensor(float)]"],
)


def test_operators_are_sorted_and_columns_hold_what_nodes_say():
    nodes = (node(9, "aten::b", 4, tid=2), node(4, "aten::a"))
    trace = parse_host_trace(host(*nodes))
    assert trace.identifiers.tolist() == [1, 4, 9]
    assert trace.names[1:] == ("aten::a", "aten::b")
    assert trace.parents.tolist() == [1, 2, 4]
    assert trace.thread.tolist() == [1, 1, 2]
    assert trace.record_function.tolist() == [0, 3, 8]
    assert trace.devices == ABSENT


def test_the_older_form_of_a_collective_finds_its_group_by_number():
    init = groups_node(
        3, {"pg_name": "0", "backend_id": 82149104, "ranks": [], "group_size": 2, "group_count": 1}
    )
    content = host(init, node(5, "record_param_comms", 2, *OLD))
    trace = parse_host_trace(content)
    record = trace.collectives[2]
    assert record == CollectiveRecord("all_gather", 1024, "82149104", None, 2, 12)
    assert trace.groups == {"0": (), "82149104": ()}
    assert trace.devices == 2


def test_the_newer_form_states_first_rank_stride_and_size():
    trace = parse_host_trace(host(node(5, "record_param_comms", 2, *NEW)))
    assert trace.collectives[1] == CollectiveRecord("all_reduce", 1024, "1", (4, 6), 2, 7)


def test_ranks_of_a_defined_group_count_more_than_the_stride():
    init = groups_node(3, {"pg_name": "1", "pg_desc": "tp", "ranks": [1, 5], "pg_size": 2})
    content = host(init, node(5, "record_param_comms", 2, *NEW))
    assert parse_host_trace(content).collectives[2].ranks == (1, 5)


def test_attributes_of_schema_1_1_state_the_size():
    attributes = {"in_msg_nelems": 100, "dtype": "BFloat16", "collective_name": "allreduce"}
    content = host(
        node(5, "record_param_comms", 2, *NEW, **attributes), schema="1.1.1-chakra.0.0.4"
    )
    assert parse_host_trace(content).collectives[1].size == 200


@pytest.mark.parametrize(
    "schema",
    ["1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4", "1.1.1-chakra.0.0.4",
     "1.1.2-chakra.0.0.4", "1.12.0-chakra.0.0.4"],
)  # fmt: skip
def test_schemas_of_all_releases_since_the_second_are_read_alike(schema):
    trace = parse_host_trace(host(node(5, "record_param_comms", 2, *NEW), schema=schema))
    assert trace.schema == schema
    assert trace.collectives[1] == CollectiveRecord("all_reduce", 1024, "1", (4, 6), 2, 7)


def flat_node(identifier, name, parent, values=(), types=()):
    """As PyTorch 2.1's execution_trace_observer.cpp writes it."""
    return {
        "name": name, "id": identifier, "rf_id": identifier - 1, "parent": parent, "fw_parent": 0,
        "seq_id": -1, "scope": 7, "tid": 3, "fw_tid": 0, "op_schema": "", "inputs": list(values),
        "input_shapes": [], "input_types": list(types), "outputs": [], "output_shapes": [],
        "output_types": [],
    }  # fmt: skip


def test_the_first_schema_has_flat_nodes():
    nodes = [
        flat_node(4, "aten::mm", 2),
        flat_node(5, "record_param_comms", 4, *OLD),
        flat_node(1, "[pytorch|profiler|execution_trace|process]", 1),
    ]
    trace = parse_host_trace({"schema": "1.0.1", "nodes": nodes})
    assert trace.parents.tolist() == [1, 2, 4]
    assert trace.thread.tolist() == [3, 3, 3]
    assert trace.record_function.tolist() == [0, 3, 4]
    assert trace.collectives == {2: CollectiveRecord("all_gather", 1024, "82149104", None, 2, 12)}
    for damage in (4, {"id": 4}, {"id": 4, "name": "a"}, {"id": 4, "name": "a", "parent": -1}):
        with pytest.raises(FormatError, match="node at index 0"):
            parse_host_trace({"schema": "1.0.1", "nodes": [damage]})


def test_split_sizes_of_an_all_to_all_add_up():
    """all_to_allv: what a rank puts in is the sum of its splits (in_msg_nelems)."""
    values = [[TENSOR], [7, False], ["1", "ep"], 0, "all_to_allv", [100, 156], [28, 4], 0, 1, 2]
    attributes = {"in_msg_nelems": 256, "out_msg_nelems": 32, "dtype": "Float",
                  "in_split_size": "[100, 156]", "out_split_size": "[28, 4]"}  # fmt: skip
    for stated in ({}, attributes):
        part = node(5, "record_param_comms", 2, values, NEW[1], **stated)
        trace = parse_host_trace(host(part, schema="1.1.1-chakra.0.0.4"))
        assert trace.collectives[1] == CollectiveRecord("all_to_all", 1024, "1", (0, 1), 2, 7)


def test_waits_and_messages_are_told_apart_from_collectives():
    wait = node(5, "record_param_comms", 2, [12, 0, 0, "wait", [], [], 1])
    send = node(6, "record_param_comms", 2, [[TENSOR], 3, ["1", ""], 1, *NEW[0][4:]], NEW[1])
    send["inputs"]["values"][4] = "send"
    other = node(7, "record_param_comms", 2, [1, 2, 3, "init", [], [], 1])
    trace = parse_host_trace(host(wait, send, other))
    assert trace.collectives[1] == CollectiveRecord("wait", sequence=12, group="0")
    assert trace.collectives[2].kind == "send"
    assert trace.collectives[2].peer == 6  # the second of ranks 4, 6
    assert 3 not in trace.collectives


@pytest.mark.skipif(not HOST_SAMPLE.is_file(), reason=MISSING)
def test_the_sample_has_ten_all_gathers_and_waits_of_two_ranks():
    trace = read_host_trace(HOST_SAMPLE)
    kinds = [record.kind for record in trace.collectives.values()]
    assert trace.operators == 263
    assert (kinds.count("all_gather"), kinds.count("wait")) == (10, 10)
    assert (trace.devices, trace.collectives[20].size) == (2, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema="1.0.0"), "schema '1.0.0' is not covered; covered: 1.0.1, "),
        (lambda c: c.update(schema=None), "schema 'None' is not covered"),
        (lambda c: c.update(schema="2.0.0-chakra.0.0.4"), "is not covered.*did you mean"),
        (lambda c: c["nodes"][0].update(cat="kernel"), "this is a linked trace; give the host"),
        (lambda c: c.update(nodes=None), "an object with 'nodes' is needed"),
        (lambda c: c["nodes"].append(3), "node at index 2: should be an object"),
        (lambda c: c["nodes"][0].update(name=None), "node at index 0: has no name"),
        (lambda c: c["nodes"][0].update(id=-1), "id should be a whole number"),
        (lambda c: c["nodes"][0].update(ctrl_deps=1.5), "ctrl_deps should be a whole number"),
        (lambda c: c["nodes"][0].update(id=1), "two nodes have the id 1"),
        (lambda c: c["nodes"][0].update(attrs=[1]), "attrs should be a list"),
        (
            lambda c: c["nodes"][0]["inputs"].update(values=[[[1, 2]], *NEW[0][1:]]),
            "a tensor should be",
        ),
        (
            lambda c: c["nodes"][0]["inputs"].update(values=[[[1, 2, 0, -5, 4, ""]], *NEW[0][1:]]),
            "a tensor of -5 elements",
        ),
        (lambda c: c["nodes"].append(groups_node(3, {"ranks": [0, 0]})), "a rank appears twice"),
        (lambda c: c["nodes"].append(groups_node(3, {"ranks": [-1]})), "'-1' should be a rank"),
        (
            lambda c: c["nodes"].append(groups_node(3, {"ranks": [0], "pg_size": 2})),
            "1 ranks in a process group of 2",
        ),
        (
            lambda c: c["nodes"].append(node(3, "process_group:init", values=["{"])),
            "no JSON",
        ),
    ],
)
def test_what_is_wrong_with_a_host_trace_is_said_in_one_line(change, message):
    content = host(node(5, "record_param_comms", 2, *NEW))
    change(content)
    with pytest.raises(FormatError, match=message) as error:
        parse_host_trace(content, "x.json")
    assert str(error.value).startswith("x.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1,\n2", "x, line 2: no JSON"),
        ("[NaN]", "'NaN' is no JSON number"),
        ("[" * 100_000, "nests deeper|no JSON"),
        ("[" + "9" * 10_000 + "]", "x: "),
    ],
)
def test_hostile_json_is_refused_in_one_line(text, message):
    with pytest.raises(FormatError, match=message) as error:
        parse_json(text, "x", PROFILE)
    assert "\n" not in str(error.value)


@given(st.sampled_from(["id", "name", "ctrl_deps", "inputs", "attrs"]), VALUES)
def test_any_value_in_a_host_trace_is_read_or_refused(key, value):
    content = host(groups_node(3, {"ranks": [0]}), node(5, "record_param_comms", 2, *NEW))
    content["nodes"][1][key] = value
    assert reads(parse_host_trace, content)


@given(st.integers(0, 9), VALUES)
def test_any_input_of_a_collective_is_read_or_refused(index, value):
    content = host(groups_node(3, {"ranks": [0]}), node(5, "record_param_comms", 2, *NEW))
    content["nodes"][1]["inputs"]["values"][index] = value
    assert reads(parse_host_trace, content)
