"""Bytes of written Chakra traces, and traces that no file can hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.chakra.files import (
    parse_trace,
    write_traces,
)
from perfmodel.workloads.formats.chakra.schema import (
    messages,
)
from perfmodel.workloads.formats.chakra.writing import serialise
from perfmodel.workloads.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    EVERYBODY,
    TraceBuilder,
    TraceSet,
)
from tests.workloads.formats.chakra.made import (
    CONVERTED_NODE,
    NAME,
    TYPES_FILE,
    framed,
    parts_of,
    small_trace,
)


class TestBytes:
    def test_the_uint64_file_that_astra_sim_ran(self):
        trace = parse_trace(TYPES_FILE, "types.0.et")
        assert trace.version == "0.0.4"
        assert trace.metadata == {"schema": "1.0.2-chakra.0.0.4"}
        assert trace.names == ("comp", "C4", "cpu", "gpu")
        assert trace.identifiers.tolist() == [3, 4, 9, 10]
        assert trace.kinds.tolist() == [COMPUTE, COLLECTIVE, COMPUTE, COMPUTE]
        assert trace.duration.tolist() == [1e-4, 0, 5e-5, 6e-5]
        assert trace.collective.tolist() == [ABSENT, 0, ABSENT, ABSENT]
        assert trace.communication_size.tolist() == [ABSENT, 2**20, ABSENT, ABSENT]
        assert trace.on_cpu.tolist() == [0, 0, 1, ABSENT]
        assert [trace.data_parents[i].tolist() for i in range(4)] == [[], [3], [3], [3]]
        assert trace.group.tolist() == [EVERYBODY] * 4
        assert not trace.other

    def test_kinds_are_written_as_the_feeder_of_mlcommons_reads_them(self):
        content = serialise(parse_trace(TYPES_FILE, "types.0.et"))
        assert content == TYPES_FILE.replace(b"typeh\x00", b"type\x48\x00").replace(
            b"sizeh\x80", b"size\x48\x80"
        )

    def test_a_converted_node_is_written_byte_for_byte(self):
        builder = TraceBuilder()
        builder.add(
            NAME.decode(),
            COLLECTIVE,
            identifier=1,
            data=[0],
            collective=TRACED.index("all_to_all"),
            communication_size=98304,
        )
        assert serialise(builder.build()) == framed(CONVERTED_NODE)

    @pytest.mark.parametrize(
        ("column", "value", "name", "kind"),
        [
            ("on_cpu", 0, "is_cpu_op", "bool_val"),
            ("num_ops", 5, "num_ops", "int64_val"),
            ("tensor_size", 5, "tensor_size", "uint64_val"),
            ("collective", 2, "comm_type", "int64_val"),
            ("communication_size", 5, "comm_size", "int64_val"),
            ("priority", 5, "comm_priority", "int32_val"),
            ("source", 5, "comm_src", "int32_val"),
            ("destination", 5, "comm_dst", "int32_val"),
            ("tag", 5, "comm_tag", "int32_val"),
        ],
    )
    def test_kind_of_each_integer_attribute(self, column, value, name, kind):
        """mlcommons/chakra 21585d8, src/feeder/et_feeder_node.cpp: other kinds read as 0."""
        builder = TraceBuilder()
        builder.add("n", COMPUTE, **{column: value})
        _, content = parts_of(serialise(builder.build()))
        (attribute,) = messages().node.FromString(content).attr
        assert (attribute.name, attribute.WhichOneof("value")) == (name, kind)
        assert getattr(attribute, kind) == value

    def test_tensors_are_name_and_size_in_turn_and_both_lists_are_stated(self):
        """astra-sim workload/LocalMemUsageTracker.cc throws where one of them is missing."""
        builder = TraceBuilder()
        builder.add("a", COMPUTE, inputs=[("x", 8), ("w", 4)])
        builder.add("b", COMPUTE)
        _, *nodes = parts_of(serialise(builder.build()))
        first, second = (messages().node.FromString(content) for content in nodes)
        assert [attribute.name for attribute in second.attr] == ["inputs", "outputs"]
        assert list(first.attr[0].string_list.values) == ["x", "8", "w", "4"]
        assert first.attr[1].WhichOneof("value") is None

    @pytest.mark.parametrize(
        ("seconds", "micros", "exact"),
        [
            (0.0, 0, False),
            (3e-6, 3, False),
            (1.4e-6, 1, True),
            (1.5e-6, 2, True),
            (2.5e-6, 3, True),  # half up, not to even
            (1e-9, 1, True),  # never down to 0
            (0.1, 100_000, False),
        ],
    )
    def test_durations_are_rounded_half_up_and_kept(self, seconds, micros, exact):
        builder = TraceBuilder()
        builder.add("n", COMPUTE, duration=seconds)
        content = serialise(builder.build())
        _, part = parts_of(content)
        node = messages().node.FromString(part)
        assert node.duration_micros == micros
        assert [a.name for a in node.attr] == (["duration_seconds"] if exact else [])
        assert parse_trace(content, "t.et").duration[0] == seconds


class TestBadTraces:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"duration": np.array([1.0, np.nan, 0])}, "time nan s at position 1"),
            ({"duration": np.array([1.0, -1, 0])}, "time -1.0 s at position 1"),
            ({"duration": np.array([1.0, 1e13, 0])}, "time 10000000000000.0 s"),
            ({"identifiers": np.array([1, 1, 2])}, "different and not negative"),
            ({"identifiers": np.array([1, -1, 2])}, "different and not negative"),
            ({"kinds": np.array([1, 0, 2], np.int8)}, "type 0 should be 1 to 7"),
            ({"collective": np.array([1, 10, 2], np.int8)}, "comm_type 10 should be -1 to 9"),
            ({"group": np.array([1, 0, 0], np.int32)}, "pg_name 1 should be -1 to 0"),
            ({"names": ("a", "b", "\ud800")}, "node 2"),
            ({"other": {1: {"x": object()}}}, "node 1"),
            ({"other": {1: {"x": float("nan")}}}, "'x' is not finite"),
            ({"metadata": {"x": float("inf")}}, "'x' is not finite"),
            ({"other": {1: {"comm_size": 5}}}, "'comm_size' has a column"),
            ({"metadata": {"x": 2**63}}, "metadata"),
        ],
    )
    def test_nothing_is_written(self, tmp_path, change, message):
        with pytest.raises(FormatError, match=message):
            write_traces(TraceSet((replace(small_trace(), **change),)), tmp_path / "t")
        assert not list(tmp_path.iterdir())
