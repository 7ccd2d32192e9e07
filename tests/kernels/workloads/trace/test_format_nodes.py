"""Nodes written at the edges of numbers and lengths, as protobuf writes them."""

from __future__ import annotations

import pytest

from perfmodel.kernels.workloads.trace.format_nodes import varint_size
from perfmodel.workloads.formats.chakra.schema import Attribute, attribute_message, messages
from perfmodel.workloads.formats.chakra.writing import varint, written_nodes
from perfmodel.workloads.trace import COMPUTE, TraceBuilder
from tests.workloads.formats.chakra.made import parts_of

EDGES = [0, 1, 9, 10, 127, 128, 16383, 16384, 2**31 - 1, 2**31, 10**18, 2**63 - 1]


@pytest.mark.parametrize("number", EDGES)
def test_numbers(number):
    assert varint_size(number) == len(varint(number))
    builder = TraceBuilder()
    builder.add(
        "n",
        COMPUTE,
        identifier=number,
        num_ops=number,
        tensor_size=number,
        data=[0, number, 5],
        control=[number],
        inputs=[("x", number)],
    )
    node = messages().node(
        id=number, name="n", type=COMPUTE, data_deps=[0, number, 5], ctrl_deps=[number]
    )
    node.attr.append(attribute_message("inputs", Attribute("string_list", ("x", str(number)))))
    node.attr.append(attribute_message("outputs", Attribute("", None)))
    node.attr.append(attribute_message("num_ops", number))
    node.attr.append(attribute_message("tensor_size", Attribute("uint64", number)))
    assert parts_of(written_nodes(builder.build()).content) == [node.SerializeToString()]


@pytest.mark.parametrize("length", [0, 1, 120, 127, 128, 16384])
def test_lengths(length):
    """A name as long as the length of the node, an attribute or a list grows by a byte."""
    name = "é" * (length // 2) + "n" * (length % 2)
    builder = TraceBuilder()
    builder.add(name, COMPUTE, group=name, inputs=[(name, 5), (name, 7)], duration=1e-9)
    node = messages().node(name=name, type=COMPUTE, duration_micros=1)
    texts = Attribute("string_list", (name, "5", name, "7"))
    node.attr.append(attribute_message("inputs", texts))
    node.attr.append(attribute_message("outputs", Attribute("", None)))
    if name:
        node.attr.append(attribute_message("pg_name", name))
    node.attr.append(attribute_message("duration_seconds", 1e-9))
    assert parts_of(written_nodes(builder.build()).content) == [node.SerializeToString()]
