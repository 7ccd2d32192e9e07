"""Chakra execution traces as JSON: the feeder's form, the jsonizer's, and bad files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.chakra.files import parse_trace, read_trace, write_traces
from perfmodel.workloads.formats.chakra.json import (
    check_groups,
    json_text,
    parse_json_trace,
    read_groups,
    write_groups,
)
from perfmodel.workloads.formats.chakra.schema import (
    IO_INFO,
    NODE_INPUTS,
    SCALAR_KINDS,
    Attribute,
    messages,
)
from perfmodel.workloads.formats.chakra.writing import serialise
from perfmodel.workloads.trace import ABSENT, COLLECTIVE, COMPUTE, TraceBuilder, TraceSet
from tests.amount import cases
from tests.data import table_of
from tests.workloads.formats.chakra.made import parts_of

GROUPS = st.dictionaries(
    st.text(max_size=4),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4, unique=True).map(tuple),
    max_size=4,
)


@given(groups=GROUPS)
@settings(max_examples=cases(30))
def test_write_and_read(tmp_path_factory, groups):
    path = tmp_path_factory.mktemp("groups") / "g.json"
    write_groups(groups, path)
    again = read_groups(path)
    assert again == groups
    assert list(again) == list(groups)


def test_the_file_is_what_astra_sim_reads(tmp_path):
    write_groups({"1": (0, 1), "a0": (5, 4)}, tmp_path / "g.json")
    assert (tmp_path / "g.json").read_text() == '{"1": [0, 1], "a0": [5, 4]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *table_of(__file__, "bad_files_of_groups"),
        ('{"1": [' + "9" * 5000 + "]}", "g.json"),
        ("[" * 100_000, "g.json"),
    ],
)
def test_bad_files_of_groups(tmp_path, text, message):
    path = tmp_path / "g.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message) as error:
        read_groups(path, devices=4)
    assert "\n" not in str(error.value)


def test_ranks_are_checked_against_the_devices_only_where_told():
    assert check_groups({"1": [7]}) == {"1": (7,)}
    with pytest.raises(FormatError, match="rank 7, but the ranks are 0 to 6"):
        check_groups({"1": [7]}, devices=7)


def test_bad_groups_are_not_written(tmp_path):
    with pytest.raises(FormatError, match="twice"):
        write_groups({"1": (3, 3)}, tmp_path / "g.json")
    assert not list(tmp_path.iterdir())


def test_groups_of_the_sanity_check(development_table):
    groups = read_groups(development_table("astra/et_sanity/comm_group.json"), devices=16)
    assert len(groups) == 24
    assert groups["7"] == (10, 11)


# As in mlcommons/chakra 21585d8, tests/data: a host operator, a kernel, a collective.
SAMPLE = """{
  "workload_graph": [
    {"Id": 216, "Name": "aten::mm", "NodeType": 4, "ctrlDeps": [3], "data_deps": [],
     "runtime": 318, "is_cpu_op": true},
    {"Id": 217, "Name": "gemm", "NodeType": 4, "data_deps": [216], "is_cpu_op": false},
    {"Id": 435, "Name": "ncclKernel", "NodeType": 7, "ctrlDeps": [216], "data_deps": [217, 216],
     "runtime": 28, "is_cpu_op": false, "comm_type": 5, "comm_size": 4096,
     "comm_priority": 0, "comm_tag": 3}
  ],
  "workload_name": "small",
  "ngpus": 8
}
"""
VALUES = {"string": "é", "bytes": b"\xff\x00", "bool": True, "double": 0.1, "float": 0.5}


def read(text: str):
    return parse_json_trace(text.encode(), "t.0.json")


GOOD = {"Id": 1, "Name": "n", "NodeType": 4}


def nodes(*entries) -> str:
    """A file of nodes."""
    return json.dumps({"workload_graph": list(entries)})


def one(**entries) -> str:
    """A file of one node."""
    return nodes({**GOOD, **entries})


def full_trace():
    """Every kind of column and of attribute."""
    builder = TraceBuilder()
    kinds = {kind: Attribute(kind, VALUES.get(kind, 7), "doc") for kind in SCALAR_KINDS}
    lists = {
        f"{kind}_list": Attribute(f"{kind}_list", (VALUES.get(kind, 7),)) for kind in SCALAR_KINDS
    }
    builder.add(
        "a",
        COMPUTE,
        num_ops=5,
        tensor_size=6,
        on_cpu=1,
        start_time=3e-6,
        duration=1.25e-7,
        inputs=[("x", 2)],
        other={**kinds, **lists, "empty": Attribute("", None), "plain": 5, "text": "t"},
    )
    builder.add(
        "b",
        COLLECTIVE,
        collective=1,
        communication_size=2**40,
        source=0,
        destination=1,
        tag=2,
        priority=3,
        group="tp",
        involved=[True, False],
        data=[0],
        control=[0],
        other={NODE_INPUTS: Attribute(IO_INFO, ("[1]", "", "x"))},
    )
    return builder.build({"schema": "s", "pid": Attribute("uint64", 2**64 - 1)}, "0.0.4")


class TestFeederForm:
    def test_sample(self):
        trace = read(SAMPLE)
        assert trace.identifiers.tolist() == [216, 217, 435]
        assert trace.names == ("aten::mm", "gemm", "ncclKernel")
        assert trace.kinds.tolist() == [COMPUTE, COMPUTE, COLLECTIVE]
        assert trace.duration.tolist() == [318e-6, 0, 28e-6]
        assert trace.on_cpu.tolist() == [1, 0, 0]
        assert trace.collective.tolist() == [ABSENT, ABSENT, 5]
        assert trace.communication_size.tolist() == [ABSENT, ABSENT, 4096]
        assert trace.priority.tolist() == [ABSENT, ABSENT, 0]
        assert trace.tag.tolist() == [ABSENT, ABSENT, 3]
        assert [trace.data_parents[i].tolist() for i in range(3)] == [[], [216], [217, 216]]
        assert [trace.control_parents[i].tolist() for i in range(3)] == [[3], [], [216]]
        assert trace.metadata == {"workload_name": "small", "ngpus": 8}

    def test_keys_as_the_feeder_reads_them(self):
        """mlcommons/chakra 21585d8, src/feeder/json_node.cpp."""
        node = json.loads(json_text(full_trace()))["workload_graph"][1]
        expected = {
            "Id": 1,
            "Name": "b",
            "NodeType": 7,
            "ctrlDeps": [0],
            "data_deps": [0],
            "runtime": 0,
            "comm_type": 1,
            "comm_size": 2**40,
            "comm_src": 0,
            "comm_dst": 1,
            "comm_tag": 2,
            "comm_priority": 3,
        }
        assert expected.items() <= node.items()

    def test_a_full_trace_comes_back(self, tmp_path):
        trace = full_trace()
        write_traces(TraceSet((trace,)), tmp_path / "t", ".json")
        again = read_trace(tmp_path / "t.0.json")
        assert again.equals(trace)
        assert serialise(again) == serialise(trace)

    @given(
        st.lists(
            st.tuples(
                st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
                st.floats(0, 1e6),
                st.integers(ABSENT, 2**63 - 1),
            ),
            max_size=4,
        )
    )
    @settings(max_examples=cases(30))
    def test_any_times_names_and_sizes(self, rows):
        builder = TraceBuilder()
        for name, duration, size in rows:
            builder.add(name, COMPUTE, duration=duration, num_ops=size)
        trace = builder.build()
        assert read(json_text(trace)).equals(trace)

    def test_runtime_with_decimals(self):
        assert read(one(runtime=2.5)).duration.tolist() == [2.5e-6]

    def test_bad_traces_are_not_written(self, tmp_path):
        for change in (
            {"duration": np.array([1.0, np.nan])},
            {"metadata": {"workload_graph": 1}},
            {"metadata": {"x": float("nan")}},
            {"other": {0: {"Name": "x"}}},
            {"other": {0: {"x": float("inf")}}},
        ):
            with pytest.raises(FormatError, match="cannot write"):
                write_traces(TraceSet((replace(full_trace(), **change),)), tmp_path / "t", ".json")
        assert not list(tmp_path.iterdir())


def jsonizer_text(content: bytes) -> str:
    """What mlcommons/chakra's jsonizer prints: MessageToJson of every message."""
    from google.protobuf.json_format import MessageToJson

    first, *rest = parts_of(content)
    classes = messages()
    lines = [MessageToJson(classes.metadata.FromString(first))]
    for part in rest:
        text = MessageToJson(classes.node.FromString(part))
        lines.append(text.replace('"type": 4', '"type": "COMP_NODE"'))
    return "\n".join(lines)


class TestJsonizerForm:
    def test_messages_one_after_another(self):
        trace = full_trace()
        assert read(jsonizer_text(serialise(trace)) + "\n").equals(trace)

    def test_field_names_of_the_jsonizer(self):
        text = '{"version": "0.0.4"}\n{"id": "5", "name": "a", "type": "COMP_NODE", "dataDeps": []}'
        trace = read(text)
        assert (trace.version, trace.identifiers.tolist()) == ("0.0.4", [5])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        *table_of(__file__, "the_bad_node_is_named"),
        ({"Id": 2**64}, "Id 18446744073709551616 should be"),
        ({"Name": None}, "'Name' should be a text"),
        ({"Name": "\ud800"}, ""),
        ({"NodeType": 2**40}, ""),
        ({"data_deps": [2**63]}, "ids are below"),
        ({"data_deps": [2**64]}, ""),
        ({"runtime": 2**63}, "runtime should be"),
        ({"comm_size": 2**63}, ""),
        ({"comm_size": None}, "'comm_size' should be a text or a number"),
        ({"x": {"kind": "int32", "value": 2**31}}, ""),
        ({NODE_INPUTS: "x"}, "'node.inputs' should have three texts"),
        ({NODE_INPUTS: ["a", "b", "c"]}, "should have three texts"),
        ({NODE_INPUTS: {"value": ["a", "b", 5]}}, ""),
        ({"\ud800": 1}, ""),
        (None, "should be an object"),
    ],
)
def test_the_bad_node_is_named(entries, message):
    node = None if entries is None else {**GOOD, **entries}
    text = nodes({"Id": 0, "NodeType": 4}, node).replace("1e+301", "1e999")
    refused(text, r"workload_graph\[1\].*" + message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *table_of(__file__, "bad_files"),
        (one().replace('"Id": 1', '"Id": 1, "runtime": NaN'), "NaN is not a number of JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("{" * 100_000, ""),
        ('{"workload_graph": ' + "[" * 100_000, ""),
        ('{"workload_graph": [' + "9" * 5000 + "]}", ""),
        ('{"workload_graph": [{"Id": ' + "9" * 5000 + ', "NodeType": 4}]}', ""),
        # Bytes that are no text
        ("\udcff", ""),
        ('{"\udcff": 1}', ": not a Chakra trace"),
    ],
)
def test_bad_files(text, message):
    refused(text, message)


def refused(text: str, message: str) -> None:
    """Make sure that a text is no trace, in one short line that names the file."""
    with pytest.raises(FormatError, match=r"^t\.0\.json(?=:).*" + message) as error:
        parse_json_trace(text.encode("utf-8", "surrogateescape"), "t.0.json")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)

KEYS = (
    *("Id", "Name", "NodeType", "ctrlDeps", "data_deps", "runtime", "is_cpu_op", "comm_type"),
    *("comm_size", "pg_name", "involve_dims", "inputs", "duration_seconds", NODE_INPUTS, "x"),
)


@given(st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=3))
@settings(max_examples=cases(150))
def test_any_values_are_a_trace_or_an_error(entries):
    try:
        trace = read(one(**entries))
    except FormatError as failure:
        lines = str(failure).splitlines()
    else:
        lines = [""]
        assert read(json_text(trace)).equals(trace)
    assert len(lines) == 1


class TestReferenceFiles:
    """Files of Chakra; skipped without the development data."""

    def test_small_trace(self, development_table):
        trace = read_trace(development_table("astra/chakra_samples/small_chakra.0.json"))
        assert trace.identifiers.tolist() == [216, 217, 430, 432, 433, 435, 541]
        assert trace.metadata["ngpus"] == 8
        assert read(json_text(trace)).equals(trace)

    def test_gzipped_trace_and_its_protobuf_form(self, development_table):
        trace = read_trace(development_table("astra/chakra_samples/chakra.0.json.gz"))
        path = development_table("astra/chakra_samples/pytorch_converted.0.et")
        other = read_trace(path)
        assert trace.nodes == other.nodes == 3664
        assert len(trace.data_parents.values) == len(other.data_parents.values) == 181_878
        for column in ("identifiers", "kinds", "duration", "on_cpu"):
            assert (getattr(trace, column) == getattr(other, column)).all(), column
        assert parse_trace(serialise(trace), path).equals(trace)

    def test_jsonizer_of_a_converted_pytorch_trace(self, development_table):
        path = development_table("astra/chakra_samples/pytorch_converted.0.et")
        content = path.read_bytes()
        trace = parse_trace(content, path)
        assert read(jsonizer_text(content)).equals(trace)
        assert read(json_text(trace)).equals(trace)
