"""Columns of nodes to Node messages of Chakra traces, column by column, in plain Python.

Where kernels are not compiled: what `perfmodel.kernels.workloads.trace.format_nodes` writes byte by
byte is put together of pieces here, each made once for all nodes that say the same. Fifteen times
as fast as those are there, and the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from perfmodel.kernels.workloads.trace import wire
from perfmodel.kernels.workloads.trace.format_nodes import STRING_LIST_TAG

ATTRIBUTE = bytes([wire.ATTRIBUTE_TAG])
FIRST_FIELD = bytes([wire.FIRST_FIELD])


def varint(value: int) -> bytes:
    """Return a number >= 0 in protobuf's base-128 form."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def write_nodes(columns: Any) -> tuple[bytes, list[int], list[int]]:
    """Return nodes, each behind its length, where each ends, and how long each is.

    Parameters
    ----------
    columns : format_nodes.Columns
        Letters of its pieces are bytes.
    """
    frames, lengths = [], []
    sizes: dict[int, bytes] = {}
    for parts in zip(*_columns(columns), strict=True):
        node = b"".join(parts)
        length = len(node)
        lengths.append(length)
        frames.append(sizes.get(length) or sizes.setdefault(length, varint(length)))
        frames.append(node)
    ends = np.cumsum([len(frame) for frame in frames], dtype=np.int64)[1::2]
    return b"".join(frames), ends.tolist(), lengths


def _columns(columns: Any) -> Iterator[list[bytes]]:
    """Yield what all nodes say in each field that some node has, in the order of the fields."""
    table = columns.table.reshape(wire.COLUMNS, -1)
    names = _split(columns.names)
    heads = _split(columns.heads)

    def number(tag: int, column: int) -> list[bytes]:
        return _each(table[column], lambda value: value and bytes([tag]) + varint(value))

    yield number(wire.ID_TAG, wire.IDENTIFIER)
    yield [name and bytes([wire.NAME_TAG]) + varint(len(name)) + name for name in names]
    yield number(wire.KIND_TAG, wire.KIND)
    yield _packed(wire.CONTROL_PACKED, columns.control_first, columns.control)
    yield _packed(wire.DATA_PACKED, columns.data_first, columns.data)
    yield number(wire.START_TAG, wire.START)
    yield number(wire.DURATION_TAG, wire.DURATION)
    yield _split(columns.fields)
    if columns.tensors:
        texts = _tensor_texts(columns)
        inputs, outputs = heads[wire.TENSOR_WORDS : wire.TENSOR_WORDS + 2]
        yield _tensors(inputs, columns.inputs_first, columns.inputs, texts)
        yield _tensors(outputs, columns.outputs_first, columns.outputs, texts)
    for word in range(wire.GROUP_WORD):
        yield _stated(table[wire.INTEGERS + word], _attributes(heads[word], varint))
    for column, pieces in ((wire.GROUP, columns.groups), (wire.INVOLVED, columns.flags)):
        yield _stated(table[column], _split(pieces).__getitem__)
    for time in range(2):
        head = heads[wire.EXACT_WORDS + time]
        yield _stated(table[wire.EXACT_START + time], _attributes(head, _eight_bytes))
    yield _split(columns.attributes)


def _each(values: Any, piece: Callable[[int], Any]) -> list[bytes]:
    """Return the piece of each value, made once; nothing where it is 0."""
    items = values.tolist()
    pieces = {value: piece(value) or b"" for value in set(items)}
    return list(map(pieces.__getitem__, items))


def _stated(values: Any, piece: Callable[[int], bytes]) -> list[bytes]:
    """Return the piece of each value, and nothing for what is absent."""
    return _each(values, lambda value: b"" if value == wire.ABSENT else piece(value))


def _split(pieces: Any) -> list[bytes]:
    """Return pieces one by one."""
    ends = pieces.ends.tolist()
    begins = [0, *ends][: len(ends)]
    return [pieces.letters[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _attribute(head: bytes, value: bytes) -> bytes:
    """Return an attribute as a field of its node."""
    return ATTRIBUTE + varint(len(head) + len(value)) + head + value


def _attributes(head: bytes, written: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return what writes an attribute of a value."""
    return lambda value: _attribute(head, written(value))


def _eight_bytes(bits: int) -> bytes:
    """Return the bits of a double as they are written."""
    return bits.to_bytes(8, "little")


def _lists(first: Any, values: Any, pieces: Any) -> list[bytes]:
    """Return the pieces of each node's items, joined."""
    parts = list(map(pieces.__getitem__, values.tolist()))
    bounds = first.tolist()
    return [b"".join(parts[a:b]) for a, b in itertools.pairwise(bounds)]


def _packed(tag: int, first: Any, values: Any) -> list[bytes]:
    """Return lists of numbers; nothing where one is empty."""
    pieces = {value: varint(value) for value in set(values.tolist())}
    lists = _lists(first, values, pieces)
    return [it and bytes([tag]) + varint(len(it)) + it for it in lists]


def _tensor_texts(columns: Any) -> list[bytes]:
    """Return name and size of each tensor as two texts of a list."""
    names = [FIRST_FIELD + varint(len(name)) + name for name in _split(columns.tensor_names)]
    sizes = map(str, columns.tensor_size.tolist())
    digits = [FIRST_FIELD + bytes([len(size)]) + size.encode() for size in sizes]
    return [names[i] + size for i, size in zip(columns.tensor_name.tolist(), digits, strict=True)]


def _tensors(head: bytes, first: Any, rows: Any, texts: list[bytes]) -> list[bytes]:
    """Return attributes that list tensors: names and sizes in turn; of none, no value."""
    tag = bytes(STRING_LIST_TAG)
    lists = _lists(first, rows, texts)
    return [_attribute(head, it and tag + varint(len(it)) + it) for it in lists]
