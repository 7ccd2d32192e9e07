"""Chakra files that no writer writes: odd wire formats, absurd numbers, graphs without an order.

Bytes are typed by hand from protobuf's encoding (protobuf.dev/programming-guides/encoding): a
tag is ``field << 3 | wire type`` with types 0 varint, 1 64 bits, 2 length, 3 and 4 group, 5 32
bits. Fields of Node: 1 id, 2 name, 3 type, 4 and 5 parents, 7 duration, 8 inputs, 10 attr.
"""

from __future__ import annotations

import gzip
import json

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.formats.chakra.files import parse_trace, read_trace
from perfmodel.formats.chakra.json import parse_json_trace
from perfmodel.trace import COMPUTE, TraceBuilder, TraceSet

ID, KIND = b"\x08\x01", b"\x18\x04"  # id 1, COMP
ALL_ONES = b"\xff" * 9 + b"\x01"  # 2^64 - 1


def file_of(*nodes: bytes) -> bytes:
    """A file with an empty metadata message and these nodes (shorter than 128 B each)."""
    assert all(len(node) < 128 for node in nodes)
    return b"\0" + b"".join(bytes([len(node)]) + node for node in nodes)


def attribute(content: bytes, name: bytes = b"x") -> bytes:
    """Field 10 of a node: an attribute with a name and this content."""
    content = b"\x0a" + bytes([len(name)]) + name + content
    return b"\x52" + bytes([len(content)]) + content


class TestWire:
    """What protobuf allows is read as protobuf says."""

    def test_a_field_given_twice_has_its_last_value(self):
        trace = parse_trace(file_of(ID + KIND + b"\x08\x07\x12\x01a\x12\x01b"), "t.et")
        assert (trace.identifiers.tolist(), trace.names) == ([7], ("b",))

    def test_an_attribute_with_two_values_has_the_last(self):
        trace = parse_trace(file_of(ID + KIND + attribute(b"\x48\x05\x48\x06")), "t.et")
        assert trace.other == {0: {"x": 6}}

    def test_parents_packed_and_one_by_one_in_one_node(self):
        parents = b"\x28\x03\x2a\x02\x04\x05\x28\x06"
        trace = parse_trace(file_of(ID + KIND + parents), "t.et")
        assert trace.data_parents[0].tolist() == [3, 4, 5, 6]

    def test_numbers_longer_than_they_need_to_be(self):
        trace = parse_trace(file_of(b"\x08\x81\x80\x00" + KIND), "t.et")
        assert trace.identifiers.tolist() == [1]

    def test_lengths_longer_than_they_need_to_be(self):
        trace = parse_trace(b"\x80\x00" + b"\x84\x80\x00" + ID + KIND, "t.et")
        assert trace.identifiers.tolist() == [1]

    def test_messages_in_pieces_are_merged(self):
        """Field 8, IOInfo, twice: values from the first, shapes from the second."""
        pieces = b"\x42\x03\x0a\x01v" + b"\x42\x03\x12\x01s"
        trace = parse_trace(file_of(ID + KIND + pieces), "t.et")
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
        parse_trace(file_of(b"\x08\x00" + KIND, node), "dir/t.0.et")
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
        parse_trace(file_of(node), "t.et")
    with pytest.raises(FormatError, match=r"node 1 \(a\?b\?c\?\[31md\?\): type 0"):
        parse_trace(file_of(ID + b"\x12\x0ca\nb\rc\x1b[31md\x7f" + b"\x18\x00"), "t.et")


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
        from perfmodel.parity.astra.collective import AstraNetwork, uniform_system
        from perfmodel.parity.astra.costs import AstraCosts
        from perfmodel.simulation.run import simulate

        costs = AstraCosts(
            AstraNetwork(("Ring",), (2,), (50.0,), (500.0,)), uniform_system(["ring"])
        )
        return simulate(TraceSet((parse_trace(content, "t.et"),) * 2), costs)

    def node(self, identifier: int, *parents: int) -> bytes:
        packed = bytes([len(parents)]) + bytes(parents)
        return bytes([8, identifier]) + KIND + b"\x12\x01" + b"n" + b"\x38\x05\x2a" + packed

    def test_an_order_that_is_not_that_of_the_file(self):
        result = self.simulated(file_of(self.node(2, 1), self.node(1), self.node(9, 2, 2)))
        assert result.ticks("wall_time") == (15_000, 15_000)  # 3 times 5 µs

    @pytest.mark.parametrize("nodes", [((1, 1),), ((1, 2), (2, 1)), ((1, 3), (2, 1), (3, 2), (4,))])
    def test_a_circle(self, nodes):
        content = file_of(*(self.node(*node) for node in nodes))
        assert parse_trace(content, "t.et").nodes == len(nodes)
        with pytest.raises(FormatError, match=r"node 1 \(n\)") as error:
            self.simulated(content)
        assert str(error.value).isprintable()

    def test_a_parent_that_is_not_there(self):
        content = file_of(self.node(1, 7))
        with pytest.raises(FormatError, match=r"node 1 \(n\) waits for node 7, which is not in"):
            self.simulated(content)


def json_file(*nodes, **head) -> bytes:
    return json.dumps({**head, "workload_graph": list(nodes)}).encode()


GOOD = {"Id": 1, "NodeType": 4}


class TestJson:
    @pytest.mark.parametrize(
        ("node", "message"),
        [
            ({**GOOD, "Id": 1.0}, "'Id' should be a whole number"),
            ({**GOOD, "data_deps": [2**64]}, ""),
            ({**GOOD, "data_deps": [[1]]}, "'data_deps' should be a whole number"),
            ({**GOOD, "data_deps": {"1": 1}}, "'data_deps' should be a list of ids"),
            ({**GOOD, "Name": None}, "'Name' should be a text"),
            ({**GOOD, "x": {"kind": ["int64"], "value": 1}}, "'x' has no kind of the schema"),
            ({**GOOD, "x": {"kind": "int32", "value": 2**31}}, ""),
            ({**GOOD, "x": {"kind": "double", "value": 1e300 * 10}}, "'x' is not finite"),
            ({**GOOD, "x": {"kind": "float", "value": 1e39}}, ""),
            ({**GOOD, "node.inputs": "x"}, "'node.inputs' should have three texts"),
            ({**GOOD, "inputs": ["x", "1e400"]}, "size '1e400' should be a number of bytes"),
            ({**GOOD, "involve_dims": ["1"]}, ""),
            ({**GOOD, "runtime": 1e30}, "runtime should be a number of microseconds"),
            ({**GOOD, "\ud800": 1}, ""),
            (None, "should be an object"),
        ],
    )
    def test_the_node_is_named(self, node, message):
        content = json_file({"Id": 0, "NodeType": 4}, node).replace(b"1e+301", b"1e999")
        with pytest.raises(
            FormatError, match=r"^d/t\.json: .*workload_graph\[1\].*" + message
        ) as e:
            parse_json_trace(content, "d/t.json")
        assert str(e.value).isprintable()
        assert len(str(e.value)) < 400

    @pytest.mark.parametrize(
        "content",
        [
            b"{" * 100_000,
            b'{"workload_graph": ' + b"[" * 100_000,
            b'{"workload_graph": [], "x": -Infinity}',
            b'{"workload_graph": [], "x": 1e999}',
            b'{"workload_graph": [{"Id": ' + b"9" * 5000 + b', "NodeType": 4}]}',
            b'{"version": "0.0.4"} {"id": "1", "type": "NO_NODE"}',
            b'{"version": "0.0.4"} {"id": -1, "type": 4}',
            b'{"version": "0.0.4"} {"id": 1, "type": 4, "attr": {}}',
            b'{"version": "0.0.4"} {"id": 1, "type": 4, "nothing": 1}',
            b'{"version": "0.0.4"} [1]',
            b'{"version": "0.0.4"} {"id": 1, "type": 4} {"id": 1, "type": 4}',
            b'{"version": "0.0.4", "attr": [{"name": "x", "doubleVal": "NaN"}]}',
            b"\xff",
            b"",
            b"5",
        ],
    )
    def test_other_damage_is_one_line(self, content):
        with pytest.raises(FormatError, match=r"^t\.json:") as error:
            parse_json_trace(content, "t.json")
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 400


def test_names_of_all_readers_errors_cannot_break_a_line():
    """Even where a name of a node reaches an error elsewhere: `Trace.parent_positions`."""
    builder = TraceBuilder()
    builder.add("a\nb\x1b[2J", COMPUTE, data=[5])
    with pytest.raises(FormatError) as error:
        builder.build().parent_positions()
    assert str(error.value) == ("node 0 (a?b?[2J) waits for node 5, which is not in the trace")
