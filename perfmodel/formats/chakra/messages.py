"""The messages of a Chakra trace file: framing, metadata and nodes.

A file is a sequence of protobuf messages, each after its length as a varint: first
GlobalMetadata, then one Node after another until the end; there is no count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.formats.chakra.reading import NodeReader
from perfmodel.formats.chakra.schema import (
    IO_INFO,
    Attribute,
    attribute_message,
    attribute_value,
    check_finite,
    messages,
)
from perfmodel.formats.chakra.writing import check_trace, node_frames, varint
from perfmodel.trace import Trace

LONGEST_VARINT = 5  # ASTRA-sim's feeder refuses longer ones


def frames(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each message of a file and the byte where it begins.

    Raises
    ------
    FormatError
        A length is 0, too long, or beyond the end of the file.
    """
    place, end = 0, len(content)
    while place < end:
        begin, length, shift = place, 0, 0
        while True:
            if place == end or shift == 7 * LONGEST_VARINT:
                raise FormatError(f"byte {begin}: the length of the message is not readable")
            byte = content[place]
            place += 1
            length |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if length > end - place:
            raise FormatError(
                f"byte {begin}: a message of {length} bytes, but {end - place} are left"
            )
        yield begin, content[place : place + length]
        place += length


def parse_messages(content: bytes, path: str | Path) -> Trace:
    """Read the content of an ``.et`` file; `path` names it in errors.

    Raises
    ------
    FormatError
        It is no Chakra trace, or one of an older schema than 0.0.4.
    """
    from google.protobuf.message import DecodeError

    reader = NodeReader()
    make = messages().node
    begin = 0
    metadata: dict[str, Any] = {}
    version = ""
    try:
        parts = frames(content)
        begin, first = next(parts, (0, None))
        if first is None:
            raise FormatError("the file is empty; a Chakra trace begins with its metadata")
        metadata, version = _metadata(first)
        for begin, part in parts:
            if not part:
                raise FormatError(f"byte {begin}: a node without content")
            node = make.FromString(part)
            _check_fields(node, part)
            reader.add(node)
        return reader.build(metadata, version)
    except DecodeError:
        what = "Node" if begin else "GlobalMetadata"
        raise FormatError(
            f"{path}: message {len(reader.names) + bool(begin)} at byte {begin} is no {what} of "
            "Chakra 0.0.4: cut off, not UTF-8, or another schema"
        ) from None
    except FormatError as error:
        text = str(error)
        where = "" if text.startswith("byte ") or not begin else f"byte {begin}: "
        raise FormatError(f"{path}: {where}{text}") from None


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
    check_trace(trace)
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
    parts = [head.SerializeToString(), *node_frames(trace)]
    return b"".join(varint(len(part)) + part for part in parts)
