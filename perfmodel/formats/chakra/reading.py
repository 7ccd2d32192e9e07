"""Node messages of a Chakra trace to the columns of a `Trace`.

Every integer kind is taken for a whole number, and a bool or a float that is one.
`perfmodel.formats.chakra.writing` writes what is read here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.formats.chakra.schema import (
    EXACT_TIMES,
    GROUP,
    INTEGERS,
    INVOLVED,
    IO_INFO,
    LARGEST,
    MICROSECONDS,
    NODE_INPUTS,
    NODE_OUTPUTS,
    Attribute,
    attribute_value,
    check_finite,
)
from perfmodel.trace import ABSENT, NODE_KINDS, SCALARS, Ragged, Trace

COLUMNS = frozenset((*INVOLVED, *EXACT_TIMES, GROUP, "inputs", "outputs"))


class NodeReader:
    """Collect Node messages; `build` returns the trace.

    Memory stays proportional to what was added: identical names of groups, tensors and
    dimensions are kept once, a column without entries is made at the end.
    """

    def __init__(self) -> None:
        self.identifiers = array("q")
        self.names: list[str] = []
        self.kinds = array("b")
        self.times = {"start_time": array("q"), "duration": array("q")}
        self.parents = {"data": array("q"), "control": array("q")}
        self.parent_offsets = {"data": array("q", [0]), "control": array("q", [0])}
        self.tensors: dict[tuple[str, int], int] = {}
        self.tensor_lists = {"inputs": array("q"), "outputs": array("q")}
        self.tensor_offsets = {"inputs": array("q", [0]), "outputs": array("q", [0])}
        self.columns: dict[str, dict[int, Any]] = {
            column: {} for column, _, _ in (*SCALARS, ("group", 0, 0), ("involved", 0, 0))
        }
        self.group_names: dict[str, int] = {}
        self.involved_dimensions: dict[tuple[bool, ...], int] = {}
        self.other: dict[int, dict[str, Any]] = {}
        self.seen: set[int] = set()

    def add(self, node: Any) -> None:
        """Add a Node message.

        Raises
        ------
        FormatError
            An identifier, type, time or attribute is out of its range or occurs twice.
        """
        position = len(self.names)
        identifier = node.id
        if identifier > LARGEST:
            raise FormatError(f"id {identifier} should be below 2^63")
        if identifier in self.seen:
            raise FormatError(f"a second node with the id {identifier}")
        self.seen.add(identifier)
        name, kind = node.name, node.type
        try:
            if not 0 < kind < len(NODE_KINDS):
                raise FormatError(f"type {kind}; known: 1 to {len(NODE_KINDS) - 1}")
            if max(node.start_time_micros, node.duration_micros) > LARGEST:
                raise FormatError("start_time_micros and duration_micros should be below 2^63")
            for label, parents in (("data", node.data_deps), ("control", node.ctrl_deps)):
                if parents:
                    self._add_parents(label, parents)
                self.parent_offsets[label].append(len(self.parents[label]))
            self._add_attributes(node, position)
            for direction, listed in self.tensor_lists.items():
                self.tensor_offsets[direction].append(len(listed))
        except FormatError as error:
            raise FormatError(f"node {identifier} ({shortened(name)}): {error}") from None
        self.identifiers.append(identifier)
        self.names.append(name)
        self.kinds.append(kind)
        self.times["start_time"].append(node.start_time_micros)
        self.times["duration"].append(node.duration_micros)

    def _add_parents(self, label: str, parents: Sequence[int]) -> None:
        """Append the identifiers of a node's parents."""
        try:
            self.parents[label].extend(parents)
        except OverflowError:
            raise FormatError(f"waits for id {max(parents)}; ids are below 2^63") from None

    def _add_attributes(self, node: Any, position: int) -> None:
        """Put a node's attributes into their columns, or into `other`."""
        columns = self.columns
        for attribute in node.attr:
            name = attribute.name
            entry = INTEGERS.get(name)
            if entry is None:
                if name in COLUMNS:
                    self._add_column(name, attribute, position)
                else:
                    self._keep(name, attribute_value(attribute), position)
                continue
            which = attribute.WhichOneof("value")
            value = getattr(attribute, which) if which else None
            if type(value) is not int:
                value = _whole_number(name, value)
            if not 0 <= value <= entry[2]:
                raise FormatError(f"{name} {value} should be 0 to {entry[2]}")
            column = columns[entry[0]]
            if position in column:
                raise FormatError(f"attribute '{name}' twice")
            column[position] = value
        for key, label in ((NODE_INPUTS, "inputs"), (NODE_OUTPUTS, "outputs")):
            if node.HasField(label):
                info = getattr(node, label)
                value = Attribute(IO_INFO, (info.values, info.shapes, info.types))
                self._keep(key, value, position)

    def _add_column(self, name: str, attribute: Any, position: int) -> None:
        """Place an attribute that has a column, but not of integers."""
        which = attribute.WhichOneof("value")
        if name in self.tensor_lists:
            if which == "string_list":
                self._add_tensors(name, attribute.string_list.values)
            elif which is not None:  # not ASTRA-sim's meaning of the name
                self._keep(name, attribute_value(attribute), position)
        elif name == GROUP and which == "string_val":
            index = ABSENT  # no name: all ranks
            if attribute.string_val:
                index = self.group_names.setdefault(attribute.string_val, len(self.group_names))
            self._set("group", name, position, index)
        elif name in INVOLVED and which == "bool_list":
            flags = tuple(attribute.bool_list.values)
            index = self.involved_dimensions.setdefault(flags, len(self.involved_dimensions))
            if self.columns["involved"].get(position, index) != index:
                raise FormatError(f"{' and '.join(INVOLVED)} differ")
            self.columns["involved"][position] = index
        elif name in EXACT_TIMES and which == "double_val":
            seconds = attribute.double_val
            if not 0 <= seconds < math.inf:
                raise FormatError(f"{name} {seconds} should be finite and not negative")
            self._set(EXACT_TIMES[name], name, position, seconds)
        else:
            raise FormatError(f"attribute '{name}' has the kind '{which}'")

    def _add_tensors(self, name: str, values: Sequence[str]) -> None:
        """Append what a node reads or writes: names and sizes in turn."""
        listed, tensors = self.tensor_lists[name], self.tensors
        if len(listed) != self.tensor_offsets[name][-1]:
            raise FormatError(f"attribute '{name}' twice")
        if len(values) % 2:
            raise FormatError(
                f"'{name}' should be names and sizes in turn, not {len(values)} texts"
            )
        texts = iter(values)
        for tensor, size in zip(texts, texts, strict=True):
            key = (tensor, tensor_size(name, size))
            listed.append(tensors.setdefault(key, len(tensors)))

    def _set(self, column: str, name: str, position: int, value: Any) -> None:
        """Set an entry of a column that has none yet."""
        if position in self.columns[column]:
            raise FormatError(f"attribute '{name}' twice")
        self.columns[column][position] = value

    def _keep(self, name: str, value: Any, position: int) -> None:
        """Keep an attribute that has no column."""
        kept = self.other.setdefault(position, {})
        if name in kept:
            raise FormatError(f"attribute '{shortened(name)}' twice")
        if type(value) is float or type(value) is Attribute:
            check_finite(name, value)
        kept[name] = value

    def build(self, metadata: Mapping[str, Any], version: str) -> Trace:
        """Return the trace of the nodes added.

        Raises
        ------
        FormatError
            An exact time does not agree with the whole microseconds.
        """
        columns = {}
        kinds = {name: kind for name, kind, _ in SCALARS}
        for name, entries in self.columns.items():
            if name in EXACT_TIMES.values():
                continue
            column = np.full(len(self.names), ABSENT, kinds.get(name, np.int32))
            _fill(column, entries)
            columns[name] = column
        for name in EXACT_TIMES.values():
            columns[name] = self._seconds(name)
        return Trace(
            identifiers=np.array(self.identifiers, np.int64),
            names=tuple(self.names),
            kinds=np.array(self.kinds, np.int8),
            **columns,
            data_parents=_ragged(self.parent_offsets["data"], self.parents["data"]),
            control_parents=_ragged(self.parent_offsets["control"], self.parents["control"]),
            inputs=_ragged(self.tensor_offsets["inputs"], self.tensor_lists["inputs"]),
            outputs=_ragged(self.tensor_offsets["outputs"], self.tensor_lists["outputs"]),
            group_names=tuple(self.group_names),
            involved_dimensions=tuple(self.involved_dimensions),
            tensors=tuple(self.tensors),
            other=self.other,
            metadata=metadata,
            version=version,
        )

    def _seconds(self, name: str) -> NDArray[np.float64]:
        """Return a column of times [s]."""
        seconds = np.array(self.times[name], np.int64) / MICROSECONDS
        exact = seconds.copy()
        _fill(exact, self.columns[name])
        far = np.flatnonzero(np.abs(exact - seconds) > 1.0 / MICROSECONDS + 1e-9 * seconds)
        if far.size:
            node = self.identifiers[far[0]]
            raise FormatError(
                f"node {node}: {name}_seconds {exact[far[0]]!r} does not agree with "
                f"{name}_micros {self.times[name][far[0]]}"
            )
        return exact


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


def _fill(column: NDArray[Any], entries: Mapping[int, Any]) -> None:
    """Set the entries of a column."""
    positions = np.fromiter(entries, np.int64, len(entries))
    column[positions] = np.fromiter(entries.values(), column.dtype, len(entries))


def _ragged(offsets: array[int], values: array[int]) -> Ragged:
    """Return lists as one column."""
    return Ragged(np.array(offsets, np.int64), np.array(values, np.int64))
