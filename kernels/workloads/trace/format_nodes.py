"""Columns of nodes to Node messages of Chakra traces, as protobuf writes them.

A node is written twice by the same code: first only to know its length, which stands ahead of it.
Content to fill is a `bytearray` where kernels run uncompiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels._jit import jit, jit_lean_inline
from perfmodel.kernels.workloads.trace import wire

STRING_LIST_TAG = (0xF2, 0x01)


class Pieces(NamedTuple):
    """Bytes one behind another.

    Attributes
    ----------
    letters : bytes or uint8
    ends : int64[pieces]
    """

    letters: bytes | NDArray[np.uint8]
    ends: NDArray[np.int64]


class Columns(NamedTuple):
    """What nodes say.

    Attributes
    ----------
    table : int64[COLUMNS nodes]
        Column by column, as `perfmodel.kernels.workloads.trace.wire` has them; an exact time is the
        bits of the double.
    data_first, control_first, inputs_first, outputs_first : int64[nodes + 1]
        Where lists begin in the next.
    data, control, inputs, outputs : int64[items]
    tensor_name, tensor_size : int64[tensors]
        Number among the names, and size.
    tensors : bool
        Every node states what it reads and writes.
    names, tensor_names : Pieces
    groups, flags : Pieces
        Attributes of each group, and of each list of involved dimensions.
    heads : Pieces
        How an attribute begins, by word: its name and, but for tensors, the tag of its value.
    fields, attributes : Pieces
        Of each node: what stands ahead of its attributes, and behind them.
    """

    table: NDArray[np.int64]
    data_first: NDArray[np.int64]
    data: NDArray[np.int64]
    control_first: NDArray[np.int64]
    control: NDArray[np.int64]
    inputs_first: NDArray[np.int64]
    inputs: NDArray[np.int64]
    outputs_first: NDArray[np.int64]
    outputs: NDArray[np.int64]
    tensor_name: NDArray[np.int64]
    tensor_size: NDArray[np.int64]
    tensors: bool
    names: Pieces
    tensor_names: Pieces
    groups: Pieces
    flags: Pieces
    heads: Pieces
    fields: Pieces
    attributes: Pieces


@jit
def node_lengths(columns, lengths, content):
    """Find out how long nodes are.

    Parameters
    ----------
    columns : Columns
    lengths : int64[nodes]
        To fill.
    content : bytearray or uint8
        Not used.

    Returns
    -------
    int
        Bytes of all nodes, each behind its length.
    """
    total = 0
    for node in range(len(lengths)):
        length = _node(columns, node, content, 0, False)
        lengths[node] = length
        total += length + varint_size(length)
    return total


@jit
def write_nodes(columns, lengths, content, ends):
    """Write nodes, each behind its length.

    Parameters
    ----------
    columns : Columns
    lengths : int64[nodes]
        From `node_lengths`.
    content : bytearray or uint8[size]
        To fill.
    ends : int64[nodes]
        To fill: where each node ends.
    """
    at = 0
    for node in range(len(lengths)):
        at = _varint(content, at, lengths[node], True)
        at = _node(columns, node, content, at, True)
        ends[node] = at


@jit_lean_inline
def varint_size(value):
    """Return how many bytes a number has in protobuf's base-128 form."""
    size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


@jit_lean_inline
def _varint(content, at, value, fill):
    """Write a number >= 0 and return the place behind it."""
    while value > 127:
        if fill:
            content[at] = value & 127 | 128
        value >>= 7
        at += 1
    if fill:
        content[at] = value
    return at + 1


@jit_lean_inline
def _byte(content, at, value, fill):
    """Write a byte and return the place behind it."""
    if fill:
        content[at] = value
    return at + 1


@jit_lean_inline
def _piece(content, at, pieces, number, fill):
    """Write one of several pieces and return the place behind it."""
    begin = pieces.ends[number - 1] if number > 0 else 0
    end = pieces.ends[number]
    if fill:
        for place in range(begin, end):
            content[at + place - begin] = pieces.letters[place]
    return at + end - begin


@jit_lean_inline
def _length(pieces, number):
    """Return the length of one of several pieces."""
    return pieces.ends[number] - (pieces.ends[number - 1] if number > 0 else 0)


@jit_lean_inline
def _node(columns, node, content, at, fill):
    """Write a node and return the place behind it."""
    table = columns.table
    nodes = len(columns.data_first) - 1
    at = _number(content, at, wire.ID_TAG, table[nodes * wire.IDENTIFIER + node], fill)
    length = _length(columns.names, node)
    if length > 0:
        at = _byte(content, at, wire.NAME_TAG, fill)
        at = _varint(content, at, length, fill)
        at = _piece(content, at, columns.names, node, fill)
    at = _number(content, at, wire.KIND_TAG, table[nodes * wire.KIND + node], fill)
    first, last = columns.control_first[node], columns.control_first[node + 1]
    at = _packed(content, at, wire.CONTROL_PACKED, columns.control, first, last, fill)
    first, last = columns.data_first[node], columns.data_first[node + 1]
    at = _packed(content, at, wire.DATA_PACKED, columns.data, first, last, fill)
    at = _number(content, at, wire.START_TAG, table[nodes * wire.START + node], fill)
    at = _number(content, at, wire.DURATION_TAG, table[nodes * wire.DURATION + node], fill)
    at = _piece(content, at, columns.fields, node, fill)
    if columns.tensors:
        first, last = columns.inputs_first[node], columns.inputs_first[node + 1]
        at = _tensors(content, at, columns, wire.TENSOR_WORDS, columns.inputs, first, last, fill)
        first, last = columns.outputs_first[node], columns.outputs_first[node + 1]
        at = _tensors(
            content, at, columns, wire.TENSOR_WORDS + 1, columns.outputs, first, last, fill
        )
    for word in range(wire.GROUP_WORD):
        value = table[nodes * (wire.INTEGERS + word) + node]
        if value != wire.ABSENT:
            at = _byte(content, at, wire.ATTRIBUTE_TAG, fill)
            length = _length(columns.heads, word) + varint_size(value)
            at = _varint(content, at, length, fill)
            at = _piece(content, at, columns.heads, word, fill)
            at = _varint(content, at, value, fill)
    if table[nodes * wire.GROUP + node] != wire.ABSENT:
        at = _piece(content, at, columns.groups, table[nodes * wire.GROUP + node], fill)
    if table[nodes * wire.INVOLVED + node] != wire.ABSENT:
        at = _piece(content, at, columns.flags, table[nodes * wire.INVOLVED + node], fill)
    for time in range(2):
        bits = table[nodes * (wire.EXACT_START + time) + node]
        if bits != wire.ABSENT:
            at = _byte(content, at, wire.ATTRIBUTE_TAG, fill)
            at = _varint(content, at, _length(columns.heads, wire.EXACT_WORDS + time) + 8, fill)
            at = _piece(content, at, columns.heads, wire.EXACT_WORDS + time, fill)
            for byte in range(8):
                at = _byte(content, at, bits >> 8 * byte & 255, fill)
    return _piece(content, at, columns.attributes, node, fill)


@jit_lean_inline
def _number(content, at, tag, value, fill):
    """Write a field that holds a number, unless that is 0."""
    if value != 0:
        at = _byte(content, at, tag, fill)
        at = _varint(content, at, value, fill)
    return at


@jit_lean_inline
def _packed(content, at, tag, values, first, last, fill):
    """Write a list of numbers, unless it is empty."""
    if first == last:
        return at
    length = 0
    for item in range(first, last):
        length += varint_size(values[item])
    at = _byte(content, at, tag, fill)
    at = _varint(content, at, length, fill)
    for item in range(first, last):
        at = _varint(content, at, values[item], fill)
    return at


@jit_lean_inline
def _tensors(content, at, columns, word, rows, first, last, fill):
    """Write the attribute that lists tensors: names and sizes in turn; of none, no value."""
    length = 0
    for item in range(first, last):
        tensor = rows[item]
        name = _length(columns.tensor_names, columns.tensor_name[tensor])
        length += name + varint_size(name) + _digits(columns.tensor_size[tensor]) + 3
    at = _byte(content, at, wire.ATTRIBUTE_TAG, fill)
    head = _length(columns.heads, word)
    if first == last:
        at = _varint(content, at, head, fill)
        return _piece(content, at, columns.heads, word, fill)
    at = _varint(content, at, head + 2 + varint_size(length) + length, fill)
    at = _piece(content, at, columns.heads, word, fill)
    at = _byte(content, at, STRING_LIST_TAG[0], fill)
    at = _byte(content, at, STRING_LIST_TAG[1], fill)
    at = _varint(content, at, length, fill)
    for item in range(first, last):
        tensor = rows[item]
        number = columns.tensor_name[tensor]
        at = _byte(content, at, wire.FIRST_FIELD, fill)
        at = _varint(content, at, _length(columns.tensor_names, number), fill)
        at = _piece(content, at, columns.tensor_names, number, fill)
        size = columns.tensor_size[tensor]
        digits = _digits(size)
        at = _byte(content, at, wire.FIRST_FIELD, fill)
        at = _byte(content, at, digits, fill)
        at += digits
        if fill:
            for place in range(1, digits + 1):
                content[at - place] = 48 + size % 10
                size //= 10
    return at


@jit_lean_inline
def _digits(value):
    """Return how many digits a number has."""
    digits = 1
    while value > 9:
        value //= 10
        digits += 1
    return digits
