"""Chakra execution traces: bytes of the schema, round trips, sets of ranks, and bad files.

Bytes marked RUN are of files that ASTRA-sim af2492b ran (feeder_v3).
"""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import DataError, FormatError
from perfmodel.formats.chakra.files import (
    parse_trace,
    read_trace,
    read_traces,
    write_traces,
)
from perfmodel.formats.chakra.messages import frames, serialise
from perfmodel.formats.chakra.schema import (
    IO_INFO,
    NODE_INPUTS,
    NODE_OUTPUTS,
    SCALAR_KINDS,
    Attribute,
    attribute_message,
    messages,
)
from perfmodel.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    EVERYBODY,
    METADATA,
    SEND,
    Trace,
    TraceBuilder,
    TraceSet,
)

# A chain of four nodes with every integer attribute as uint64, and one CPU operation (RUN).
TYPES_FILE = (
    b"&\n\x050.0.4\x12\x1d\n\x06schema\xea\x01\x121.0.2-chakra.0.0.4"
    b"\x1c\x08\x03\x12\x04comp\x18\x048dR\x0e\n\tis_cpu_op\xd8\x01\x00"
    b";\x08\x04\x12\x02C4\x18\x07*\x01\x03R\r\n\tcomm_typeh\x00R\x0f\n\tcomm_sizeh\x80\x80@"
    b"R\x0e\n\tis_cpu_op\xd8\x01\x00"
    b"\x1e\x08\t\x12\x03cpu\x18\x04*\x01\x0382R\x0e\n\tis_cpu_op\xd8\x01\x01"
    b"\x0e\x08\n\x12\x03gpu\x18\x04*\x01\x038<"
)
# Communication of DLRM's layer 0, as the text converter of Chakra wrote it.
NAME = b"COMM_COLL_NODE_layer_64_1_ALLTOALL"
CONVERTED_NODE = (
    b"\x08\x01\x12" + bytes([len(NAME)]) + NAME + b"\x18\x07\x2a\x01\x00"
    b"\x52\x0d\x0a\x09comm_type\x48\x06\x52\x0f\x0a\x09comm_size\x48\x80\x80\x06"
)
EMPTY_METADATA = b"\x00"


def framed(*parts: bytes) -> bytes:
    """A file with an empty metadata message and these nodes (shorter than 128 B each)."""
    return EMPTY_METADATA + b"".join(bytes([len(part)]) + part for part in parts)


def node_with(*attributes, **fields) -> bytes:
    """The bytes of a Node message."""
    node = messages().node(**{"id": 1, "name": "n", "type": COMPUTE, **fields})
    node.attr.extend(attribute_message(name, value) for name, value in attributes)
    return node.SerializeToString()


def small_trace():
    """Every kind of column once."""
    builder = TraceBuilder()
    first = builder.add("compute", COMPUTE, num_ops=2**40, tensor_size=3000, on_cpu=1)
    second = builder.add(
        "reduce",
        COLLECTIVE,
        collective=TRACED.index("all_reduce"),
        communication_size=0,
        priority=3,
        group="tp",
        data=[first],
        inputs=[("weights", 2**40)],
    )
    builder.add(
        "send",
        SEND,
        source=0,
        destination=1,
        tag=0,
        communication_size=64,
        involved=[True, False],
        control=[first, second],
        duration=1.5e-6,
        start_time=2.0,
        outputs=[("weights", 2**40), ("y", 0)],
        other={"stream": 7, "lanes": Attribute("sint32_list", (-1, 2), "why")},
    )
    return builder.build({"schema": "1.0.2-chakra.0.0.4"}, version="0.0.4")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
# What each kind of the schema can hold; float has to be exact in 32 bits.
SCALAR_VALUES = {
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": TEXT,
    "bytes": st.binary(max_size=4),
}
for scalar in SCALAR_KINDS:
    bits = 64 if scalar.endswith("64") else 32
    least = 0 if scalar.startswith(("u", "fixed")) else -(2 ** (bits - 1))
    SCALAR_VALUES.setdefault(scalar, st.integers(least, least + 2**bits - 1))
PLAIN = st.one_of(SCALAR_VALUES[kind] for kind in ("double", "bool", "string", "int64"))
TYPED = st.one_of(
    [
        st.builds(Attribute, st.just(kind), values, TEXT.filter(bool))
        for kind, values in SCALAR_VALUES.items()
    ]
    + [
        st.builds(Attribute, st.just(f"{kind}_list"), st.lists(values, max_size=3).map(tuple))
        for kind, values in SCALAR_VALUES.items()
    ]
    + [st.just(Attribute("", None))]
)
ATTRIBUTES = st.dictionaries(TEXT.map("x{}".format), PLAIN | TYPED, max_size=2)
SIZES = st.integers(ABSENT, 2**63 - 1)
RANKS = st.integers(ABSENT, 2**31 - 1)
TIMES = st.one_of(
    st.integers(0, 10**12).map(lambda micros: micros / 1e6),
    st.floats(0, 1e9),
    st.sampled_from([0.0, 5e-324, 4.9e-7, 5e-7]),
)
TENSORS = st.lists(st.tuples(TEXT, st.integers(0, 2**63 - 1)), max_size=2)


@st.composite
def traces(draw):
    """A trace of up to six nodes."""
    builder = TraceBuilder()
    identifiers = draw(st.lists(st.integers(0, 2**63 - 1), max_size=6, unique=True))
    parents = st.lists(st.sampled_from(identifiers or [0]), max_size=3)
    for identifier in identifiers:
        other = dict(draw(ATTRIBUTES))
        if draw(st.booleans()):
            other[NODE_INPUTS] = Attribute(IO_INFO, (draw(TEXT), "", draw(TEXT)))
        builder.add(
            draw(TEXT),
            draw(st.integers(1, 7)),
            identifier=identifier,
            group=draw(TEXT),
            involved=draw(st.none() | st.lists(st.booleans(), max_size=3)),
            data=draw(parents),
            control=draw(parents),
            inputs=draw(TENSORS),
            outputs=draw(TENSORS),
            other=other,
            start_time=draw(TIMES),
            duration=draw(TIMES),
            num_ops=draw(SIZES),
            tensor_size=draw(SIZES),
            communication_size=draw(SIZES),
            collective=draw(st.integers(ABSENT, 9)),
            source=draw(RANKS),
            destination=draw(RANKS),
            tag=draw(RANKS),
            priority=draw(RANKS),
            on_cpu=draw(st.integers(ABSENT, 1)),
        )
    printable = st.text("0123456789.-chakra", max_size=8)
    return builder.build(draw(ATTRIBUTES), draw(printable))


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
        (_, _), (_, content) = frames(serialise(builder.build()))
        (attribute,) = messages().node.FromString(content).attr
        assert (attribute.name, attribute.WhichOneof("value")) == (name, kind)
        assert getattr(attribute, kind) == value

    def test_tensors_are_name_and_size_in_turn_and_both_lists_are_stated(self):
        """astra-sim workload/LocalMemUsageTracker.cc throws where one of them is missing."""
        builder = TraceBuilder()
        builder.add("a", COMPUTE, inputs=[("x", 8), ("w", 4)])
        builder.add("b", COMPUTE)
        _, *nodes = frames(serialise(builder.build()))
        first, second = (messages().node.FromString(content) for _, content in nodes)
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
        (_, _), (_, part) = frames(content)
        node = messages().node.FromString(part)
        assert node.duration_micros == micros
        assert [a.name for a in node.attr] == (["duration_seconds"] if exact else [])
        assert parse_trace(content, "t.et").duration[0] == seconds


class TestRoundTrip:
    def test_small_trace(self, tmp_path):
        trace = small_trace()
        write_traces(TraceSet((trace,)), tmp_path / "t")
        again = read_trace(tmp_path / "t.0.et")
        assert again.equals(trace)
        assert not again.equals(replace(trace, duration=trace.duration + 1e-9))

    @given(traces())
    @settings(max_examples=80)
    def test_any_trace(self, trace):
        content = serialise(trace)
        again = parse_trace(content, "t.et")
        assert again.equals(trace)
        assert serialise(again) == content

    def test_every_kind_of_integer_is_a_whole_number(self):
        for kind in SCALAR_KINDS[:13]:  # all but string and bytes
            one = True if kind == "bool" else 1.0 if kind in ("double", "float") else 1
            part = node_with(("comm_size", Attribute(kind, one)))
            assert parse_trace(framed(part), "t.et").communication_size.tolist() == [1]

    def test_both_names_of_the_involved_dimensions(self):
        flags = Attribute("bool_list", (True, False))
        for names in (["involve_dims"], ["involved_dim"], ["involve_dims", "involved_dim"]):
            trace = parse_trace(framed(node_with(*((name, flags) for name in names))), "t.et")
            assert trace.involved_dimensions == ((True, False),)
            assert trace.involved.tolist() == [0]

    def test_sizes_with_decimals_as_stage_writes_them(self):
        texts = Attribute("string_list", ("x", "2097152000.0", "y", "7.5"))
        trace = parse_trace(framed(node_with(("inputs", texts))), "t.et")
        assert trace.tensors == (("x", 2097152000), ("y", 7))

    def test_fields_of_pytorch_traces_and_unusual_attributes_are_kept(self):
        info = messages().io_info(values="[1]", shapes="[[]]", types="['Int']")
        part = node_with(("tid", 5), ("pid", Attribute("uint64", 2**64 - 1)), outputs=info)
        trace = parse_trace(framed(part), "t.et")
        assert trace.other == {
            0: {
                "tid": 5,
                "pid": Attribute("uint64", 2**64 - 1),
                NODE_OUTPUTS: Attribute(IO_INFO, ("[1]", "[[]]", "['Int']")),
            }
        }
        assert serialise(trace) == framed(part)

    def test_gzipped_files(self, tmp_path):
        path = tmp_path / "t.0.et"
        path.write_bytes(gzip.compress(TYPES_FILE[:60]) + gzip.compress(TYPES_FILE[60:]))
        assert read_trace(path).equals(parse_trace(TYPES_FILE, path))

    def test_parents_packed_or_one_by_one(self):
        """Both are protobuf; proto3 writers pack."""
        one_by_one = b"\x08\x02\x12\x01b\x18\x04\x28\x01\x28\x01"
        trace = parse_trace(framed(node_with(), one_by_one), "t.et")
        assert trace.data_parents[1].tolist() == [1, 1]


def trace_or_error(content: bytes) -> Trace | None:
    """The trace, or None where the error is one line."""
    try:
        return parse_trace(content, "t.et")
    except FormatError as failure:
        lines = str(failure).splitlines()
    assert len(lines) == 1
    return None


def with_version(version: bytes) -> bytes:
    return bytes([len(version) + 2]) + b"\x0a" + bytes([len(version)]) + version


class TestBadFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "empty"),
            (framed(node_with())[:-1], r"byte 1: a message of 7 bytes, but 6 are left"),
            (EMPTY_METADATA + b"\xff\xff\xff\xff\x0f", "byte 1: a message of 4294967295 bytes"),
            (EMPTY_METADATA + b"\xff\xff\xff\xff\xff\x01", "byte 1: the length"),
            (EMPTY_METADATA + b"\x80", "byte 1: the length"),
            (framed(node_with(), b"", node_with(id=2)), "byte 9: a node without content"),
            (framed(b"\x08\x01\x12\x01\xff\x18\x04"), "message 1 at byte 1 is no Node"),
            (framed(b"\x08\x01\x18\x00"), r"byte 1: node 1 \(\): type 0"),
            (framed(node_with(type=8)), "type 8; known: 1 to 7"),
            (framed(node_with(id=2**63)), "below 2\\^63"),
            (
                framed(node_with(data_deps=[2**63])),
                "node 1 \\(n\\): waits for id 9223372036854775808",
            ),
            (framed(node_with(duration_micros=2**63)), "below 2\\^63"),
            (framed(node_with(), node_with(name="other")), "byte 9: a second node with the id 1"),
            (framed(node_with(("comm_type", 10))), "comm_type 10 should be 0 to 9"),
            (framed(node_with(("comm_size", -1))), "comm_size -1 should be"),
            (framed(node_with(("comm_src", 2**31))), "comm_src 2147483648 should be"),
            (framed(node_with(("is_cpu_op", 2))), "is_cpu_op 2 should be 0 to 1"),
            (framed(node_with(("num_ops", 0.5))), "num_ops should be a whole number, but is 0.5"),
            (framed(node_with(("num_ops", float("nan")))), "should be a whole number"),
            (framed(node_with(("num_ops", "5"))), "should be a whole number, but is str"),
            (framed(node_with(("pg_name", 5))), "'pg_name' has the kind 'int64_val'"),
            (framed(node_with(("tag", 1.0), ("x", float("inf")))), "'x' is not finite"),
            (framed(node_with(("num_ops", 1), ("num_ops", 1))), "'num_ops' twice"),
            (framed(node_with(("x", 1), ("x", 1))), "'x' twice"),
            (framed(node_with(("duration_seconds", float("nan")))), "finite"),
            (framed(node_with(("duration_seconds", 3.0))), "does not agree with duration_micros"),
            (framed(node_with(("inputs", Attribute("string_list", ("x",))))), "in turn"),
            (framed(node_with(("inputs", Attribute("string_list", ("x", "-1"))))), "size '-1'"),
            (framed(node_with(("inputs", Attribute("string_list", ("x", "nan"))))), "size 'nan'"),
            (framed(node_with() + b"\x58\x01"), "field 11 is not"),  # Node.storage, never released
            (framed(b"\x0a\x01\x31\x12\x01n\x18\x04"), "field 1 is not"),  # the id as a text
            (framed(node_with() + b"\x52\x02\x48"), "message 1 at byte 1 is no Node"),
            (framed(node_with() + b"\x52\x02\x18\x01"), "field 3 is not"),  # a double as varint
            (b"\x04\x08\x00\x12\x00", "Chakra 0.0.1 to 0.0.3"),  # a node first
            (with_version(b"\n\x06schema"), "Chakra 0.0.3"),  # attr was field 1
            (b'{"workload_graph": []}' * 9, "byte 0: the|message of|is no GlobalMetadata"),
        ],
    )
    def test_one_line_that_names_file_and_place(self, content, message):
        with pytest.raises(FormatError, match=message) as error:
            parse_trace(content, "dir/t.0.et")
        assert str(error.value).startswith("dir/t.0.et: ")
        assert "\n" not in str(error.value)

    def test_a_gzip_bomb_is_not_unpacked(self, tmp_path):
        path = tmp_path / "t.0.et"
        path.write_bytes(gzip.compress(bytes(2**24 + 2**20)))
        with pytest.raises(FormatError, match="unpacks to more than 16777216 bytes"):
            read_trace(path)

    @pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:12] + b"\xff" * 9])
    def test_damaged_gzip(self, tmp_path, damage):
        path = tmp_path / "t.0.et"
        path.write_bytes(damage(gzip.compress(TYPES_FILE)))
        with pytest.raises(FormatError, match="gzip"):
            read_trace(path)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(FormatError, match="cannot read"):
            read_trace(tmp_path / "t.0.et")

    @given(st.data())
    @settings(max_examples=150)
    def test_mutated_bytes_are_a_trace_or_an_error(self, data):
        content = bytearray(serialise(small_trace()))
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(content) - 1))
            kind = data.draw(st.sampled_from(["set", "delete", "insert"]))
            if kind == "set":
                content[place] = data.draw(st.integers(0, 255))
            elif kind == "delete" and len(content) > 1:
                del content[place]
            else:
                content[place:place] = data.draw(st.binary(max_size=3))
        if (trace := trace_or_error(bytes(content))) is not None:
            assert parse_trace(serialise(trace), "t.et").equals(trace)

    @given(st.binary(max_size=60))
    def test_random_nodes_are_a_trace_or_an_error(self, content):
        if (trace := trace_or_error(framed(content))) is not None:
            assert trace.nodes == 1


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


class TestSets:
    def pair(self):
        trace = small_trace()
        return TraceSet((trace, trace), {"tp": (1, 0)})

    @pytest.mark.parametrize("suffix", [".et", ".json"])
    def test_write_and_read(self, tmp_path, suffix):
        traces = self.pair()
        names = [path.name for path in write_traces(traces, tmp_path / "w", suffix)]
        assert names == [f"w.0{suffix}", f"w.1{suffix}", "w.groups.json"]
        again = read_traces(tmp_path / "w")
        assert again.equals(traces)
        assert again.traces[0] is again.traces[1]  # the files are identical
        assert read_traces(tmp_path).equals(traces)
        assert again.members(0, 1) == (1, 0)

    def test_the_order_is_that_of_the_ranks(self, tmp_path):
        different = []
        for rank in range(11):
            builder = TraceBuilder()
            builder.add(f"rank {rank}", COMPUTE)
            different.append(builder.build())
        paths = write_traces(TraceSet(tuple(different)), tmp_path / "w")
        for source in (tmp_path / "w", sorted(paths, key=str)):  # "w.10.et" before "w.2.et"
            names = [trace.names[0] for trace in read_traces(source).traces]
            assert names == [f"rank {rank}" for rank in range(11)]

    def test_one_file_is_one_rank(self, tmp_path):
        write_traces(self.pair(), tmp_path / "w")
        assert read_traces(tmp_path / "w.1.et").devices == 1

    def test_files_in_the_order_given(self, tmp_path):
        (tmp_path / "b.et").write_bytes(serialise(small_trace()))
        (tmp_path / "a.et").write_bytes(TYPES_FILE)
        traces = read_traces([tmp_path / "b.et", tmp_path / "a.et"]).traces
        assert [trace.nodes for trace in traces] == [3, 4]

    def test_a_missing_rank_is_named(self, tmp_path):
        write_traces(TraceSet((small_trace(),) * 4), tmp_path / "w")
        (tmp_path / "w.2.et").unlink()
        with pytest.raises(FormatError, match="the file of rank 2 is missing"):
            read_traces(tmp_path / "w")

    def test_two_files_of_one_rank(self, tmp_path):
        write_traces(TraceSet((small_trace(),)), tmp_path / "w")
        write_traces(TraceSet((small_trace(),)), tmp_path / "w", ".json")
        with pytest.raises(FormatError, match="two files of rank 0"):
            read_traces(tmp_path / "w")

    def test_two_prefixes_in_a_folder(self, tmp_path):
        write_traces(self.pair(), tmp_path / "v")
        write_traces(self.pair(), tmp_path / "w")
        with pytest.raises(FormatError, match="one prefix; found: v, w"):
            read_traces(tmp_path)

    @pytest.mark.parametrize("source", ["nothing", "folder/w", "."])
    def test_no_files(self, tmp_path, source):
        with pytest.raises(FormatError):
            read_traces(tmp_path / source)
        with pytest.raises(FormatError, match="no trace files"):
            read_traces([])

    def test_a_group_beyond_the_ranks(self, tmp_path):
        write_traces(TraceSet((small_trace(),)), tmp_path / "w")
        with pytest.raises(FormatError, match="rank 1, but the ranks are 0 to 0"):
            read_traces(tmp_path / "w", {"tp": [0, 1]})
        with pytest.raises(FormatError, match="rank 1, but the ranks are 0 to 0"):
            write_traces(TraceSet((small_trace(),), {"tp": (0, 1)}), tmp_path / "v")

    def test_all_or_nothing(self, tmp_path):
        good = small_trace()
        bad = replace(good, duration=np.full(3, np.inf))
        with pytest.raises(FormatError):
            write_traces(TraceSet((good, bad)), tmp_path / "w")
        assert not list(tmp_path.iterdir())
        with pytest.raises(DataError):
            write_traces(self.pair(), tmp_path / "missing" / "w")

    def metadata_trace(self, listed, group="1"):
        builder = TraceBuilder()
        info = Attribute(IO_INFO, (listed, "[[]]", "['String']"))
        builder.add("## process_group:init ##", METADATA, other={NODE_INPUTS: info})
        builder.add("r", COLLECTIVE, collective=0, communication_size=8, group=group)
        return builder.build()

    def write_metadata(self, folder, *listed, group="1"):
        traces = tuple(self.metadata_trace(text, group) for text in listed)
        write_traces(TraceSet(traces), folder / "w")

    def test_process_groups_of_pytorch(self, tmp_path):
        entries = [{"pg_name": "0", "ranks": []}, {"pg_name": "1", "ranks": [1, 0], "size": 2}]
        text = "['" + json.dumps(entries) + "']"
        self.write_metadata(tmp_path, text, text)
        traces = read_traces(tmp_path / "w")
        assert traces.groups == {"0": (0, 1), "1": (1, 0)}
        assert traces.members(0, 1) == (1, 0)
        assert read_traces(tmp_path / "w", {"1": [0]}).members(0, 1) == (0,)

    def test_group_0_is_everybody(self, tmp_path):
        self.write_metadata(tmp_path, "[]", "[]", group="0")
        assert read_traces(tmp_path / "w").groups == {"0": (0, 1)}

    @pytest.mark.parametrize(
        "listed",
        [
            '[\'[{"pg_name": "1", "ranks": [0, 0]}]\']',
            '[\'[{"pg_name": "1", "ranks": [2]}]\']',
            '[\'[{"pg_name": "1"}]\']',
            '[\'[{"pg_name": "1", "ra\']',
            "['" + "[" * 100_000 + '"pg_name"\']',
            '[\'[{"pg_name": "1", "ranks": 3}]\']',
        ],
    )
    def test_unreadable_process_groups(self, tmp_path, listed):
        self.write_metadata(tmp_path, listed, listed)
        with pytest.raises(FormatError, match=r"w.0.et: .*group"):
            read_traces(tmp_path / "w")

    def test_process_groups_that_differ_between_ranks(self, tmp_path):
        texts = (f'[\'[{{"pg_name": "1", "ranks": [{rank}]}}]\']' for rank in (0, 1))
        self.write_metadata(tmp_path, *texts)
        with pytest.raises(FormatError, match="process group '1' differs between files"):
            read_traces(tmp_path / "w")


def test_the_metadata_of_a_double_attribute_is_eight_bytes():
    """proto3: a oneof member is written even where it is 0."""
    assert serialise(TraceBuilder().build({"a": 0.0})) == b"\x0e\x12\x0c\n\x01a\x19" + struct.pack(
        "<d", 0.0
    )
