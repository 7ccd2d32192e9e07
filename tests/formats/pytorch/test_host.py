"""PyTorch's host and Kineto traces: reading, and errors that say where.

Shapes of the files are those that PyTorch 2.2 (host, ``execution_trace_observer.cpp``) and
Kineto (``output_json.cpp``) write; the small ones here are typed by hand.
"""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.base.files import parse_json, read_json
from perfmodel.formats.pytorch.collectives import (
    CollectiveRecord,
    collective_kind,
    element_size,
    record_from_keys,
)
from perfmodel.formats.pytorch.host import parse_host_trace, read_host_trace
from perfmodel.formats.pytorch.kineto import CALL, DEVICE, OPERATOR, WAIT, parse_kineto, read_kineto
from perfmodel.trace import ABSENT
from tests.data import ASTRA

SAMPLES = ASTRA / "chakra_samples"
HOST_SAMPLE = SAMPLES / "pytorch_host_et_1.0.2-chakra.0.0.4.json"
TENSOR = [14, 15, 0, 256, 4, "cuda:0"]  # 256 elements of 4 B


def node(identifier, name, parent=2, values=(), types=(), **attributes):
    attributes = {"rf_id": identifier - 1, "tid": 1} | attributes
    return {
        "id": identifier,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": list(values), "shapes": [], "types": list(types)},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "", "value": attributes[key]} for key in attributes],
    }


def groups_node(identifier, *groups):
    return node(identifier, "## process_group:init ##", values=[json.dumps(groups)])


def host(*nodes, schema="1.0.2-chakra.0.0.4"):
    root = node(1, "[pytorch|profiler|execution_trace|process]", 1)
    return {"schema": schema, "pid": 1, "nodes": [*nodes, root]}


def event(category, name, start, duration, thread=1, **keys):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": keys,
    }


def kineto(*events, **content):
    return parse_kineto(json.dumps({"traceEvents": list(events), **content}))


# The first form is the sample's (PyTorch 2.2), the second PyTorch 2.4's.
OLD = ([[TENSOR], 12, 82149104, 0, "all_gather", [], [], 2], ["GenericList[Tensor(float)]"])
NEW = (
    [[TENSOR], [7, False], ["1", "tp"], 0, "allreduce", [], [], 4, 2, 2],
    ["GenericList[Tensor(float)]"],
)


def test_operators_are_sorted_and_columns_hold_what_nodes_say():
    nodes = (node(9, "aten::b", 4, tid=2), node(4, "aten::a"))
    trace = parse_host_trace(json.dumps(host(*nodes)))
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
    trace = parse_host_trace(json.dumps(content))
    record = trace.collectives[2]
    assert record == CollectiveRecord("all_gather", 1024, "82149104", None, 2, 12)
    assert trace.groups == {"0": (), "82149104": ()}
    assert trace.devices == 2


def test_the_newer_form_states_first_rank_stride_and_size():
    trace = parse_host_trace(json.dumps(host(node(5, "record_param_comms", 2, *NEW))))
    assert trace.collectives[1] == CollectiveRecord("all_reduce", 1024, "1", (4, 6), 2, 7)


def test_ranks_of_a_defined_group_count_more_than_the_stride():
    init = groups_node(3, {"pg_name": "1", "pg_desc": "tp", "ranks": [1, 5], "pg_size": 2})
    content = host(init, node(5, "record_param_comms", 2, *NEW))
    assert parse_host_trace(json.dumps(content)).collectives[2].ranks == (1, 5)


def test_attributes_of_schema_1_1_state_the_size():
    attributes = {"in_msg_nelems": 100, "dtype": "BFloat16", "collective_name": "allreduce"}
    content = host(
        node(5, "record_param_comms", 2, *NEW, **attributes), schema="1.1.1-chakra.0.0.4"
    )
    assert parse_host_trace(json.dumps(content)).collectives[1].size == 200


@pytest.mark.parametrize(
    "schema",
    ["1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4", "1.1.1-chakra.0.0.4",
     "1.1.2-chakra.0.0.4", "1.12.0-chakra.0.0.4"],
)  # fmt: skip
def test_schemas_of_all_releases_since_the_second_are_read_alike(schema):
    trace = parse_host_trace(
        json.dumps(host(node(5, "record_param_comms", 2, *NEW), schema=schema))
    )
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
    trace = parse_host_trace(json.dumps({"schema": "1.0.1", "nodes": nodes}))
    assert trace.parents.tolist() == [1, 2, 4]
    assert trace.thread.tolist() == [3, 3, 3]
    assert trace.record_function.tolist() == [0, 3, 4]
    assert trace.collectives == {2: CollectiveRecord("all_gather", 1024, "82149104", None, 2, 12)}
    for damage in (4, {"id": 4}, {"id": 4, "name": "a"}, {"id": 4, "name": "a", "parent": -1}):
        with pytest.raises(FormatError, match="node at index 0"):
            parse_host_trace(json.dumps({"schema": "1.0.1", "nodes": [damage]}))


def test_split_sizes_of_an_all_to_all_add_up():
    """all_to_allv: what a rank puts in is the sum of its splits (in_msg_nelems)."""
    values = [[TENSOR], [7, False], ["1", "ep"], 0, "all_to_allv", [100, 156], [28, 4], 0, 1, 2]
    attributes = {"in_msg_nelems": 256, "out_msg_nelems": 32, "dtype": "Float",
                  "in_split_size": "[100, 156]", "out_split_size": "[28, 4]"}  # fmt: skip
    for stated in ({}, attributes):
        part = node(5, "record_param_comms", 2, values, NEW[1], **stated)
        trace = parse_host_trace(json.dumps(host(part, schema="1.1.1-chakra.0.0.4")))
        assert trace.collectives[1] == CollectiveRecord("all_to_all", 1024, "1", (0, 1), 2, 7)


def test_waits_and_messages_are_told_apart_from_collectives():
    wait = node(5, "record_param_comms", 2, [12, 0, 0, "wait", [], [], 1])
    send = node(6, "record_param_comms", 2, [[TENSOR], 3, ["1", ""], 1, *NEW[0][4:]], NEW[1])
    send["inputs"]["values"][4] = "send"
    other = node(7, "record_param_comms", 2, [1, 2, 3, "init", [], [], 1])
    trace = parse_host_trace(json.dumps(host(wait, send, other)))
    assert trace.collectives[1] == CollectiveRecord("wait", sequence=12, group="0")
    assert trace.collectives[2].kind == "send"
    assert trace.collectives[2].peer == 6  # the second of ranks 4, 6
    assert 3 not in trace.collectives


@pytest.mark.skipif(not HOST_SAMPLE.is_file(), reason="sample traces are not beside the repo")
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
        parse_host_trace(json.dumps(content), "x.json")
    assert str(error.value).startswith("x.json")
    assert "\n" not in str(error.value)


def test_events_are_ordered_and_joined():
    trace = kineto(
        event("kernel", "gemm", 30.5, 10, 7, device=0, stream=7, correlation=4),
        event("cuda_runtime", "cudaLaunchKernel", 22, 3, correlation=4),
        event("cpu_op", "aten::mm", 20, 8, **{"External id": 3, "Record function id": 11}),
        event("cpu_op", "aten::matmul", 20, 9),
        event("python_function", "f", 0, 100),
        {"ph": "M", "name": "process_name", "args": {}},
        {"ph": "s", "cat": "ac2g", "id": 4},
        distributedInfo={"backend": "nccl", "rank": 1, "world_size": 4},
    )
    assert trace.names == ("aten::matmul", "aten::mm", "cudaLaunchKernel", "gemm")
    assert trace.category.tolist() == [OPERATOR, OPERATOR, CALL, DEVICE]
    assert np.allclose(trace.start, [0, 0, 2e-6, 10.5e-6], rtol=0, atol=1e-15)
    assert np.allclose(trace.duration, [9e-6, 8e-6, 3e-6, 10e-6], rtol=0, atol=1e-15)
    assert trace.correlation.tolist() == [ABSENT, ABSENT, 4, 4]
    assert trace.record_function.tolist() == [ABSENT, 11, ABSENT, ABSENT]
    assert (trace.rank, trace.devices) == (1, 4)


def test_arguments_of_collectives_are_read():
    keys = {
        "Collective name": "_allgather_base",
        "In msg nelems": 4096,
        "Out msg nelems": 8192,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "3",
        "Process Group Ranks": "[1, 3]",
        "Seq": 9,
    }
    trace = kineto(event("kernel", "ncclDevKernel_AllGather", 0, 5, stream=1, **keys))
    assert trace.collectives == {0: CollectiveRecord("all_gather", 8192, "3", (1, 3), 2, 9)}


def test_lists_of_ranks_that_were_cut_are_continued_at_their_distance():
    keys = {"Collective name": "allreduce", "Process Group Ranks": "[0, 8, 16, ..., 504]"}
    record = record_from_keys({**keys, "Group size": 64}, "here")
    assert record is not None
    assert record.ranks == tuple(range(0, 512, 8))
    keys = {"Collective name": "allreduce", "Global rank start": 2, "Global rank stride": 3}
    record = record_from_keys({**keys, "Group size": 3}, "here")
    assert record is not None
    assert record.ranks == (2, 5, 8)


@pytest.mark.parametrize(
    "ranks", ["[0, 1, 2, 3, 8, 9, ...]", "[0, 8, 16, ..., 500]", "[0, 8, ..., 16]", "[5, ...]"]
)
def test_what_is_cut_from_an_uneven_list_of_ranks_is_not_guessed(ranks):
    keys = {"Collective name": "allreduce", "Process Group Ranks": ranks, "Group size": 64}
    record = record_from_keys(keys, "here")
    assert record is not None
    assert (record.ranks, record.group_size) == (None, 64)


def test_the_list_of_process_groups_says_what_was_cut():
    """``pg_config`` of PyTorch 2.4 and later."""
    keys = {
        "Collective name": "allreduce",
        "Process Group Name": "12",
        "Process Group Ranks": "[0, 1, 4, ...]",
        "Group size": 4,
    }
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))},
        {"pg_name": "12", "pg_desc": "tp", "pg_size": 4, "ranks": [0, 1, 4, 5]},
    ]
    part = event("kernel", "ncclDevKernel_AllReduce", 0, 5, stream=1, **keys)
    trace = kineto(part, distributedInfo={"rank": 0, "world_size": 8, "pg_config": config})
    assert trace.collectives[0].ranks == (0, 1, 4, 5)
    for other in (None, 3, [None, 4, {"ranks": 5}], [{"pg_name": "12", "ranks": [0, 1]}]):
        trace = kineto(part, distributedInfo={"pg_config": other})
        assert trace.collectives[0].ranks is None
    with pytest.raises(FormatError, match=r"pg_config\[0\]: a rank appears twice"):
        kineto(part, distributedInfo={"pg_config": [{"pg_name": "12", "ranks": [0, 0]}]})


def test_waits_between_streams_are_read():
    trace = kineto(
        event(
            "cuda_sync",
            "Stream Wait Event",
            5,
            0,
            stream=20,
            wait_on_stream=7,
            wait_on_cuda_event_record_corr_id=3,
            correlation=8,
        ),
        event("kernel", "a", 0, 5, stream=7),
    )
    assert trace.category.tolist() == [DEVICE, WAIT]
    assert trace.waits == {1: (int(trace.stream[0]), 3)}
    assert trace.stream[1] != trace.stream[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("recv", "receive"),
        ("batch_isend_irecv", ""),
        ("aten::mm", ""),
    ],
)
def test_names_of_collectives(name, kind):
    assert collective_kind(name) == kind


def test_an_element_type_that_is_not_known_is_refused():
    assert (element_size("c10::Half", "x"), element_size("Float", "x")) == (2, 4)
    with pytest.raises(FormatError, match="x: element type 'Quux' is not known"):
        element_size("Quux", "x")


@pytest.mark.parametrize(
    ("event_keys", "message"),
    [
        ({"ts": "soon"}, "ts is 'soon'"),
        ({"ts": 1e300}, "ts is '1e\\+300'"),
        ({"dur": -1}, "dur is '-1'"),
        ({"name": 5}, "should have a name"),
        ({"args": []}, "should have a name, and args"),
        (
            {"args": {"Collective name": "allreduce", "In msg nelems": 3, "dtype": "Q"}},
            "element type 'Q'",
        ),
        (
            {"args": {"Collective name": "allreduce", "Process Group Ranks": "[0, x]"}},
            "'x' should be a rank",
        ),
    ],
)
def test_what_is_wrong_with_an_event_is_said_in_one_line(event_keys, message):
    content = {"traceEvents": [event("cpu_op", "a", 0, 1) | event_keys]}
    with pytest.raises(FormatError, match=message) as error:
        parse_kineto(json.dumps(content), "x.json")
    assert str(error.value).startswith("x.json, traceEvents[0]")


def test_packed_files_are_read_and_damaged_ones_refused(tmp_path):
    content = json.dumps({"traceEvents": [event("cpu_op", "a", 0, 1)]}).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content))
    assert read_kineto(path).events == 1
    path.write_bytes(gzip.compress(content)[:-12])
    with pytest.raises(FormatError, match="damaged gzip data"):
        read_kineto(path)
    path.write_bytes(gzip.compress(b" " * 5000))
    with pytest.raises(FormatError, match="more than 4000 B of text"):
        read_json(path, largest=4000)
    with pytest.raises(FormatError, match="cannot read"):
        read_host_trace(tmp_path / "none.json")


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
        parse_json(text, "x")
    assert "\n" not in str(error.value)


def reads(parse, content):
    """Whether a value is read, or refused in one line."""
    try:
        parse(json.dumps(content), "x.json")
    except FormatError as error:
        return str(error).startswith("x.json") and len(str(error).splitlines()) == 1
    return True


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["allreduce", "[0, 1]", "Float"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


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


@given(st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]), VALUES)
def test_any_value_in_an_event_is_read_or_refused(key, value):
    assert reads(parse_kineto, {"traceEvents": [event("kernel", "nccl", 0, 1) | {key: value}]})


@given(
    st.sampled_from(
        [
            "stream",
            "device",
            "correlation",
            "In msg nelems",
            "Process Group Ranks",
            "Group size",
            "dtype",
            "Collective name",
            "Seq",
            "Process Group Name",
        ]
    ),
    VALUES,
)
def test_any_argument_of_an_event_is_read_or_refused(key, value):
    keys = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 2, key: value}
    assert reads(parse_kineto, {"traceEvents": [event("kernel", "nccl", 0, 1, **keys)]})
