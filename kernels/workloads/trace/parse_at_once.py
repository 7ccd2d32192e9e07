"""Node messages of Chakra traces to columns, as NumPy reads all nodes at once.

Where kernels are not compiled, and thirty times as fast as `perfmodel.kernels.workloads.trace.
parse_nodes` is there. All nodes are walked field by field, side by side. What is read is what
those kernels read of files whose nodes are all understood; any other file is left to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.workloads.trace import parse_nodes, wire

Integers = NDArray[np.int64]
PADDING = bytes(16)  # behind the content: a number is read before its end is looked at
NUMBERS = {
    wire.ID_TAG: wire.IDENTIFIER,
    wire.KIND_TAG: wire.KIND,
    wire.START_TAG: wire.START,
    wire.DURATION_TAG: wire.DURATION,
}
LISTS = {wire.DATA_PACKED: parse_nodes.DATA, wire.CONTROL_PACKED: parse_nodes.CONTROL}
LONGEST_NUMBER = 9  # bytes of one below 2^63


class Found(NamedTuple):
    """What nodes say.

    Attributes
    ----------
    table : int64[COLUMNS, nodes]
    lengths : int64[4, nodes]
        Data parents, control parents, inputs and outputs of each node.
    lists : list of int64[items]
        These.
    groups, flags : list of bytes
        Different names of groups, and lists of involved dimensions.
    tensor_names : int64[names, 2]
        Where the different ones begin and end.
    tensors : int64[tensors, 2]
        Number of the name, and size.
    """

    table: Integers
    lengths: Integers
    lists: list[Integers]
    groups: list[bytes]
    flags: list[bytes]
    tensor_names: Integers
    tensors: Integers


class UnusualError(Exception):
    """A node is not for this module."""


def find_frames(content: bytes, place: int) -> tuple[Integers, Integers, Integers, int]:
    """Return where messages begin with their lengths and contents, and end, and where all do."""
    found: list[tuple[int, int, int]] = []
    size = len(content)
    padded = content + PADDING
    while place < size:
        length, start = padded[place], place + 1
        if length > 127:
            length, start = length & 127 | padded[start] << 7, start + 1
            if length >= 1 << 14:
                start, end = wire.read_piece(content, place, size)
                length = end - start
        end = start + length
        if length <= 0 or end > size or start - place > wire.LONGEST_LENGTH:
            break
        found.append((place, start, end))
        place = end
    columns = np.array(found, np.int64).reshape(-1, 3).T.copy()
    return columns[0], columns[1], columns[2], place


def read_nodes(
    content: bytes, starts: Integers, ends: Integers, words: Sequence[str], largest: Integers
) -> Found | None:
    """Return what nodes say; None where one of them is not understood.

    Parameters
    ----------
    content : bytes
    starts, ends : int64[nodes]
        Where each begins and ends in the content.
    words : sequence of str
        Names of attributes that have columns.
    largest : int64[integers]
        Values of the integers among them.
    """
    try:
        return _Walk(content, starts, ends, words, largest).found()
    except UnusualError:
        return None


def _insist(*conditions: Any) -> None:
    for condition in conditions:
        if not np.all(condition):
            raise UnusualError


class _Walk:
    """All nodes, each at its next field."""

    def __init__(
        self,
        content: bytes,
        starts: Integers,
        ends: Integers,
        words: Sequence[str],
        largest: Integers,
    ) -> None:
        self.content = content
        self.bytes = np.frombuffer(content + PADDING, np.uint8)
        self.high = np.flatnonzero(self.bytes > 127)  # bytes that are not ASCII
        self.words: dict[int, list[tuple[bytes, int]]] = {}
        for number, word in enumerate(words):
            self.words.setdefault(len(word), []).append((word.encode(), number))
        self.largest = largest
        self.ends = ends
        self.place = starts.astype(np.int64)
        self.table = np.full((wire.COLUMNS, len(starts)), wire.ABSENT, np.int64)
        self.table[[*NUMBERS.values(), wire.NAME_BEGIN, wire.NAME_END]] = 0
        self.stops = np.zeros((2, len(starts)), np.int64)  # of groups and flags
        self.pieces: list[list[Any]] = [[] for _ in range(4)]  # nodes, begins and ends of lists

    def found(self) -> Found:
        """Walk, and return what nodes say."""
        rows = np.flatnonzero(self.place < self.ends)
        while rows.size:
            tags = self.bytes[self.place[rows]]
            for tag in np.flatnonzero(np.bincount(tags)).tolist():
                self._field(tag, rows[tags == tag])
            rows = rows[self.place[rows] < self.ends[rows]]
        kind = self.table[wire.KIND]
        _insist(self.place == self.ends, kind >= 1, kind <= parse_nodes.LARGEST_KIND)
        groups = self._numbered(wire.GROUP, self.stops[0])
        flags = self._numbered(wire.INVOLVED, self.stops[1])
        _insist([max(text, default=0) <= 1 for text in flags])
        parents = [self._parents(kind) for kind in (parse_nodes.DATA, parse_nodes.CONTROL)]
        lengths, lists = zip(*parents, strict=True)
        own, tensors, names, different = self._tensors()
        return Found(
            self.table,
            np.stack([*lengths, *own]),
            [*lists, *tensors],
            groups,
            flags,
            names,
            different,
        )

    def _field(self, tag: int, rows: Integers) -> None:
        """Read a field of some nodes."""
        place = self.place[rows] + 1
        if tag in NUMBERS:
            self.table[NUMBERS[tag], rows], self.place[rows] = self._numbers(place)
            return
        begin, end = self._piece(place, self.ends[rows])
        if tag == wire.ATTRIBUTE_TAG:
            self._attributes(rows, begin, end)
        elif tag == wire.NAME_TAG:
            self._insist_ascii(begin, end)
            self.table[wire.NAME_BEGIN, rows], self.table[wire.NAME_END, rows] = begin, end
        elif tag in LISTS:
            self.pieces[LISTS[tag]].append((rows, begin, end))
        else:
            raise UnusualError
        self.place[rows] = end

    def _numbers(self, place: Integers) -> tuple[Integers, Integers]:
        """Return numbers at places, and the places behind them."""
        value = self.bytes[place].astype(np.int64)
        place = place + 1
        rows = np.flatnonzero(value > 127)
        value[rows] &= 127
        shift = 7
        while rows.size:
            _insist(shift < 7 * LONGEST_NUMBER)
            byte = self.bytes[place[rows]].astype(np.int64)
            value[rows] |= (byte & 127) << shift
            place[rows] += 1
            rows = rows[byte > 127]
            shift += 7
        return value, place

    def _piece(self, place: Integers, end: Integers) -> tuple[Integers, Integers]:
        """Return where texts or messages begin whose lengths stand at places, and their ends."""
        length, begin = self._numbers(place)
        _insist(length <= end - begin)
        return begin, begin + length

    def _insist_ascii(self, begin: Integers, end: Integers) -> None:
        _insist(np.searchsorted(self.high, begin) == np.searchsorted(self.high, end))

    def _attributes(self, rows: Integers, begin: Integers, end: Integers) -> None:
        """Read an attribute of some nodes."""
        length = self.bytes[begin + 1].astype(np.int64)
        value = begin + 2 + length
        _insist(self.bytes[begin] == wire.FIRST_FIELD, value <= end)
        known = 0
        for size in np.flatnonzero(np.bincount(length)).tolist():
            these = np.flatnonzero(length == size)
            names = self.bytes[begin[these, None] + 2 + np.arange(size)].copy()
            names = names.view(f"S{max(size, 1)}").reshape(-1) if size else names[:, :0].sum(axis=1)
            for word, number in self.words.get(size, ()):
                those = these[names == word]
                if those.size:
                    known += those.size
                    self._attribute(number, rows[those], value[those], end[those])
        _insist(known == rows.size)

    def _attribute(self, word: int, rows: Integers, place: Integers, end: Integers) -> None:
        """Read an attribute with a column of some nodes; its value stands at a place."""
        if word >= wire.TENSOR_WORDS:
            some = place < end
            rows, place, end = rows[some], place[some], end[some]
        tag, place = self._numbers(place)
        if word < wire.GROUP_WORD:
            value, place = self._numbers(place)
            most = np.full(tag.size, wire.BAD)
            most[np.isin(tag, (wire.INT32_VALUE, wire.UINT32_VALUE))] = parse_nodes.HALF
            most[tag == wire.BOOL_VALUE] = 1
            most[np.isin(tag, (wire.INT64_VALUE, wire.UINT64_VALUE))] = parse_nodes.LARGEST
            _insist(place == end, value <= most, value <= self.largest[word])
            self._set(wire.INTEGERS + word, rows, value)
        elif word >= wire.TENSOR_WORDS:
            begin, stop = self._piece(place, end)
            _insist(tag == wire.STRING_LIST, stop == end)
            kind = parse_nodes.INPUTS + word - wire.TENSOR_WORDS
            self.pieces[kind].append((rows, begin, end))
        elif word >= wire.EXACT_WORDS:
            _insist(tag == wire.DOUBLE_VALUE, end - place == 8)
            upper = self.bytes[place + 7].astype(np.int64) << 8 | self.bytes[place + 6]
            _insist(upper < parse_nodes.NOT_FINITE)
            self._set(wire.EXACT_START + word - wire.EXACT_WORDS, rows, place)
        else:
            self._text(word, rows, tag, self._piece(place, end), end)

    def _text(self, word: int, rows: Integers, tag: Integers, places: Any, end: Integers) -> None:
        """Keep where names of groups, or lists of involved dimensions, stand."""
        begin, stop = places
        _insist(stop == end)
        flags = word > wire.GROUP_WORD
        if flags:
            some = begin < end
            packed = begin[some]
            begin[some], stop = self._piece(packed + 1, end[some])
            _insist(self.bytes[packed] == wire.FIRST_FIELD, stop == end[some])
        else:
            _insist(begin < end)
            self._insist_ascii(begin, end)
        _insist(tag == (wire.BOOL_LIST if flags else wire.STRING_VALUE))
        self._set(wire.INVOLVED if flags else wire.GROUP, rows, begin)
        self.stops[int(flags), rows] = end

    def _set(self, column: int, rows: Integers, values: Integers) -> None:
        """Set a column of nodes that do not have it yet."""
        _insist(self.table[column, rows] == wire.ABSENT)
        self.table[column, rows] = values

    def _numbered(self, column: int, stops: Integers) -> list[bytes]:
        """Put numbers of texts in place of where they begin; return the different ones."""
        begins = self.table[column]
        rows = np.flatnonzero(begins != wire.ABSENT)
        places = zip(begins[rows].tolist(), stops[rows].tolist(), strict=True)
        numbers, texts = _different([self.content[begin:end] for begin, end in places])
        self.table[column, rows] = numbers
        return texts

    def _lists(self, kind: int) -> tuple[Integers, Integers, Integers]:
        """Return nodes, begins and ends of lists, in the order of the content."""
        nothing = np.zeros((3, 0), np.int64)
        found = np.concatenate([nothing, *map(np.stack, self.pieces[kind])], axis=1)
        nodes, begins, ends = found[:, np.argsort(found[1], kind="stable")]
        return nodes, begins, ends

    def _parents(self, kind: int) -> tuple[Integers, Integers]:
        """Return how many parents nodes have, and all of them."""
        nodes, begins, ends = self._lists(kind)
        sizes = ends - begins
        total = int(sizes.sum())
        places = np.arange(total) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
        bytes_ = self.bytes[places].astype(np.int64)
        last = bytes_ < 128
        _insist(self.bytes[ends[sizes > 0] - 1] < 128)
        counted = np.append(0, np.cumsum(last))
        bounds = np.append(0, np.cumsum(sizes))
        counts = np.diff(counted[bounds])
        lengths = np.bincount(nodes, counts, self.place.size).astype(np.int64)
        first = np.append(0, np.flatnonzero(last) + 1)
        digit = np.arange(total) - np.repeat(first[:-1], np.diff(first))
        _insist(digit < LONGEST_NUMBER)
        parts = (bytes_ & 127) << 7 * digit
        return lengths, np.add.reduceat(parts, first[:-1]) if total else parts

    def _tensors(self) -> tuple[list[Integers], list[Integers], Integers, Integers]:
        """Return how many inputs and outputs nodes have, all of them, their names and tensors."""
        found = [self._lists(kind) for kind in (parse_nodes.INPUTS, parse_nodes.OUTPUTS)]
        _insist(*(np.bincount(nodes, minlength=1) <= 1 for nodes, _, _ in found))
        nodes, begins, ends = np.concatenate(found, axis=1)
        outputs = np.arange(nodes.size) >= found[0][0].size
        parts = [np.zeros((6, 0), np.int64)]
        rows = np.flatnonzero(begins < ends)
        place = begins.copy()
        while rows.size:
            end = ends[rows]
            _insist(self.bytes[place[rows]] == wire.FIRST_FIELD)
            name, name_end = self._piece(place[rows] + 1, end)
            self._insist_ascii(name, name_end)
            _insist(name_end < end, self.bytes[name_end] == wire.FIRST_FIELD)
            digit, stop = self._piece(name_end + 1, end)
            _insist(digit < stop, stop - digit <= parse_nodes.MOST_DIGITS)
            parts.append(np.stack([nodes[rows], outputs[rows], name, name_end, digit, stop]))
            place[rows] = stop
            rows = rows[stop < end]
        items = np.concatenate(parts, axis=1)
        items = items[:, np.argsort(items[2], kind="stable")]
        numbers, names, tensors = self._different_tensors(items[2:].T.tolist())
        of = [items[1] == output for output in (0, 1)]
        lengths = [np.bincount(items[0, own], minlength=self.place.size) for own in of]
        return lengths, [numbers[own] for own in of], names, tensors

    def _different_tensors(self, places: list[list[int]]) -> tuple[Integers, Integers, Integers]:
        """Return numbers of tensors, where different names stand, and the different tensors."""
        names: dict[bytes, int] = {}
        where: list[tuple[int, int]] = []
        sizes: dict[bytes, int] = {}
        pairs: dict[tuple[int, int], int] = {}
        numbers = []
        for begin, end, digit, stop in places:
            name = names.setdefault(self.content[begin:end], len(names))
            if name == len(where):
                where.append((begin, end))
            text = self.content[digit:stop]
            size = sizes[text] if text in sizes else sizes.setdefault(text, _size(text))
            numbers.append(pairs.setdefault((name, size), len(pairs)))
        texts, tensors = (np.array(rows, np.int64).reshape(-1, 2) for rows in (where, list(pairs)))
        return np.array(numbers, np.int64), texts, tensors


def _different(texts: Sequence[bytes]) -> tuple[Integers, list[bytes]]:
    """Return the number of each text among the different ones, and these."""
    numbers: dict[bytes, int] = {}
    return (
        np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64),
        list(numbers),
    )


def _size(text: bytes) -> int:
    """Return the size of a tensor; STAGE writes 64.0."""
    whole, point, decimals = text.partition(b".")
    _insist(whole.isdigit(), not decimals.strip(b"0"))
    size = int(whole)
    _insist(size <= parse_nodes.LARGEST, not point or 0 < size < parse_nodes.MOST_EXACT)
    return size
