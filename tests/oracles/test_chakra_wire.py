"""Bytes of every writer of Chakra traces, read by a decoder of its own and by feeders' rules.

The decoder knows the wire format of protobuf and the published schema only (mlcommons/chakra,
``schema/protobuf/et_def.proto``; the numbers are typed here), nothing of ours. The rules are
those of the two feeders that ASTRA-sim links:

* astra-sim, ``workload/feeder_v3`` (2aa2bbd) and ``workload/Workload.cc`` (0383c20): lengths of
  at most five bytes, every parent in the file, attributes that must be there;
* mlcommons/chakra, ``src/feeder/et_feeder_node.cpp`` (02da5d0): each attribute is read as one
  fixed kind, and any other kind silently as 0; a node without ``is_cpu_op`` is one of the host
  there, and only data dependencies count.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from perfmodel.training.step.workload import projected_workload
from perfmodel.workloads.convert import synthetic
from perfmodel.workloads.convert.astra_text import convert_text
from perfmodel.workloads.convert.pytorch import pytorch_traces
from perfmodel.workloads.export.chakra import projected_traces
from perfmodel.workloads.formats.astra_text import parse_astra_text
from perfmodel.workloads.formats.chakra.files import read_trace, write_traces
from perfmodel.workloads.formats.flexflow import flexflow_traces, parse_flexflow
from perfmodel.workloads.trace import ABSENT, COMPUTE, MEM_LOAD, METADATA, TraceBuilder, TraceSet
from perfmodel.workloads.twins.stage.arguments import StageArguments
from perfmodel.workloads.twins.stage.traces import stage_traces
from tests.data import table_of
from tests.workloads.formats.made_pytorch import parse_host_trace, parse_kineto

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # wire types
# et_def.proto. A value of an attribute: its field, kind and wire type.
VALUES = {
    3: ("double", EIGHT_BYTES),
    5: ("float", FOUR_BYTES),
    7: ("int32", VARINT),
    9: ("int64", VARINT),
    11: ("uint32", VARINT),
    13: ("uint64", VARINT),
    27: ("bool", VARINT),
    28: ("bool_list", LENGTH),
    29: ("string", LENGTH),
    30: ("string_list", LENGTH),
}
NODE_FIELDS = {1: VARINT, 2: LENGTH, 3: VARINT, 4: LENGTH, 5: LENGTH, 6: VARINT, 7: VARINT,
               8: LENGTH, 9: LENGTH, 10: LENGTH}  # fmt: skip
META, LOAD, STORE, COMP, SEND, RECV, COLL = range(1, 8)  # NodeType
ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 5, 6, 7
# Kinds that the feeder of mlcommons reads, by the C++ accessor that it calls.
FEEDER_KINDS = table_of(__file__, "feeder_kinds")


def varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


def fields(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field of a message."""
    place = 0
    while place < len(content):
        tag, place = varint(content, place)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, place = varint(content, place)
            yield number, wire, value
            continue
        length = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(wire)
        if length is None:
            assert wire == LENGTH
            length, place = varint(content, place)
        assert place + length <= len(content)
        yield number, wire, content[place : place + length]
        place += length


def packed(content: bytes) -> list[int]:
    values, place = [], 0
    while place < len(content):
        value, place = varint(content, place)
        values.append(value)
    return values


def attribute(content: bytes) -> tuple[str, str, Any]:
    """Return name, kind and value of an AttributeProto."""
    name, kind, value = "", "", None
    for number, wire, raw in fields(content):
        if number == 1:
            name = raw.decode()
            continue
        assert number in VALUES, number
        assert not kind, "two values"
        kind, expected = VALUES[number]
        assert wire == expected
        value = raw
        if kind == "double":
            (value,) = struct.unpack("<d", raw)
        elif kind == "string":
            value = raw.decode()
        elif kind == "string_list":
            value = [item.decode() for _, _, item in fields(raw)]
        elif kind == "bool_list":
            value = [flag for _, _, flags in fields(raw) for flag in packed(flags)]
    return name, kind, value


def node(content: bytes) -> dict[str, Any]:
    """Return a Node message; `attributes` by name: kind and value."""
    found: dict[str, Any] = {
        "id": 0, "name": "", "type": 0, "control": [], "data": [], "start": 0, "micros": 0,
        "attributes": {}, "io": [],
    }  # fmt: skip
    simple = {1: "id", 3: "type", 6: "start", 7: "micros"}
    for number, wire, raw in fields(content):
        assert NODE_FIELDS.get(number) == wire, (number, wire)
        if number in simple:
            found[simple[number]] = raw
        elif number == 2:
            found["name"] = raw.decode()
        elif number in (4, 5):
            found["control" if number == 4 else "data"] += packed(raw)
        elif number in (8, 9):
            found["io"].append(raw)
        else:
            name, kind, value = attribute(raw)
            assert name not in found["attributes"]
            found["attributes"][name] = (kind, value)
    return found


def decode(content: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return metadata (attributes, and "version") and nodes of a file."""
    messages, place = [], 0
    while place < len(content):
        begin = place
        length, place = varint(content, place)
        assert place - begin <= 5
        assert place + length <= len(content)
        messages.append(content[place : place + length])
        place += length
    metadata: dict[str, Any] = {}
    for number, wire, raw in fields(messages[0]):
        assert (number, wire) in ((1, LENGTH), (2, LENGTH))
        if number == 1:
            metadata["version"] = raw.decode()
        else:
            name, _, value = attribute(raw)
            metadata[name] = value
    assert all(messages[1:]), "a node without content ends the file for mlcommons' reader"
    return metadata, [node(message) for message in messages[1:]]


def check_feeders(nodes, rank, devices, groups, host_by_default=True):
    """Fail where a feeder refuses, dead-locks on, or silently misreads a rank's nodes."""
    identifiers = [item["id"] for item in nodes]
    assert len(set(identifiers)) == len(identifiers)
    known = set(identifiers)
    for item in nodes:
        attributes = item["attributes"]
        assert META <= item["type"] <= COLL
        assert known.issuperset(item["data"])
        assert known.issuperset(item["control"])
        assert item["id"] not in item["data"] + item["control"]
        for name, (kind, value) in attributes.items():
            if name in FEEDER_KINDS:
                # An attribute without a value is an empty list to ASTRA-sim's memory tracker.
                empty = kind == "" and name in ("inputs", "outputs")
                assert empty or FEEDER_KINDS[name] == kind, (name, kind)
            if FEEDER_KINDS.get(name) == "int32":
                assert 0 <= value < 2**31
            elif FEEDER_KINDS.get(name) in ("int64", "uint64"):
                assert 0 <= value < 2**63
        value = {name: entry[1] for name, entry in attributes.items()}
        if item["type"] in (COMP, COLL, SEND, RECV) and host_by_default:
            assert "is_cpu_op" in value
        if item["type"] in (COLL, SEND, RECV):
            assert not value.get("is_cpu_op", 0), "Comm node should not be on CPU"
            assert "comm_size" in value
        if item["type"] == COLL:
            assert value["comm_type"] in (
                ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER,
            )  # fmt: skip
            if "pg_name" in value:
                assert rank in groups[value["pg_name"]]
        elif item["type"] in (SEND, RECV):
            own, other = ("comm_src", "comm_dst")[:: 1 if item["type"] == SEND else -1]
            assert value.get(own, rank) == rank
            assert 0 <= value[other] < devices
            assert value[other] != rank
            assert "comm_tag" in value
        elif item["type"] == COMP and "num_ops" in value:
            assert "tensor_size" in value, "the roofline wants both"
        elif item["type"] in (LOAD, STORE):
            assert value["tensor_size"] > 0


def check_columns(trace, nodes):
    """Fail where the decoded nodes say something else than the trace."""
    assert [item["id"] for item in nodes] == trace.identifiers.tolist()
    assert [item["name"] for item in nodes] == list(trace.names)
    assert [item["type"] for item in nodes] == trace.kinds.tolist()
    for i, item in enumerate(nodes):
        assert item["data"] == trace.data_parents[i].tolist()
        assert item["control"] == trace.control_parents[i].tolist()
        value = {name: entry[1] for name, entry in item["attributes"].items()}
        seconds = value.get("duration_seconds", item["micros"] / 1e6)
        assert seconds == trace.duration[i]
        assert abs(item["micros"] / 1e6 - seconds) <= 1e-6
        for name, column in (
            ("is_cpu_op", trace.on_cpu),
            ("num_ops", trace.num_ops),
            ("tensor_size", trace.tensor_size),
            ("comm_type", trace.collective),
            ("comm_size", trace.communication_size),
            ("comm_priority", trace.priority),
            ("comm_src", trace.source),
            ("comm_dst", trace.destination),
            ("comm_tag", trace.tag),
        ):
            assert value.get(name, ABSENT) == column[i], name
        group = trace.group_names[trace.group[i]] if trace.group[i] != ABSENT else None
        assert value.get("pg_name") == group


def check_written(traces, folder, **rules):
    """Write, decode and check; return the decoded files of all ranks."""
    paths = write_traces(traces, folder / "w")
    groups = {}
    if traces.groups:
        assert paths[-1].name == "w.groups.json"
        groups = json.loads(paths[-1].read_text("utf-8"))
        assert groups == {name: list(ranks) for name, ranks in traces.groups.items()}
    decoded = []
    sends, receives = Counter(), Counter()
    for rank, trace in enumerate(traces.traces):
        metadata, nodes = decode((folder / f"w.{rank}.et").read_bytes())
        check_feeders(nodes, rank, traces.devices, groups, **rules)
        check_columns(trace, nodes)
        decoded.append((metadata, nodes))
        for item in nodes:
            if item["type"] in (SEND, RECV):
                # The side that is not stated is the rank itself (Workload.cc, issue_send_comm).
                ends = ("comm_src", "comm_dst", "comm_tag", "comm_size")
                key = tuple(item["attributes"].get(name, ("", rank))[1] for name in ends)
                (sends if item["type"] == SEND else receives)[key] += 1
    assert sends == receives
    return decoded


def test_the_decoder_reads_a_file_typed_by_hand():
    # id 3, name "c", type 4, data_deps 1 and 300, duration_micros 100, attribute x: true
    content = bytes.fromhex("0016 0803 120163 1804 2a0301ac02 3864 5206 0a0178 d80101")
    _, (found,) = decode(content)
    assert (found["id"], found["name"], found["type"]) == (3, "c", COMP)
    assert (found["data"], found["micros"]) == ([1, 300], 100)
    assert found["attributes"] == {"x": ("bool", 1)}


@pytest.mark.parametrize("pattern", ["compute", "chained", "concurrent", "groups", "pipeline"])
def test_synthetic(pattern, tmp_path):
    work = synthetic.Work(1.5e-6, 2_000_000, 3000)
    traces = {
        "compute": lambda: synthetic.dependent_compute(2, 3, 2**40, 2**33, 5e-6),
        "chained": lambda: synthetic.repeated_collectives(4, "all_gather", 2**34, 3),
        "concurrent": lambda: synthetic.repeated_collectives(4, "all_to_all", 0, 3, chained=False),
        "groups": lambda: synthetic.repeated_collectives(4, "all_reduce", 8, 2, [(0, 2), (3, 1)]),
        "pipeline": lambda: synthetic.pipeline(3, 4, work, work, 4096),
    }[pattern]()
    decoded = check_written(traces, tmp_path)
    assert [len(nodes) for _, nodes in decoded] == [trace.nodes for trace in traces.traces]


def test_converted_text(tmp_path):
    """The official converter writes no ``is_cpu_op``, so neither do we."""
    text = (
        "HYBRID_DATA_MODEL\n2\n"
        "a -1 10 ALLGATHER 100 20 NONE 0 30 ALLREDUCE 300 7\n"
        "b -1 11 NONE 0 21 REDUCESCATTER 201 31 ALLTOALL 301 7\n"
    )
    decoded = check_written(
        convert_text(parse_astra_text(text), 3, 2, text=text), tmp_path, host_by_default=False
    )
    metadata, nodes = decoded[2]
    assert metadata == {"schema": "1.0.2-chakra.0.0.4", "input_file": text}
    assert nodes[0]["id"] == 2 * len(nodes)
    assert {item["micros"] for item in nodes if item["type"] == COMP} == {10, 11, 20, 21, 30, 31}


def test_flexflow(tmp_path):
    graph = parse_flexflow(
        'digraph taskgraph {\nnode0 [label="{device_id=0|A|Forward|COMP_NODE|'
        'simulated_run_time=0.5}"];\nnode1 [label="{device_id=1|B|Forward|COMP_NODE|'
        'simulated_run_time=0.25}"];\nnode2 [label="{device_id=9|A to B|Comm|'
        "COMM_SEND_RECV_NODE|src_device_id=0|dst_device_id=1|comm_size=4096|"
        'run_time=0.1}"];\nnode0 -> node2; node2 -> node1;\n}'
    )
    (_, first), (_, second) = check_written(flexflow_traces(graph), tmp_path)
    assert [(item["type"], item["id"], item["data"]) for item in first] == [
        (COMP, 0, []),
        (SEND, 2, [0]),
    ]
    assert [(item["type"], item["id"], item["data"]) for item in second] == [
        (COMP, 1, [2]),
        (RECV, 2, []),
    ]


def kernel_events(rank, name, **keys):
    """A launch, and the kernel that it starts on stream 20."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
            "ts": 10, "dur": 5, "args": {"correlation": 1}}  # fmt: skip
    keys = {"stream": 20, "correlation": 1, "In msg nelems": 64, "dtype": "Float", **keys}
    work = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": 20, "dur": 30,
            "args": keys}  # fmt: skip
    info = {"rank": rank, "world_size": 4}
    return parse_kineto({"traceEvents": [call, work], "distributedInfo": info})


def test_pytorch_groups(tmp_path):
    pairs = []
    for rank in range(4):
        ranks = [rank % 2, rank % 2 + 2]
        keys = {"Collective name": "_allgather_base", "Process Group Ranks": str(ranks)}
        pairs.append((None, kernel_events(rank, "ncclDevKernel_AllGather_RING_LL", **keys)))
    decoded = check_written(pytorch_traces(pairs), tmp_path)
    for rank, (_, nodes) in enumerate(decoded):
        values = {name: entry[1] for name, entry in nodes[-1]["attributes"].items()}
        assert (values["pg_name"], values["comm_type"]) == (str(rank % 2 + 1), ALL_GATHER)
        assert values["comm_size"] == 256


def test_pytorch_messages(tmp_path):
    keys = {"Process Group Ranks": "[0, 1]", "Group size": 2}
    pairs = [
        (None, kernel_events(0, "ncclDevKernel_SendRecv",
                             **{"Collective name": "send", "Dst Rank": 1}, **keys)),
        (None, kernel_events(1, "ncclDevKernel_SendRecv",
                             **{"Collective name": "recv", "Src Rank": 0, "Out msg nelems": 64},
                             **keys)),
    ]  # fmt: skip
    decoded = check_written(pytorch_traces(pairs), tmp_path)
    assert [nodes[-1]["type"] for _, nodes in decoded] == [SEND, RECV]


def test_pytorch_host_alone(tmp_path):
    tensor = [14, 15, 0, 256, 4, "cuda:0"]
    values = [[tensor], 12, 5, 0, "reduce_scatter", [], [], 2]
    nodes = [
        {"id": i, "name": name, "ctrl_deps": 2, "inputs": inputs, "outputs": {}, "attrs": []}
        for i, name, inputs in (
            (3, "aten::mm", {}),
            (4, "record_param_comms",
             {"values": values, "types": ["GenericList[Tensor(float)]"]}),
        )
    ]  # fmt: skip
    host = parse_host_trace({"schema": "1.1.0-chakra.0.0.4", "nodes": nodes})
    _, found = check_written(pytorch_traces([(host, None)]), tmp_path)[0]
    assert [item["type"] for item in found] == [COMP, COMP, COLL]
    assert found[-1]["attributes"]["comm_type"] == ("int64", REDUCE_SCATTER)


def test_stage(tmp_path):
    """STAGE states ``is_cpu_op`` for communication only."""
    arguments = StageArguments(
        data_parallel=2, tensor_parallel=2, pipeline_parallel=2, layers=2, input_size=64,
        output_size=64, hidden_size=64, feed_forward_size=128, heads=4, sequence_length=32,
        batch=4,
    )  # fmt: skip
    decoded = check_written(stage_traces(arguments), tmp_path, host_by_default=False)
    kinds = Counter(item["type"] for _, nodes in decoded for item in nodes)
    assert set(kinds) == {COMP, SEND, RECV, COLL}
    for _, nodes in decoded:
        for item in nodes:
            if item["type"] == COMP:
                assert {"num_ops", "tensor_size", "inputs", "outputs"} <= set(item["attributes"])


@pytest.mark.parametrize("numbered", [False, True])
def test_projection(numbered, tmp_path, small_dense, grid_of, h100):
    grid = grid_of(small_dense, tensor_parallel=2, data_parallel=2, pipeline_parallel=2)
    workload = projected_workload(small_dense, grid, h100, framework="megatron")
    traces = projected_traces(workload, granularity="layer", numbered_groups=numbered)
    decoded = check_written(traces, tmp_path)
    assert {item["type"] for _, nodes in decoded for item in nodes} >= {COMP, SEND, RECV, COLL}
    for _, nodes in decoded:
        for item in nodes:
            attributes = item["attributes"]
            if item["type"] == COMP and not attributes["is_cpu_op"][1]:
                assert attributes["num_ops"][1] > 0  # 0 operations per byte is 0 / 0 seconds
                assert attributes["tensor_size"][1] > 0
            if numbered and "pg_name" in attributes:
                assert int(attributes["pg_name"][1]) > 0  # std::stoi; 0 is everybody


def test_memory_metadata_and_every_other_column(tmp_path):
    builder = TraceBuilder()
    builder.add("m", METADATA, other={"note": "text", "ratio": 0.5})
    builder.add("load", MEM_LOAD, tensor_size=2**40, data=[0])
    builder.add(
        "c", COMPUTE, num_ops=2**62, tensor_size=1, priority=2**31 - 1, on_cpu=1, control=[0, 1],
        involved=[True, False, True], inputs=[("w", 7)], start_time=3e-6,
    )  # fmt: skip
    ((_, nodes),) = check_written(TraceSet((builder.build(),)), tmp_path)
    assert nodes[0]["attributes"]["note"] == ("string", "text")
    assert nodes[0]["attributes"]["ratio"] == ("double", 0.5)
    assert nodes[2]["attributes"]["involve_dims"] == ("bool_list", [1, 0, 1])
    assert nodes[2]["attributes"]["inputs"] == ("string_list", ["w", "7"])
    assert nodes[2]["start"] == 3


def test_sanity_check_files_keep_all_that_they_say(development_table, tmp_path):
    """Only one kind changes: STAGE's int32 flag to the bool that mlcommons' feeder reads."""
    folder = development_table("astra/et_sanity/comm_group.json").parent
    changed = Counter()
    for rank in range(16):
        path = folder / f"sanity_check.{rank}.et"
        metadata, nodes = decode(path.read_bytes())
        (again,) = write_traces(TraceSet((read_trace(path),)), tmp_path / str(rank))
        written_metadata, written = decode(again.read_bytes())
        assert written_metadata == metadata
        assert len(written) == len(nodes)
        for before, after in zip(nodes, written, strict=True):
            for name, (kind, value) in before.pop("attributes").items():
                new_kind, new_value = after["attributes"].pop(name)
                if name in ("inputs", "outputs"):
                    value = sizes_cut(value)
                assert (new_value or None) == (value or None), name
                changed[name, kind, new_kind] += kind != new_kind
            assert not after.pop("attributes")
            assert after == before
    wrong = {key: count for key, count in changed.items() if count}
    assert wrong == {("is_cpu_op", "int32", "bool"): 2728}


def sizes_cut(texts):
    """Names and sizes in turn; ASTRA-sim cuts off the decimals of sizes."""
    return [text if i % 2 == 0 else str(int(float(text))) for i, text in enumerate(texts or [])]


def test_numbers_near_the_limits_are_written_whole(tmp_path):
    builder = TraceBuilder()
    builder.add("c", COMPUTE, identifier=2**63 - 1, num_ops=2**63 - 1, tensor_size=2**63 - 1)
    builder.add("d", COMPUTE, identifier=0, data=[2**63 - 1], duration=1e6)
    (path,) = write_traces(TraceSet((builder.build(),)), tmp_path / "w")
    _, (first, second) = decode(path.read_bytes())
    assert (first["id"], first["attributes"]["num_ops"]) == (2**63 - 1, ("int64", 2**63 - 1))
    assert (second["id"], second["data"], second["micros"]) == (0, [2**63 - 1], 10**12)
    assert np.int64(first["attributes"]["tensor_size"][1]) > 0
