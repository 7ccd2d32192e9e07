"""Messages and numbers on protobuf's wire, and where they are cut off."""

from __future__ import annotations

import pytest

from perfmodel.kernels.workloads.trace import wire
from perfmodel.workloads.formats.chakra.schema import GROUP, INTEGERS, WORDS
from perfmodel.workloads.formats.chakra.writing import frames


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


def test_words_are_counted_as_the_schema_lists_them():
    assert len(INTEGERS) == wire.INTEGER_WORDS
    assert WORDS[wire.GROUP_WORD] == GROUP
    assert WORDS[wire.TENSOR_WORDS :] == ("inputs", "outputs")
