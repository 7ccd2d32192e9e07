"""The messages of a Chakra trace file: framing, metadata and nodes.

A file is a sequence of protobuf messages, each after its length as a varint: first
GlobalMetadata, then one Node after another until the end; there is no count.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.workloads.formats.chakra.reading import Nodes, plain_node, read_nodes, readable_bytes
from perfmodel.workloads.formats.chakra.schema import (
    IO_INFO,
    Attribute,
    attribute_message,
    attribute_value,
    check_finite,
    messages,
)
from perfmodel.workloads.formats.chakra.writing import varint, written_nodes
from perfmodel.workloads.trace import Trace


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
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.trace import wire

    with kernel_work(wire_nodes=len(content) / 1000):
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
