"""Nodes on the wire: what the kernels understand, protobuf understands too."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.formats.chakra.messages import frames, serialise
from perfmodel.formats.chakra.reading import _count, numbers
from perfmodel.formats.chakra.schema import WORDS, messages
from perfmodel.kernels.trace import parse_nodes, wire
from perfmodel.kernels.work import kernel_work
from tests.formats.chakra.made import CONVERTED_NODE, parts_of, small_trace


def understood(part: bytes) -> bool:
    """Whether the kernels read a node themselves."""
    from perfmodel.formats.chakra.reading import Nodes

    nodes = Nodes(part, np.zeros(1, np.int64), np.array([len(part)]))
    with kernel_work(wire_nodes=1):
        rare = numbers(1)
        at = numbers(parse_nodes.COUNTS)
        _count(nodes, np.arange(1), False, numbers(4), at, rare)
    if rare[0]:
        assert not np.any(at)  # what it held is not counted
    return not rare[0]


def usual_nodes() -> list[bytes]:
    return [CONVERTED_NODE, *parts_of(serialise(small_trace()))[1:3]]


@pytest.mark.parametrize("node", range(3))
def test_usual_nodes_are_understood_and_no_beginning_of_one_breaks_anything(node):
    part = usual_nodes()[node]
    assert understood(part)
    for end in range(len(part)):
        if understood(part[:end]):
            messages().node.FromString(part[:end])  # cut between two fields


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_understood_is_a_node_to_protobuf(data):
    part = bytearray(data.draw(st.sampled_from(usual_nodes())))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(part) - 1))
        part[place] = data.draw(st.sampled_from([0, 1, 8, 10, 82, 127, 128, 255, part[place] ^ 1]))
    try:
        node = messages().node.FromString(bytes(part))
    except (DecodeError, UnicodeDecodeError):
        assert not understood(bytes(part))
        return
    if understood(bytes(part)):
        names = [attribute.name for attribute in node.attr]
        assert set(names) <= {*WORDS}
        assert 1 <= node.type <= parse_nodes.LARGEST_KIND


@pytest.mark.parametrize(
    ("content", "count", "end"),
    [
        (b"", 0, 0),
        (b"\x01a\x02bc", 2, 5),
        (b"\x81\x00a", 1, 3),  # a length longer than it needs to be
        (b"\x01a\x00\x01b", 1, 2),  # a message without content
        (b"\x01a\x03bc", 1, 2),  # longer than what is left
        (b"\x01a\x80", 1, 2),
        (b"\x01a\x81\x80\x80\x80\x80\x00b", 1, 2),  # six bytes of length
        (b"\xff" * 12, 0, 0),
    ],
)
def test_messages_of_a_file(content, count, end):
    nodes, begins, stop = frames(content)
    assert (len(begins), stop) == (count, end)
    ends = nodes.ends.tolist()
    assert begins.tolist() == [0, *ends][:count]
    assert [content[a:b] for a, b in zip(nodes.starts, ends, strict=True)] == (
        [b"a", b"bc"][:count]
    )


def test_the_largest_number_is_below_two_to_the_63():
    largest = b"\xff" * 8 + b"\x7f"
    assert wire.read_varint(largest, 0, 9) == (2**63 - 1, 9)
    assert wire.read_varint(b"\xff" * 9 + b"\x01", 0, 10)[1] == wire.BAD
    assert wire.read_varint(b"\x80", 0, 1)[1] == wire.BAD
