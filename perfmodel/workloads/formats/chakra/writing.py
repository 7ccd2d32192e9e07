"""Columns of a `Trace` to the messages of a Chakra trace file, and the framing of these.

A file is a sequence of protobuf messages, each after its length as a varint: first
GlobalMetadata, then one Node after another until the end; there is no count.

Attributes have the kinds that the feeder of mlcommons/chakra (21585d8) reads; ASTRA-sim's
own feeder takes every integer kind. What a node does not state is not written.

The schema states times in whole microseconds. A time that is no whole number of them is
written rounded (half up, but never down to 0) and exactly, in the double attribute
``duration_seconds`` or ``start_time_seconds``, at which only our reader looks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers, Texts
from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.kernels.workloads.trace.format_at_once import varint
from perfmodel.workloads.formats.chakra.reading import (
    Nodes,
    plain_node,
    read_nodes,
    readable_bytes,
)
from perfmodel.workloads.formats.chakra.schema import (
    ATTRIBUTE_OF_NODE,
    EXACT_TIMES,
    GROUP,
    INTEGERS,
    INVOLVED,
    IO_INFO,
    LARGEST,
    MICROSECONDS,
    NODE_INPUTS,
    NODE_OUTPUTS,
    WORDS,
    Attribute,
    attribute_message,
    attribute_value,
    check_finite,
    messages,
)
from perfmodel.workloads.trace import ABSENT, NODE_KINDS, NamedSizes, Trace

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.trace.format_nodes import Columns, Pieces

RESERVED = frozenset((*INTEGERS, *INVOLVED, *EXACT_TIMES, GROUP))


def check_trace(trace: Trace) -> None:
    """Refuse a trace that could be written but not read.

    Raises
    ------
    FormatError
        Identifiers are negative or not different, a node's type is not known, or a number
        does not fit its attribute.
    """
    ordered = np.sort(trace.identifiers)
    if (ordered[:1] < 0).any() or (ordered[1:] == ordered[:-1]).any():
        raise FormatError("the ids of nodes should be different and not negative")
    columns: list[tuple[str, NDArray[Any], int, int]] = [
        ("type", trace.kinds, 1, len(NODE_KINDS) - 1)
    ]
    for name, (column, _, largest) in INTEGERS.items():
        columns.append((name, getattr(trace, column), ABSENT, largest))
    columns.append((GROUP, trace.group, ABSENT, len(trace.group_names) - 1))
    columns.append((INVOLVED[0], trace.involved, ABSENT, len(trace.involved_dimensions) - 1))
    for direction in ("inputs", "outputs"):
        values = getattr(trace, direction).values
        columns.append((direction, values, 0, len(trace.tensors) - 1))
    parents = (trace.data_parents, trace.control_parents)
    columns += [("the id of a parent", one.values, 0, LARGEST) for one in parents]
    for name, values, least, largest in columns:
        if values.size and not least <= values.min() <= values.max() <= largest:
            worst = values.max() if values.max() > largest else values.min()
            raise FormatError(f"{name} {worst} should be {least} to {largest}")
    if isinstance(trace.tensors, NamedSizes) and (trace.tensors.size >= 0).all():
        return
    for tensor, size in trace.tensors:
        if not 0 <= size <= LARGEST:
            raise FormatError(f"tensor '{shortened(tensor)}': size {size} should be 0 to {LARGEST}")


def written_nodes(trace: Trace) -> Nodes:
    """Return the nodes of a trace as Node messages, each behind its length.

    Every node of a trace that names tensors states `inputs` and `outputs`, because
    ASTRA-sim's memory tracker wants both.

    Raises
    ------
    FormatError
        The trace could be written but not read, or a number does not fit the schema.
    """
    from perfmodel.kernels._jit import compiling
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.trace import format_at_once
    from perfmodel.kernels.workloads.trace import format_nodes as kernel

    check_trace(trace)
    with kernel_work(written_nodes=trace.nodes):
        columns = _columns(trace)
        if not compiling():
            written, *places = format_at_once.write_nodes(columns)
            ends, lengths = np.array(places, np.int64)
            return Nodes(written, ends - lengths, ends)
        columns = _readable(columns)
        lengths, ends = np.zeros((2, trace.nodes), np.int64)
        nothing = np.empty(0, np.uint8)
        content = np.empty(int(kernel.node_lengths(columns, lengths, nothing)), np.uint8)
        kernel.write_nodes(columns, lengths, content, ends)
    return Nodes(bytes(content), ends - lengths, ends)


def _columns(trace: Trace) -> Columns:
    """Return a trace as the kernels take it."""
    from perfmodel.kernels.workloads.trace import format_nodes as kernel
    from perfmodel.kernels.workloads.trace import wire

    table = np.full((wire.COLUMNS, trace.nodes), ABSENT, np.int64)
    table[wire.IDENTIFIER], table[wire.KIND] = trace.identifiers, trace.kinds
    for i, (column, _, _) in enumerate(INTEGERS.values()):
        table[wire.INTEGERS + i] = getattr(trace, column)
    table[wire.GROUP], table[wire.INVOLVED] = trace.group, trace.involved
    for i, column in enumerate(EXACT_TIMES.values()):
        seconds = np.ascontiguousarray(getattr(trace, column), np.float64)
        micros, inexact = whole_microseconds(seconds)
        table[wire.START + i] = micros
        table[wire.EXACT_START + i] = np.where(inexact, seconds.view(np.int64), ABSENT)
    try:
        tensors = NamedSizes.of(trace.tensors)
    except UnicodeEncodeError as error:
        raise FormatError(f"a tensor: {error}") from None
    fields, attributes = _others(trace)
    return kernel.Columns(
        table.reshape(-1),
        trace.data_parents.offsets,
        trace.data_parents.values,
        trace.control_parents.offsets,
        trace.control_parents.values,
        trace.inputs.offsets,
        trace.inputs.values,
        trace.outputs.offsets,
        trace.outputs.values,
        tensors.name,
        tensors.size,
        len(tensors) > 0,
        _names(trace),
        kernel.Pieces(tensors.texts.letters, tensors.texts.ends),
        _framed_each(GROUP, trace.group_names),
        _involved(trace),
        _pieces(_heads()),
        fields,
        attributes,
    )


def _readable(columns: Columns) -> Columns:
    """Return columns as compiled kernels read them."""
    letters = {
        name: value._replace(letters=readable_bytes(value.letters))
        for name, value in columns._asdict().items()
        if hasattr(value, "letters")
    }
    return columns._replace(**letters)


def _pieces(parts: Sequence[bytes]) -> Pieces:
    """Return parts one behind another."""
    from perfmodel.kernels.workloads.trace.format_nodes import Pieces

    lengths = np.array([len(part) for part in parts], np.int64)
    return Pieces(b"".join(parts), np.cumsum(lengths))


def _names(trace: Trace) -> Pieces:
    """Return the names of nodes."""
    from perfmodel.kernels.workloads.trace.format_nodes import Pieces

    try:
        names = Texts.of(trace.names)
    except UnicodeEncodeError:
        for number, name in zip(trace.identifiers.tolist(), trace.names, strict=True):
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise FormatError(f"node {number} ({shortened(name)}): {error}") from None
        raise
    return Pieces(names.letters, names.ends)


def _involved(trace: Trace) -> Pieces:
    """Return each list of involved dimensions under the names that its file gave it."""
    names = trace.involved_attributes or INVOLVED[:1]
    values = [Attribute("bool_list", flags) for flags in trace.involved_dimensions]
    return _pieces(
        [b"".join(_framed(attribute_message(name, value)) for name in names) for value in values]
    )


def _framed_each(name: str, values: Iterable[Any]) -> Pieces:
    """Return an attribute with each of some values as fields of nodes."""
    try:
        return _pieces([_framed(attribute_message(name, value)) for value in values])
    except ValueError as error:
        raise FormatError(f"{name}: {error}") from None


@functools.cache
def _heads() -> tuple[bytes, ...]:
    """Return how the attribute of each word begins."""
    one = {"double": 1.0, "bool": True}
    kinds = [kind for _, kind, _ in INTEGERS.values()]
    heads = []
    for word, kind in zip(WORDS, (*kinds, "", "", "", "double", "double", "", ""), strict=True):
        value = Attribute(kind, one.get(kind, 1) if kind else None)
        written = attribute_message(word, value).SerializeToString()
        heads.append(written[: len(written) - {"": 0, "double": 8}.get(kind, 1)])
    return tuple(heads)


def _others(trace: Trace) -> tuple[Pieces, Pieces]:
    """Return what nodes say beside their columns: fields ahead of the attributes, and those."""
    from perfmodel.kernels.workloads.trace.format_nodes import Pieces

    found = np.zeros((2, trace.nodes), np.int64)
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for i in sorted(position for position in trace.other if 0 <= position < trace.nodes):
        try:
            fields, attributes = _other(trace.other[i], len(trace.tensors) > 0)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            name = f"node {trace.identifiers[i]} ({shortened(trace.names[i])})"
            raise FormatError(f"{name}: {error}") from None
        for number, part in enumerate((fields, attributes)):
            found[number, i] = len(part)
            parts[number].append(part)
    first, second = (
        Pieces(b"".join(pieces), np.cumsum(lengths))
        for pieces, lengths in zip(parts, found, strict=True)
    )
    return first, second


def _other(values: Mapping[str, Any], tensors: bool) -> tuple[bytes, bytes]:
    """Return attributes without a column as fields of a node, and as attributes of it."""
    node = messages().node()
    parts = []
    for label, value in values.items():
        if label in RESERVED or (label in ("inputs", "outputs") and tensors):
            raise ValueError(f"attribute '{label}' has a column")
        check_finite(label, value)
        if label in (NODE_INPUTS, NODE_OUTPUTS):
            texts = dict(zip(("values", "shapes", "types"), value.value, strict=True))
            field = getattr(node, label.removeprefix("node."))
            field.CopyFrom(messages().io_info(**texts))
        else:
            parts.append(_framed(attribute_message(label, value)))
    return node.SerializeToString(), b"".join(parts)


def whole_microseconds(seconds: NDArray[np.float64]) -> tuple[Integers, Flags]:
    """Round times half up to microseconds, positive ones to 1 at least.

    Parameters
    ----------
    seconds : float64[nodes]

    Returns
    -------
    micros : int64[nodes]
    inexact : bool[nodes]
        The time is not what a reader makes of the microseconds.

    Raises
    ------
    FormatError
        A time is negative, not finite, or as large as 2^63 microseconds.
    """
    with np.errstate(over="ignore"):
        micros = np.floor(seconds * MICROSECONDS + 0.5)
    bad = np.flatnonzero(~((seconds >= 0) & (micros < 2.0**63)))
    if bad.size:
        raise FormatError(
            f"time {seconds[bad[0]]} s at position {bad[0]} should be finite, not negative and "
            "below 2^63 microseconds"
        )
    micros = np.maximum(micros, seconds > 0).astype(np.int64)
    return micros, micros / MICROSECONDS != seconds


def _framed(message: Any) -> bytes:
    """Return an attribute as a field of its node."""
    content = message.SerializeToString()
    return ATTRIBUTE_OF_NODE + varint(len(content)) + content


def parse_messages(content: bytes, path: str | Path) -> Trace:
    """Read the content of an ``.et`` file; `path` names it in errors.

    Raises
    ------
    FormatError
        It is no Chakra trace, or one of an older schema than 0.0.4.
    """
    from google.protobuf.message import DecodeError

    try:
        if not content:
            raise FormatError("the file is empty; a Chakra trace begins with its metadata")
        begin, end = _frame(content, 0)
        try:
            metadata, version = _metadata(content[begin:end])
        except DecodeError:
            raise FormatError(_not_of_chakra(0, 0, "GlobalMetadata")) from None
        nodes, begins, end = frames(content, end)

        def where(position: int) -> str:
            return f"byte {begins[position]}: "

        def read_rare(position: int) -> tuple[bytes, dict[str, Any]]:
            part = content[nodes.starts[position] : nodes.ends[position]]
            try:
                node = messages().node.FromString(part)
                _check_fields(node, part)
                return plain_node(node)
            except DecodeError:
                text = _not_of_chakra(position + 1, begins[position], "Node")
                raise FormatError(text) from None
            except FormatError as error:
                raise FormatError(f"{where(position)}{error}") from None

        trace = read_nodes(nodes, read_rare, where, metadata, version)
        if end < len(content):
            _frame(content, end)
            raise FormatError(f"byte {end}: a node without content")
        return replace(trace, whole_microseconds=True)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def frames(content: bytes, place: int = 0) -> tuple[Nodes, Integers, int]:
    """Return where messages stand from a place on, and where each begins with its length.

    Returns
    -------
    nodes : Nodes
    begins : int64[nodes]
    end : int
        Where they end: that of the content, or of the first one without content, or whose
        length is too long, or beyond the end of the file.
    """
    from perfmodel.kernels._jit import compiling
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.trace import parse_at_once, wire

    with kernel_work(wire_nodes=len(content) / 10_000):
        if not compiling():
            begins, starts, ends, end = parse_at_once.find_frames(content, place)
            return Nodes(content, starts, ends), begins, end
        readable = readable_bytes(content)
        nothing = np.empty(0, np.int64)
        count, end = wire.read_frames(readable, place, nothing, nothing, nothing)
        begins, starts, ends = (np.empty(count, np.int64) for _ in range(3))
        if count:
            wire.read_frames(readable, place, begins, starts, ends)
    return Nodes(content, starts, ends), begins, int(end)


def _frame(content: bytes, begin: int) -> tuple[int, int]:
    """Return where a message begins behind its length, and its end.

    Raises
    ------
    FormatError
        The length is too long, or beyond the end of the file.
    """
    from perfmodel.kernels.workloads.trace.wire import LONGEST_LENGTH

    length = 0
    for place, byte in enumerate(content[begin : begin + LONGEST_LENGTH]):
        length |= (byte & 127) << 7 * place
        if byte < 128:
            start = begin + place + 1
            break
    else:
        raise FormatError(f"byte {begin}: the length of the message is not readable")
    if length > len(content) - start:
        left = len(content) - start
        raise FormatError(f"byte {begin}: a message of {length} bytes, but {left} are left")
    return start, start + length


def _not_of_chakra(number: int, begin: int, what: str) -> str:
    return (
        f"message {number} at byte {begin} is no {what} of Chakra 0.0.4: cut off, not UTF-8, or "
        "another schema"
    )


def _metadata(content: bytes) -> tuple[dict[str, Any], str]:
    """Read the first message: attributes of the file, and its version."""
    if content[:1] == b"\x08":  # an id where the version, a text, should be
        raise FormatError(
            "begins with a node, so it is of Chakra 0.0.1 to 0.0.3; write it anew with 0.0.4"
        )
    message = messages().metadata.FromString(content)
    if not message.version.isprintable():  # an attribute in the place of the version
        raise FormatError("its metadata are of Chakra 0.0.3; write it anew with 0.0.4")
    _check_fields(message, content)
    return read_metadata(message)


def read_metadata(message: Any) -> tuple[dict[str, Any], str]:
    """Return the attributes and the version in a GlobalMetadata message.

    Raises
    ------
    FormatError
        An attribute occurs twice or is not finite.
    """
    metadata: dict[str, Any] = {}
    for attribute in message.attr:
        if attribute.name in metadata:
            raise FormatError(f"metadata: attribute '{shortened(attribute.name)}' twice")
        metadata[attribute.name] = attribute_value(attribute)
        check_finite(attribute.name, metadata[attribute.name])
    return metadata, message.version


def _check_fields(message: Any, content: bytes) -> None:
    """Refuse fields that the schema lacks, or has with another type."""
    message.DiscardUnknownFields()
    if message.ByteSize() == len(content):
        return
    number = _unknown_field(type(message).FromString(content))  # else only unusual, not wrong
    if number is None:
        return
    raise FormatError(f"field {number} is not, or not so, in Chakra 0.0.4")


def _unknown_field(message: Any) -> int | None:
    """Return the number of a field that the schema does not explain."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for unknown in UnknownFieldSet(message):
        return int(unknown.field_number)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if hasattr(value, "append") else (value,):
                if (number := _unknown_field(item)) is not None:
                    return number
    return None


def serialise(trace: Trace) -> bytes:
    """Return the content of an ``.et`` file.

    Raises
    ------
    FormatError
        The trace holds what the schema cannot.
    """
    head = messages().metadata()
    try:
        head.version = trace.version
        for name, value in trace.metadata.items():
            if isinstance(value, Attribute) and value.kind == IO_INFO:
                raise ValueError(f"'{name}' should be a value")
            check_finite(name, value)
            head.attr.append(attribute_message(name, value))
    except (TypeError, ValueError, KeyError) as error:
        raise FormatError(f"metadata: {error}") from None
    content = head.SerializeToString()
    return varint(len(content)) + content + written_nodes(trace).content
