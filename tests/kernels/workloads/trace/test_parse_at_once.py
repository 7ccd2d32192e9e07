"""Nodes read all at once: the same as the kernels read, or left to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.work import kernel_work
from perfmodel.kernels.workloads.trace import parse_at_once, wire
from perfmodel.workloads.formats.chakra.reading import Nodes, _one_by_one, _word_columns
from perfmodel.workloads.formats.chakra.schema import WORDS
from perfmodel.workloads.formats.chakra.writing import serialise
from tests.amount import cases
from tests.workloads.formats.chakra.made import CONVERTED_NODE, parts_of, small_trace


class RareError(Exception):
    """A node is not for the kernels."""


def rare(position: int) -> tuple[bytes, dict]:
    raise RareError


def joined(parts: list[bytes]) -> Nodes:
    ends = np.cumsum([len(part) for part in parts])
    return Nodes(b"".join(parts), ends - [len(part) for part in parts], ends)


def assert_read_as_by_kernels(parts: list[bytes]) -> bool:
    """Compare both; tell whether they are read at once."""
    nodes = joined(parts)
    found = parse_at_once.read_nodes(*nodes, WORDS, _word_columns().largest)
    if found is None:
        return False
    with kernel_work(wire_nodes=len(parts)):
        _, known = _one_by_one(nodes, rare, {})
    texts = [[nodes.content[a:b] for a, b in one.tensor_names.tolist()] for one in (found, known)]
    assert texts[0] == texts[1]
    assert (found.groups, found.flags) == (known.groups, known.flags)
    for ours, theirs in zip(found.lists, known.lists, strict=True):
        assert np.array_equal(ours, theirs)
    for name in ("table", "lengths", "tensors"):
        assert np.array_equal(getattr(found, name), getattr(known, name)), name
    return True


def usual_nodes() -> list[bytes]:
    return parts_of(serialise(small_trace()))[1:3]


def test_usual_files_are_read_at_once():
    parts = usual_nodes()
    assert assert_read_as_by_kernels(parts)
    assert assert_read_as_by_kernels([CONVERTED_NODE, *parts, CONVERTED_NODE])
    assert assert_read_as_by_kernels(parts[::-1])


@given(st.data())
@settings(max_examples=cases(300), deadline=None)
def test_damaged_nodes_are_read_as_by_the_kernels_or_left_to_them(data):
    parts = [CONVERTED_NODE, *usual_nodes()]
    part = bytearray(data.draw(st.sampled_from(parts)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(part) - 1))
        part[place] = data.draw(st.sampled_from([0, 1, 8, 10, 82, 127, 128, 255, part[place] ^ 1]))
    cut = data.draw(st.sampled_from([len(part), data.draw(st.integers(0, len(part)))]))
    assert_read_as_by_kernels([parts[0], bytes(part[:cut]), parts[1]])


@pytest.mark.parametrize("end", [None, -1, -30])
def test_frames_are_found_as_by_the_kernel(end):
    content = (serialise(small_trace()) + b"\x85\x00" + bytes(5))[:end]
    for cut in (*range(0, len(content), 7), len(content)):
        some = content[:cut]
        nothing = np.empty(0, np.int64)
        count, place = wire.read_frames(some, 0, nothing, nothing, nothing)
        known = [np.empty(count, np.int64) for _ in range(3)]
        if count:
            wire.read_frames(some, 0, *known)
        *found, at = parse_at_once.find_frames(some, 0)
        assert at == place
        assert all(map(np.array_equal, found, known))
