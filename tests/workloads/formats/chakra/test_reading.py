"""Chakra files that no writer writes: odd wire formats, damage, graphs without an order."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.chakra.files import (
    parse_trace,
    read_trace,
)
from perfmodel.workloads.formats.chakra.schema import (
    Attribute,
)
from perfmodel.workloads.formats.chakra.writing import serialise
from perfmodel.workloads.trace import ABSENT, COMPUTE, TraceBuilder, TraceSet
from tests.amount import cases
from tests.workloads.formats.chakra.made import (
    EMPTY_METADATA,
    TYPES_FILE,
    framed,
    node_with,
    small_trace,
    trace_or_error,
    with_version,
)


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
    @settings(max_examples=cases(150))
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


ID, KIND = b"\x08\x01", b"\x18\x04"  # id 1, COMP
ALL_ONES = b"\xff" * 9 + b"\x01"  # 2^64 - 1


def attribute(content: bytes, name: bytes = b"x") -> bytes:
    """Field 10 of a node: an attribute with a name and this content."""
    content = b"\x0a" + bytes([len(name)]) + name + content
    return b"\x52" + bytes([len(content)]) + content


class TestWire:
    """What protobuf allows is read as protobuf says."""

    def test_a_field_given_twice_has_its_last_value(self):
        trace = parse_trace(framed(ID + KIND + b"\x08\x07\x12\x01a\x12\x01b"), "t.et")
        assert (trace.identifiers.tolist(), trace.names) == ([7], ("b",))

    def test_an_attribute_with_two_values_has_the_last(self):
        trace = parse_trace(framed(ID + KIND + attribute(b"\x48\x05\x48\x06")), "t.et")
        assert trace.other == {0: {"x": 6}}

    def test_parents_packed_and_one_by_one_in_one_node(self):
        parents = b"\x28\x03\x2a\x02\x04\x05\x28\x06"
        trace = parse_trace(framed(ID + KIND + parents), "t.et")
        assert trace.data_parents[0].tolist() == [3, 4, 5, 6]

    def test_numbers_longer_than_they_need_to_be(self):
        trace = parse_trace(framed(b"\x08\x81\x80\x00" + KIND), "t.et")
        assert trace.identifiers.tolist() == [1]

    def test_lengths_longer_than_they_need_to_be(self):
        trace = parse_trace(b"\x80\x00" + b"\x84\x80\x00" + ID + KIND, "t.et")
        assert trace.identifiers.tolist() == [1]

    def test_messages_in_pieces_are_merged(self):
        """Field 8, IOInfo, twice: values from the first, shapes from the second."""
        pieces = b"\x42\x03\x0a\x01v" + b"\x42\x03\x12\x01s"
        trace = parse_trace(framed(ID + KIND + pieces), "t.et")
        assert trace.other[0]["node.inputs"].value == ("v", "s", "")

    def test_a_file_without_nodes(self):
        trace = parse_trace(b"\0", "t.et")
        assert (trace.nodes, len(trace.parent_positions())) == (0, 0)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        # Numbers
        (b"\x08" + ALL_ONES + KIND, "id 18446744073709551615 should be below 2\\^63"),
        (ID + KIND + b"\x28" + ALL_ONES, r"node 1 \(\): waits for id 18446744073709551615"),
        (ID + KIND + b"\x22\x0a" + ALL_ONES, r"node 1 \(\): waits for id 18446744073709551615"),
        (ID + KIND + b"\x38" + ALL_ONES, "duration_micros should be below 2\\^63"),
        (ID + b"\x18" + ALL_ONES, r"node 1 \(\): type -1; known: 1 to 7"),
        (b"\x08" + b"\xff" * 11 + KIND, "no Node"),  # a number of eleven bytes
        (ID + KIND + b"\x2a\x02\x80\x80", "no Node"),  # packed numbers that do not end
        # Wire types
        (ID + KIND + b"\x0e\x01", "no Node"),  # type 6
        (ID + KIND + b"\x0f\x01", "no Node"),  # type 7
        (ID + KIND + b"\x00\x01", "no Node"),  # field 0
        (ID + KIND + b"\x09" + bytes(8), "field 1 is not, or not so,"),  # id as 64 bits
        (ID + KIND + b"\x1d" + bytes(4), "field 3 is not, or not so,"),  # type as 32 bits
        (ID + KIND + b"\x2d" + bytes(4), "field 5 is not, or not so,"),  # parents as 32 bits
        (ID + KIND + b"\xf8\xff\xff\xff\x0f\x01", "field 536870911 is not"),
        # Groups
        (ID + KIND + b"\x7b\x08\x01\x7c", "field 15 is not"),
        (ID + KIND + b"\x7b\x08\x01", "no Node"),  # never closed
        (ID + KIND + b"\x7c", "no Node"),  # never opened
        (ID + KIND + b"\x7b\x08\x01\x74", "no Node"),  # closed as another
        (ID + KIND + b"\x53\x54", "field 10 is not"),  # an attribute as a group
        # Lengths and text
        (ID + KIND + b"\x52\xff\xff\xff\xff\x07", "no Node"),  # 2 GiB
        (ID + KIND + b"\x12" + ALL_ONES, "no Node"),
        (ID + KIND + attribute(b"", b"\xff"), "no Node"),  # not UTF-8
        (ID + KIND + attribute(b"\xea\x01\x01\xff"), "no Node"),
        (ID + KIND + attribute(b"\x48\x01") * 2, "attribute 'x' twice"),
        (ID + KIND + attribute(b"\x48\x01", b"node.inputs") + b"\x42\x00", "'node.inputs' twice"),
    ],
)
def test_what_protobuf_does_not_allow_is_refused(node, message):
    with pytest.raises(FormatError, match=message) as error:
        parse_trace(framed(b"\x08\x00" + KIND, node), "dir/t.0.et")
    text = str(error.value)
    assert text.startswith("dir/t.0.et: ")
    assert "byte 6" in text  # after the metadata and a good node
    assert text.isprintable()


@pytest.mark.parametrize("depth", [50, 120, 10_000])
def test_groups_within_groups(depth):
    node = ID + KIND + b"\x7b" * depth + b"\x7c" * depth
    length = bytes([len(node) & 127 | 128, len(node) >> 7])
    assert len(node) >> 7 < 128 or depth == 10_000
    if depth == 10_000:
        length = bytes([len(node) & 127 | 128, len(node) >> 7 & 127 | 128, len(node) >> 14])
    with pytest.raises(FormatError, match=r"t\.et: .*byte 1"):
        parse_trace(b"\0" + length + node, "t.et")


def test_names_are_shown_in_one_line():
    node = ID + b"\x18\x00" + b"\x12\x0ba\nb\rc\x1b[31md" + b"\xc2"
    with pytest.raises(FormatError, match="no Node"):
        parse_trace(framed(node), "t.et")
    with pytest.raises(FormatError, match=r"node 1 \(a\?b\?c\?\[31md\?\): type 0"):
        parse_trace(framed(ID + b"\x12\x0ca\nb\rc\x1b[31md\x7f" + b"\x18\x00"), "t.et")


@pytest.mark.parametrize(
    "content",
    [b"", gzip.compress(b"", mtime=0), b"\x1f\x8b", b"\x1f\x8b\x08", b"\x80", b"\xff" * 4],
)
def test_files_of_almost_nothing(content, tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"t\.0\.et: ") as error:
        read_trace(path)
    assert str(error.value).isprintable()


class TestGraphs:
    """Any ids are a trace; what is not in an order cannot be run, and that is said."""

    def simulated(self, content: bytes):
        from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
        from perfmodel.workloads.simulation.run import simulate
        from perfmodel.workloads.twins.astra.costs import AstraCosts

        costs = AstraCosts(
            AstraNetwork(("Ring",), (2,), (50.0,), (500.0,)), uniform_system(["ring"])
        )
        return simulate(TraceSet((parse_trace(content, "t.et"),) * 2), costs)

    def node(self, identifier: int, *parents: int) -> bytes:
        packed = bytes([len(parents)]) + bytes(parents)
        return bytes([8, identifier]) + KIND + b"\x12\x01" + b"n" + b"\x38\x05\x2a" + packed

    def test_an_order_that_is_not_that_of_the_file(self):
        result = self.simulated(framed(self.node(2, 1), self.node(1), self.node(9, 2, 2)))
        assert result.ticks("wall_time") == (15_000, 15_000)  # 3 times 5 µs

    @pytest.mark.parametrize("nodes", [((1, 1),), ((1, 2), (2, 1)), ((1, 3), (2, 1), (3, 2), (4,))])
    def test_a_circle(self, nodes):
        content = framed(*(self.node(*node) for node in nodes))
        assert parse_trace(content, "t.et").nodes == len(nodes)
        with pytest.raises(FormatError, match=r"node 1 \(n\)") as error:
            self.simulated(content)
        assert str(error.value).isprintable()

    def test_a_parent_that_is_not_there(self):
        content = framed(self.node(1, 7))
        with pytest.raises(FormatError, match=r"node 1 \(n\) waits for node 7, which is not in"):
            self.simulated(content)


def test_names_of_all_readers_errors_cannot_break_a_line():
    """Even where a name of a node reaches an error elsewhere: `Trace.parent_positions`."""
    builder = TraceBuilder()
    builder.add("a\nb\x1b[2J", COMPUTE, data=[5])
    with pytest.raises(FormatError) as error:
        builder.build().parent_positions()
    assert str(error.value) == ("node 0 (a?b?[2J) waits for node 5, which is not in the trace")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (((), ()), (0, 0)),
        (((b"inputs", b"outputs"), (b"inputs", b"outputs")), (ABSENT, ABSENT)),
        (((b"inputs",), (b"inputs", b"outputs")), (ABSENT, 0)),
        (((b"inputs", b"outputs"), (b"inputs",)), (ABSENT, 1)),
    ],
)
def test_nodes_without_lists_of_tensors_are_known(names, found):
    """An attribute that lists nothing is one: `track-local-mem` asks whether it is there."""
    nodes = [
        bytes([0x08, number]) + KIND + b"".join(attribute(b"", name) for name in present)
        for number, present in enumerate(names)
    ]
    assert parse_trace(framed(*nodes), "t.0.et").unlisted == found
