"""Node messages of a Chakra trace to the columns of a `Trace`.

Kernels read what is written as usual (`perfmodel.kernels.workloads.trace.parse_nodes`). Any other
node is read by protobuf and checked here; what it says in columns is then handed to the kernels as
usual. So this module alone says what is wrong with a node.

Every integer kind is taken for a whole number, and a bool or a float that is one.
`perfmodel.workloads.formats.chakra.writing` writes what is read here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers, Texts
from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.workloads.formats.chakra.schema import (
    ATTRIBUTE_NAME,
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
from perfmodel.workloads.trace import ABSENT, NODE_KINDS, SCALARS, NamedSizes, Ragged, Trace

if TYPE_CHECKING:
    from perfmodel.kernels.workloads.trace.parse_at_once import Found
    from perfmodel.kernels.workloads.trace.parse_nodes import Lists, Words

Other = dict[int, dict[str, Any]]
AT_ONCE = 0.1
"""Time of a node that NumPy reads with others, of that which a plain kernel takes."""


class Nodes(NamedTuple):
    """Where Node messages stand.

    Attributes
    ----------
    content : bytes
    starts, ends : int64[nodes]
    """

    content: bytes
    starts: Integers
    ends: Integers


def read_nodes(
    nodes: Nodes,
    read_rare: Callable[[int], tuple[bytes, dict[str, Any]]],
    where: Callable[[int], str],
    metadata: Mapping[str, Any],
    version: str,
) -> Trace:
    """Return the trace of Node messages.

    Parameters
    ----------
    nodes : Nodes
    read_rare : function
        Returns `plain_node` of the node at a position.
    where : function
        Says where the node at a position stands, for errors: a text to go ahead.
    metadata, version
        Of the file.

    Raises
    ------
    FormatError
        From `read_rare`; or two nodes have one identifier, or an exact time does not agree with
        the whole microseconds.
    """
    from perfmodel.kernels._jit import compiling
    from perfmodel.kernels.work import kernel_work
    from perfmodel.kernels.workloads.trace import parse_at_once, wire
    from perfmodel.kernels.workloads.trace import parse_nodes as kernel

    count = len(nodes.starts)
    other: Other = {}
    as_read = nodes
    found = None
    with kernel_work(wire_nodes=count * AT_ONCE):
        if not compiling():
            found = parse_at_once.read_nodes(*nodes, WORDS, _word_columns().largest)
    with kernel_work(wire_nodes=0 if found else count):
        if found is None:
            nodes, found = _one_by_one(nodes, read_rare, other)
        table = found.table
        names = _texts(nodes.content, table[wire.NAME_BEGIN], table[wire.NAME_END])
        tensor_names = _texts(nodes.content, *found.tensor_names.T)
    identifiers = table[wire.IDENTIFIER].copy()
    _check_identifiers(identifiers, where)
    columns = {
        column: table[wire.INTEGERS + i].astype(_KINDS[column])
        for i, (column, _, _) in enumerate(INTEGERS.values())
    }
    for i, column in enumerate(EXACT_TIMES.values()):
        stated = table[wire.EXACT_START + i]
        micros = table[wire.START + i]
        columns[column] = _seconds(column, micros, stated, nodes.content, where, identifiers)
    offsets = np.zeros((4, count + 1), np.int64)
    np.cumsum(found.lengths, axis=1, out=offsets[:, 1:])
    data, control, inputs, outputs = (
        Ragged(offsets[kind], found.lists[kind])
        for kind in (kernel.DATA, kernel.CONTROL, kernel.INPUTS, kernel.OUTPUTS)
    )
    return Trace(
        identifiers=identifiers,
        names=names,
        kinds=table[wire.KIND].astype(np.int8),
        **columns,
        group=table[wire.GROUP].astype(np.int32),
        involved=table[wire.INVOLVED].astype(np.int32),
        data_parents=data,
        control_parents=control,
        inputs=inputs,
        outputs=outputs,
        group_names=tuple(text.decode() for text in found.groups),
        involved_dimensions=tuple(tuple(map(bool, text)) for text in found.flags),
        involved_attributes=_involved_attributes(as_read.content) if found.flags else (),
        unlisted=(_unlisted(as_read, b"inputs"), _unlisted(as_read, b"outputs")),
        tensors=NamedSizes(tensor_names, *found.tensors.T.copy()),
        other=other,
        metadata=metadata,
        version=version,
    )


def _one_by_one(
    nodes: Nodes, read_rare: Callable[[int], tuple[bytes, dict[str, Any]]], other: Other
) -> tuple[Nodes, Found]:
    """Return nodes as kernels read them, and what they say; inside `kernel_work`."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.workloads.trace import parse_nodes as kernel
    from perfmodel.kernels.workloads.trace import wire
    from perfmodel.kernels.workloads.trace.parse_at_once import Found

    count = len(nodes.starts)
    at, rare, lengths = numbers(kernel.COUNTS), numbers(count), numbers(4 * count)
    _count(nodes, np.arange(count), False, lengths, at, rare)
    again = np.flatnonzero(rare)
    if again.size:
        nodes = _with_plain(nodes, again, read_rare, other)
        _count(nodes, again, True, lengths, at, rare)
    lists, at = _lists(at), numbers(kernel.COUNTS)
    filled = numbers(wire.COLUMNS * count, ABSENT)
    starts, ends = plain(nodes.starts), plain(nodes.ends)
    kernel.fill_nodes(readable_bytes(nodes.content), starts, ends, _words(), lists, filled, at)
    lists = kernel.Lists(*(np.asarray(items, np.int64) for items in lists))
    return nodes, Found(
        np.asarray(filled, np.int64).reshape(wire.COLUMNS, count),
        np.reshape(lengths, (-1, 4)).T,
        list(lists[:4]),
        _pieces(nodes.content, lists.group_texts[: 2 * at[kernel.GROUPS]]),
        _pieces(nodes.content, lists.flag_texts[: 2 * at[kernel.FLAGS]]),
        lists.tensor_texts[: 2 * at[kernel.TENSOR_NAMES]].reshape(-1, 2),
        lists.tensors[: 2 * at[kernel.TENSORS]].reshape(-1, 2),
    )


def _involved_attributes(content: bytes) -> tuple[str, ...]:
    """Return which names of involved dimensions stand in serialised nodes."""
    return tuple(
        name for name in INVOLVED if bytes([ATTRIBUTE_NAME, len(name)]) + name.encode() in content
    )


def _unlisted(nodes: Nodes, name: bytes) -> int:
    """Return the position of the first node without an attribute of a name, or `ABSENT`."""
    attribute = bytes([ATTRIBUTE_NAME, len(name)]) + name
    found = nodes.content.count(attribute)
    if found in (0, len(nodes.starts)):
        return ABSENT if found == len(nodes.starts) else 0
    bounds = zip(nodes.starts.tolist(), nodes.ends.tolist(), strict=True)
    missing = (at for at, (a, b) in enumerate(bounds) if nodes.content.find(attribute, a, b) < 0)
    return next(missing, ABSENT)


_KINDS = {name: kind for name, kind, _ in SCALARS}


def _count(
    nodes: Nodes,
    which: Integers,
    trusted: bool,
    lengths: Any,
    at: Any,
    rare: Any,
) -> None:
    """Count what some of the nodes hold; inside `kernel_work`."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.workloads.trace import parse_nodes as kernel

    kernel.count_nodes(
        readable_bytes(nodes.content),
        plain(which),
        plain(nodes.starts),
        plain(nodes.ends),
        trusted,
        _words(),
        _lists(numbers(kernel.COUNTS)),
        lengths,
        at,
        rare,
    )


def readable_bytes(content: bytes) -> Any:
    """Return bytes as kernels read them; inside `kernel_work`."""
    from perfmodel.kernels._jit import compiling

    return np.frombuffer(content, np.uint8) if compiling() else content


def _words() -> Words:
    """Return the names of attributes as kernels read them; inside `kernel_work`."""
    from perfmodel.kernels.plain import plain

    words = _word_columns()
    return plain(words._replace(letters=readable_bytes(bytes(words.letters))))


@functools.cache
def _word_columns() -> Words:
    from perfmodel.kernels.workloads.trace.parse_nodes import Words

    lengths = np.array([len(word) for word in WORDS], np.int64)
    return Words(
        "".join(WORDS).encode(),
        np.cumsum(lengths),
        np.argsort(lengths, kind="stable"),
        np.searchsorted(np.sort(lengths), np.arange(lengths.max() + 2)),
        np.array([largest for _, _, largest in INTEGERS.values()], np.int64),
    )


def _lists(at: Any) -> Lists:
    """Return room for what was counted; inside `kernel_work`."""
    from perfmodel.kernels.workloads.trace import parse_nodes as kernel

    def different(count: int) -> tuple[Any, Any]:
        return numbers(2 << int(count).bit_length()), numbers(2 * count)

    tensors = at[kernel.INPUTS] + at[kernel.OUTPUTS]
    counts = (at[kernel.GROUPS], at[kernel.FLAGS], tensors)
    rooms = [room for count in counts for room in different(count)]
    rooms += [numbers(tensors), *different(tensors)]
    return kernel.Lists(*(numbers(at[kind]) for kind in range(4)), *rooms)


def numbers(count: int, value: int = 0) -> Any:
    """Return room for whole numbers, as kernels fill it fastest; inside `kernel_work`."""
    from perfmodel.kernels._jit import compiling

    if not compiling():
        return [value] * count
    return np.full(count, value, np.int64) if value else np.zeros(count, np.int64)


def _with_plain(
    nodes: Nodes,
    which: Integers,
    read_rare: Callable[[int], tuple[bytes, dict[str, Any]]],
    other: Other,
) -> Nodes:
    """Return nodes of which some have been read by protobuf: they follow the content anew."""
    parts, sizes = [nodes.content], []
    for position in which.tolist():
        part, kept = read_rare(position)
        parts.append(part)
        sizes.append(len(part))
        if kept:
            other[position] = kept
    starts, ends = nodes.starts.copy(), nodes.ends.copy()
    ends[which] = len(nodes.content) + np.cumsum(sizes)
    starts[which] = ends[which] - sizes
    return Nodes(b"".join(parts), starts, ends)


def _pieces(content: bytes, places: NDArray[np.int64]) -> list[bytes]:
    """Return what stands at places: begins and ends in turn."""
    return [content[begin:end] for begin, end in places.reshape(-1, 2).tolist()]


def _texts(content: bytes, begins: Integers, ends: Integers) -> Texts:
    """Return texts that stand in the content; inside `kernel_work`."""
    from perfmodel.kernels._jit import compiling
    from perfmodel.kernels.workloads.trace import parse_nodes as kernel

    where = np.cumsum(ends - begins)
    if not compiling():
        return Texts(b"".join(_pieces(content, np.stack([begins, ends], axis=1))), where)
    letters = np.empty(where[-1] if where.size else 0, np.uint8)
    kernel.copy_texts(readable_bytes(content), begins.copy(), ends.copy(), letters)
    return Texts(letters.tobytes(), where)


def _check_identifiers(identifiers: Integers, where: Callable[[int], str]) -> None:
    """Refuse two nodes with one identifier."""
    if (np.diff(identifiers) > 0).all():
        return
    order = np.argsort(identifiers, kind="stable")
    known = identifiers[order]
    again = order[1:][known[1:] == known[:-1]]
    if again.size:
        second = int(again.min())
        raise FormatError(f"{where(second)}a second node with the id {identifiers[second]}")


def _seconds(
    column: str,
    micros: Integers,
    places: Integers,
    content: bytes,
    where: Callable[[int], str],
    identifiers: Integers,
) -> NDArray[np.float64]:
    """Return a column of times [s]: exact where a double stands at a place."""
    seconds = micros / MICROSECONDS
    stated = np.flatnonzero(places != ABSENT)
    if not stated.size:
        return seconds
    eight = np.frombuffer(content, np.uint8)[places[stated, None] + np.arange(8)]
    exact = seconds.copy()
    exact[stated] = eight.view("<f8")[:, 0]
    far = np.flatnonzero(np.abs(exact - seconds) > 1.0 / MICROSECONDS + 1e-9 * seconds)
    if far.size:
        node = int(far[0])
        raise FormatError(
            f"{where(node)}node {identifiers[node]}: {column}_seconds {exact[node]!r} does not "
            f"agree with {column}_micros {micros[node]}"
        )
    return exact


def plain_node(node: Any) -> tuple[bytes, dict[str, Any]]:
    """Return a Node message as kernels read it, and its attributes that have no column.

    Parameters
    ----------
    node : Node
        It is changed.

    Raises
    ------
    FormatError
        An identifier, type, time or attribute is out of its range or occurs twice.
    """
    if node.id > LARGEST:
        raise FormatError(f"id {node.id} should be below 2^63")
    try:
        if not 0 < node.type < len(NODE_KINDS):
            raise FormatError(f"type {node.type}; known: 1 to {len(NODE_KINDS) - 1}")
        if max(node.start_time_micros, node.duration_micros) > LARGEST:
            raise FormatError("start_time_micros and duration_micros should be below 2^63")
        for parents in (node.data_deps, node.ctrl_deps):
            if parents and max(parents) > LARGEST:
                raise FormatError(f"waits for id {max(parents)}; ids are below 2^63")
        columns: dict[str, Any] = {}
        other: dict[str, Any] = {}
        for attribute in node.attr:
            _sort(attribute, columns, other)
        for key, label in ((NODE_INPUTS, "inputs"), (NODE_OUTPUTS, "outputs")):
            if node.HasField(label):
                info = getattr(node, label)
                value = Attribute(IO_INFO, (info.values, info.shapes, info.types))
                _keep(key, value, other)
                node.ClearField(label)
    except FormatError as error:
        raise FormatError(f"node {node.id} ({shortened(node.name)}): {error}") from None
    del node.attr[:]
    node.attr.extend(attribute_message(name, value) for name, value in columns.items())
    return node.SerializeToString(), other


def _sort(attribute: Any, columns: dict[str, Any], other: dict[str, Any]) -> None:
    """Put an attribute of a node where it belongs."""
    name = attribute.name
    which = attribute.WhichOneof("value")
    if name in INTEGERS:
        value = getattr(attribute, which) if which else None
        if type(value) is not int:
            value = _whole_number(name, value)
        if not 0 <= value <= INTEGERS[name][2]:
            raise FormatError(f"{name} {value} should be 0 to {INTEGERS[name][2]}")
        _set(columns, name, Attribute("int64", value))
    elif name in ("inputs", "outputs"):
        if which == "string_list":
            texts = _tensors(name, attribute.string_list.values)
            if texts:
                _set(columns, name, Attribute("string_list", texts))
        elif which is not None:  # not ASTRA-sim's meaning of the name
            _keep(name, attribute_value(attribute), other)
    elif name == GROUP and which == "string_val":
        _set(columns, name, attribute.string_val)
    elif name in INVOLVED and which == "bool_list":
        flags = Attribute("bool_list", tuple(attribute.bool_list.values))
        if columns.setdefault(INVOLVED[0], flags) != flags:
            raise FormatError(f"{' and '.join(INVOLVED)} differ")
    elif name in EXACT_TIMES and which == "double_val":
        seconds = attribute.double_val
        if not 0 <= seconds < math.inf:
            raise FormatError(f"{name} {seconds} should be finite and not negative")
        _set(columns, name, seconds)
    elif name in WORDS:
        raise FormatError(f"attribute '{name}' has the kind '{which}'")
    else:
        _keep(name, attribute_value(attribute), other)


def _set(columns: dict[str, Any], name: str, value: Any) -> None:
    """Set an attribute that has a column."""
    if name in columns:
        raise FormatError(f"attribute '{name}' twice")
    columns[name] = value


def _keep(name: str, value: Any, other: dict[str, Any]) -> None:
    """Keep an attribute that has no column."""
    if name in other:
        raise FormatError(f"attribute '{shortened(name)}' twice")
    if type(value) is float or type(value) is Attribute:
        check_finite(name, value)
    other[name] = value


def _tensors(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return names and sizes in turn, sizes as whole numbers."""
    if len(values) % 2:
        raise FormatError(f"'{name}' should be names and sizes in turn, not {len(values)} texts")
    return tuple(
        str(tensor_size(name, text)) if place % 2 else text for place, text in enumerate(values)
    )


@lru_cache(maxsize=4096)
def tensor_size(name: str, text: str) -> int:
    """Return the size of a tensor [B]; ASTRA-sim cuts off decimals, which STAGE writes.

    Raises
    ------
    FormatError
        The text is no number from 0 to 2^63 - 1.
    """
    try:
        size = int(text) if text.isdecimal() and len(text) < 20 else math.floor(float(text))
    except (ValueError, OverflowError):
        size = -1
    if not 0 <= size <= LARGEST:
        raise FormatError(f"'{name}': size '{shortened(text)}' should be a number of bytes")
    return size


def _whole_number(name: str, value: Any) -> int:
    """Return a bool or float as the integer it is."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    shown = value if isinstance(value, float) else type(value).__name__
    raise FormatError(f"{name} should be a whole number, but is {shown}")


def trace_of_messages(
    parts: Sequence[bytes],
    where: Callable[[int], str],
    metadata: Mapping[str, Any],
    version: str,
) -> Trace:
    """Return the trace of serialised Node messages; `where` as of `read_nodes`.

    Raises
    ------
    FormatError
        As of `plain_node` and `read_nodes`.
    """
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = np.append(np.int64(0), ends)[: len(parts)]

    def read_rare(position: int) -> tuple[bytes, dict[str, Any]]:
        try:
            return plain_node(messages().node.FromString(parts[position]))
        except FormatError as error:
            raise FormatError(f"{where(position)}{error}") from None

    return read_nodes(Nodes(b"".join(parts), starts, ends), read_rare, where, metadata, version)
