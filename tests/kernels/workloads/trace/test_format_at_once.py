"""Nodes put together of pieces: the bytes that the kernels write."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.workloads.trace import format_nodes
from perfmodel.kernels.workloads.trace.format_at_once import varint, write_nodes
from perfmodel.workloads.formats.chakra.reading import Nodes
from perfmodel.workloads.formats.chakra.writing import _columns, _readable
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, Trace, TraceBuilder
from tests.workloads.formats.chakra.made import small_trace


def by_kernels(trace: Trace) -> Nodes:
    columns = _readable(_columns(trace))
    lengths, ends = np.zeros((2, trace.nodes), np.int64)
    size = format_nodes.node_lengths(columns, lengths, np.empty(0, np.uint8))
    content = bytearray(int(size))
    format_nodes.write_nodes(columns, lengths, content, ends)
    return Nodes(bytes(content), ends - lengths, ends)


def edges() -> Trace:
    builder = TraceBuilder()
    for number in (0, 1, 127, 128, 16383, 16384, 2**31 - 1, 2**63 - 1):
        builder.add(
            f"n{number}" if number else "",
            COMPUTE,
            identifier=number,
            num_ops=number,
            data=[0, number, 5],
            control=[number],
            inputs=[("x", number), ("é" * (number % 200), 3)],
            duration=1.5e-6 * (number % 7),
        )
    builder.add("sum", COLLECTIVE, identifier=9, collective=0, communication_size=64, group="g")
    builder.add("all", COLLECTIVE, identifier=10, involved=[True, False], start_time=1e-9)
    return builder.build()


@pytest.mark.parametrize("trace", [small_trace(), edges(), TraceBuilder().build()])
def test_both_write_the_same_bytes(trace):
    written, ends, lengths = write_nodes(_columns(trace))
    known = by_kernels(trace)
    assert written == known.content
    assert ends == known.ends.tolist()
    assert lengths == (known.ends - known.starts).tolist()


@pytest.mark.parametrize("number", [0, 127, 128, 2**31, 2**63 - 1])
def test_numbers_are_as_long_as_the_kernels_say(number):
    assert len(varint(number)) == format_nodes.varint_size(number)
