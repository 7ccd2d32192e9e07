"""Columns of a `Trace` to the Node messages of a Chakra trace.

Attributes have the kinds that the feeder of mlcommons/chakra (21585d8) reads; ASTRA-sim's
own feeder takes every integer kind. What a node does not state is not written.

The schema states times in whole microseconds. A time that is no whole number of them is
written rounded (half up, but never down to 0) and exactly, in the double attribute
``duration_seconds`` or ``start_time_seconds``, at which only our reader looks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers, Texts
from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.workloads.formats.chakra.reading import Nodes, numbers, readable_bytes
from perfmodel.workloads.formats.chakra.schema import (
    ATTRIBUTE_OF_NODE,
    EXACT_TIMES,
    GROUP,
    INTEGERS,
    INVOLVED,
    LARGEST,
    MICROSECONDS,
    NODE_INPUTS,
    NODE_OUTPUTS,
    WORDS,
    Attribute,
    attribute_message,
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
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.trace import format_nodes as kernel

    check_trace(trace)
    with kernel_work(written_nodes=trace.nodes):
        columns = _readable(_columns(trace))
        lengths = numbers(trace.nodes)
        size = int(kernel.node_lengths(columns, lengths, _room(0)))
        content, ends = _room(size), numbers(trace.nodes)
        kernel.write_nodes(columns, lengths, content, ends)
    ends = np.asarray(ends, np.int64)
    return Nodes(bytes(content), ends - lengths, ends)


def _room(size: int) -> Any:
    """Return room for bytes, as kernels fill it fastest; inside `kernel_work`."""
    from perfmodel.kernels._jit import compiling

    return np.empty(size, np.uint8) if compiling() else bytearray(size)


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
    """Return columns as kernels read them; inside `kernel_work`."""
    from perfmodel.kernels.plain import plain

    return plain(
        columns._replace(
            **{
                name: value._replace(letters=readable_bytes(value.letters))
                for name, value in columns._asdict().items()
                if hasattr(value, "letters")
            }
        )
    )


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


def varint(value: int) -> bytes:
    """Return a number >= 0 in protobuf's base-128 form."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
