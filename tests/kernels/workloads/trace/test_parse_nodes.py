"""Nodes on the wire: what the kernels understand, protobuf understands too."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.work import kernel_work
from perfmodel.kernels.workloads.trace import parse_nodes
from perfmodel.workloads.formats.chakra.reading import Nodes, _count, numbers
from perfmodel.workloads.formats.chakra.schema import WORDS, messages
from perfmodel.workloads.formats.chakra.writing import serialise
from tests.amount import cases
from tests.workloads.formats.chakra.made import CONVERTED_NODE, parts_of, small_trace


def understood(part: bytes) -> bool:
    """Whether the kernels read a node themselves."""
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
@settings(max_examples=cases(150), deadline=None)
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
