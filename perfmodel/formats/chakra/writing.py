"""Columns of a `Trace` to the Node messages of a Chakra trace.

Attributes have the kinds that the feeder of mlcommons/chakra (21585d8) reads; ASTRA-sim's
own feeder takes every integer kind. What a node does not state is not written.

The schema states times in whole microseconds. A time that is no whole number of them is
written rounded (half up, but never down to 0) and exactly, in the double attribute
``duration_seconds`` or ``start_time_seconds``, at which only our reader looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.formats.chakra.schema import (
    ATTRIBUTE_OF_NODE,
    EXACT_TIMES,
    GROUP,
    INTEGERS,
    INVOLVED,
    LARGEST,
    MICROSECONDS,
    NODE_INPUTS,
    NODE_OUTPUTS,
    Attribute,
    attribute_message,
    check_finite,
    messages,
)
from perfmodel.trace import ABSENT, NODE_KINDS, Ragged, Trace

RESERVED = frozenset((*INTEGERS, *INVOLVED, *EXACT_TIMES, GROUP))


def check_trace(trace: Trace) -> None:
    """Refuse a trace that could be written but not read.

    Raises
    ------
    FormatError
        Identifiers are negative or not different, a node's type is not known, or a number
        does not fit its attribute.
    """
    unique = np.unique(trace.identifiers)
    if len(unique) != trace.nodes or (unique < 0).any():
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
    for name, values, least, largest in columns:
        if values.size and not least <= values.min() <= values.max() <= largest:
            worst = values.max() if values.max() > largest else values.min()
            raise FormatError(f"{name} {worst} should be {least} to {largest}")
    for tensor, size in trace.tensors:
        if not 0 <= size <= LARGEST:
            raise FormatError(f"tensor '{shortened(tensor)}': size {size} should be 0 to {LARGEST}")


def node_frames(trace: Trace) -> Iterator[bytes]:
    """Yield the nodes of a trace as serialised Node messages.

    Every node of a trace that names tensors states `inputs` and `outputs`, because
    ASTRA-sim's memory tracker wants both.

    Raises
    ------
    FormatError
        A number does not fit the schema.
    """
    make, io_info = messages().node, messages().io_info
    start_times, starts_exact = whole_microseconds(trace.start_time)
    durations, durations_exact = whole_microseconds(trace.duration)
    parents = [_lists(trace.data_parents), _lists(trace.control_parents)]
    attributes = [
        (name, kind, getattr(trace, column).tolist())
        for name, (column, kind, _) in INTEGERS.items()
        if (getattr(trace, column) != ABSENT).any()
    ]
    tensors = [(name, _lists(getattr(trace, name))) for name in ("inputs", "outputs")]
    groups, involved = trace.group.tolist(), trace.involved.tolist()
    identifiers, kinds = trace.identifiers.tolist(), trace.kinds.tolist()
    for i, name in enumerate(trace.names):
        try:
            node = make(
                id=identifiers[i],
                name=name,
                type=kinds[i],
                ctrl_deps=next(parents[1]),
                data_deps=next(parents[0]),
                start_time_micros=start_times[i],
                duration_micros=durations[i],
            )
            parts = []
            for label, lists in tensors:
                listed = next(lists)
                if trace.tensors:
                    texts = [str(item) for j in listed for item in trace.tensors[j]]
                    value = Attribute("string_list", texts) if texts else Attribute("", None)
                    parts.append(_framed(attribute_message(label, value)))
            for label, kind, column in attributes:
                if column[i] != ABSENT:
                    parts.append(_integer_frame(label, kind, column[i]))
            if groups[i] != ABSENT:
                parts.append(_text_frame(GROUP, trace.group_names[groups[i]]))
            if involved[i] != ABSENT:
                parts.append(_flags_frame(trace.involved_dimensions[involved[i]]))
            if starts_exact[i]:
                parts.append(_seconds_frame("start_time_seconds", trace.start_time[i]))
            if durations_exact[i]:
                parts.append(_seconds_frame("duration_seconds", trace.duration[i]))
            for label, value in trace.other.get(i, {}).items():
                if label in RESERVED or (label in ("inputs", "outputs") and trace.tensors):
                    raise ValueError(f"attribute '{label}' has a column")
                check_finite(label, value)
                if label in (NODE_INPUTS, NODE_OUTPUTS):
                    values, shapes, types = value.value
                    info = io_info(values=values, shapes=shapes, types=types)
                    getattr(node, label.removeprefix("node.")).CopyFrom(info)
                else:
                    parts.append(_framed(attribute_message(label, value)))
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise FormatError(f"node {identifiers[i]} ({shortened(name)}): {error}") from None
        yield node.SerializeToString() + b"".join(parts)


def whole_microseconds(seconds: NDArray[np.float64]) -> tuple[list[int], list[bool]]:
    """Round times half up to microseconds, positive ones to 1 at least.

    Parameters
    ----------
    seconds : float64[nodes]

    Returns
    -------
    micros : list of int
    inexact : list of bool
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
    return micros.tolist(), (micros / MICROSECONDS != seconds).tolist()


def _lists(ragged: Ragged) -> Iterator[list[int]]:
    """Yield the lists of a ragged column."""
    offsets, values = ragged.offsets.tolist(), ragged.values.tolist()
    return (values[a:b] for a, b in pairwise(offsets))


def _framed(message: Any) -> bytes:
    """Return an attribute as a field of its node."""
    content = message.SerializeToString()
    return ATTRIBUTE_OF_NODE + varint(len(content)) + content


@lru_cache(maxsize=65536)
def _integer_frame(name: str, kind: str, value: int) -> bytes:
    """Return an integer attribute as a field of its node."""
    return _framed(attribute_message(name, Attribute(kind, value)))


@lru_cache(maxsize=4096)
def _text_frame(name: str, value: str) -> bytes:
    """Return a text attribute as a field of its node."""
    return _framed(attribute_message(name, value))


@lru_cache(maxsize=4096)
def _flags_frame(flags: tuple[bool, ...]) -> bytes:
    """Return the involved dimensions as a field of a node."""
    return _framed(attribute_message(INVOLVED[0], Attribute("bool_list", flags)))


def _seconds_frame(name: str, seconds: float) -> bytes:
    """Return an exact time as a field of its node."""
    return _framed(attribute_message(name, float(seconds)))


def varint(value: int) -> bytes:
    """Return a number >= 0 in protobuf's base-128 form."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
