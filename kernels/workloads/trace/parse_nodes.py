"""Node messages of Chakra traces to columns.

A node is read here if it is written as protobuf writes it and says nothing but what has a
column. Any other one, wrong or only unusual, is left to the caller.

A node is walked twice by the same code: first to count what its lists hold, then to fill them.
Where kernels run uncompiled, numbers stand in lists in place of arrays, which are slower there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels._jit import jit, jit_lean, jit_lean_inline
from perfmodel.kernels.workloads.trace import wire
from perfmodel.kernels.workloads.trace.wire import read_piece, read_varint

# What is counted, and where lists of a node begin.
DATA = 0
CONTROL = 1
INPUTS = 2
OUTPUTS = 3
GROUPS = 4
FLAGS = 5  # lists of involved dimensions
TENSOR_NAMES = 6
TENSORS = 7
COUNTS = 8

LARGEST_KIND = 7
POINT = ord(".")
ZERO = ord("0")
MOST_EXACT = 10**15  # whole numbers below are exact as doubles
MOST_DIGITS = 19  # of a number below 2^63
LARGEST = 2**63 - 1
NOT_FINITE = 0x7FF0  # upper half of a double that is none
HALF = 2**31 - 1
SPREAD = 0x9E3779B1  # odd, about 2^32 over the golden ratio: hashes (Knuth 1998, section 6.4)


class Words(NamedTuple):
    """Names of attributes that have columns.

    Attributes
    ----------
    letters : bytes or uint8
        Names one behind another.
    ends : int64[words]
    by_length : int64[words]
        Positions of words, shorter ones first.
    first : int64[longest + 2]
        Where in `by_length` the words of a length begin.
    largest : int64[integers]
        Values of the integers among them.
    """

    letters: bytes | NDArray[np.uint8]
    ends: NDArray[np.int64]
    by_length: NDArray[np.int64]
    first: NDArray[np.int64]
    largest: NDArray[np.int64]


class Lists(NamedTuple):
    """What nodes hold besides numbers; all to fill.

    Attributes
    ----------
    data, control, inputs, outputs : int64[items]
    group_slots, group_texts : int64[slots], int64[2 groups]
        Different names of groups: begin and end in the content, in turn, and a hash table of them.
    flag_slots, flag_texts : int64[slots], int64[2 lists]
        Different lists of involved dimensions, likewise.
    tensor_slots, tensor_texts : int64[slots], int64[2 names]
        Different names of tensors, likewise.
    first_tensors : int64[names]
        The first tensor of each name.
    pair_slots, tensors : int64[slots], int64[2 tensors]
        Different tensors: number of the name and size in turn, and a hash table of those that are
        not the first of their name.
    """

    data: NDArray[np.int64]
    control: NDArray[np.int64]
    inputs: NDArray[np.int64]
    outputs: NDArray[np.int64]
    group_slots: NDArray[np.int64]
    group_texts: NDArray[np.int64]
    flag_slots: NDArray[np.int64]
    flag_texts: NDArray[np.int64]
    tensor_slots: NDArray[np.int64]
    tensor_texts: NDArray[np.int64]
    first_tensors: NDArray[np.int64]
    pair_slots: NDArray[np.int64]
    tensors: NDArray[np.int64]


@jit
def count_nodes(content, which, starts, ends, trusted, words, lists, lengths, at, rare):
    """Count what nodes hold in lists.

    Parameters
    ----------
    content : bytes or uint8[size]
    which : int64[walked]
        Nodes to walk.
    starts, ends : int64[nodes]
        Where each begins and ends in the content.
    trusted : bool
        Protobuf has read the texts; else one that is not ASCII makes a node rare.
    words : Words
    lists : Lists
        Not used.
    lengths : int64[4 nodes]
        To fill, node by node: data parents, control parents, inputs and outputs of each node.
    at : int64[COUNTS]
        To add to.
    rare : bool[nodes]
        To fill: the node is not for these kernels, and not counted.
    """
    before = at.copy()
    for node in which:
        for kind in range(COUNTS):
            before[kind] = at[kind]
        begin, end = starts[node], ends[node]
        if _walk(content, begin, end, trusted, words, lists, lengths, 0, 0, at, False):
            rare[node] = False
            for kind in range(4):
                lengths[4 * node + kind] = at[kind] - before[kind]
        else:
            rare[node] = True
            for kind in range(COUNTS):
                at[kind] = before[kind]


@jit
def fill_nodes(content, starts, ends, words, lists, table, at):
    """Fill the columns of nodes that have been counted.

    Parameters
    ----------
    content, starts, ends, words
        As of `count_nodes`.
    lists : Lists
        With room for what was counted.
    table : int64[COLUMNS nodes]
        To fill, column by column; `ABSENT` so far.
    at : int64[COUNTS]
        Zeros; as many different texts as there are, afterwards.
    """
    nodes = len(starts)
    for node in range(nodes):
        begin, end = starts[node], ends[node]
        _walk(content, begin, end, True, words, lists, table, node, nodes, at, True)


@jit
def copy_texts(content, begins, ends, letters):
    """Put texts that stand at places of the content one behind another."""
    at = 0
    for text in range(len(begins)):
        for place in range(begins[text], ends[text]):
            letters[at] = content[place]
            at += 1


@jit_lean_inline
def _walk(content, place, end, trusted, words, lists, table, node, nodes, at, fill):
    """Read a node; tell whether all of it is understood."""
    first_input = at[INPUTS]
    first_output = at[OUTPUTS]
    identifier = kind = start = duration = 0
    name = name_end = 0
    seen = 0  # a bit for each word
    while place < end:
        tag = content[place]
        place += 1
        if tag == wire.ATTRIBUTE_TAG:
            begin, place = read_piece(content, place, end)
            if place < 0:
                return False
            number, value = _name(content, begin, place, words)
            if number < 0:
                return False
            if number >= wire.TENSOR_WORDS:
                first = first_input if number == wire.TENSOR_WORDS else first_output
                if not _tensors(content, value, place, trusted, number, first, lists, at, fill):
                    return False
            else:
                if number == wire.INVOLVED_WORDS + 1:
                    number = wire.INVOLVED_WORDS
                bit = 1 << number
                if seen & bit or not _value(
                    content,
                    value,
                    place,
                    trusted,
                    number,
                    words,
                    lists,
                    table,
                    node,
                    nodes,
                    at,
                    fill,
                ):
                    return False
                seen |= bit
        elif tag == wire.NAME_TAG:
            name, name_end = read_piece(content, place, end)
            place = name_end
            if place < 0 or not (trusted or _is_ascii(content, name, name_end)):
                return False
        elif tag in (wire.DATA_PACKED, wire.CONTROL_PACKED):
            begin, stop = read_piece(content, place, end)
            place = begin
            while place < stop:
                parent, place = read_varint(content, place, stop)
                if place < 0:
                    return False
                _add_parent(parent, tag == wire.DATA_PACKED, lists, at, fill)
            if stop < 0:
                return False
        else:
            value, place = read_varint(content, place, end)
            if place < 0:
                return False
            if tag == wire.ID_TAG:
                identifier = value
            elif tag == wire.KIND_TAG:
                kind = value
            elif tag == wire.DURATION_TAG:
                duration = value
            elif tag == wire.START_TAG:
                start = value
            elif tag in (wire.DATA_TAG, wire.CONTROL_TAG):
                _add_parent(value, tag == wire.DATA_TAG, lists, at, fill)
            else:
                return False
    if fill:
        table[nodes * wire.IDENTIFIER + node] = identifier
        table[nodes * wire.KIND + node] = kind
        table[nodes * wire.START + node] = start
        table[nodes * wire.DURATION + node] = duration
        table[nodes * wire.NAME_BEGIN + node] = name
        table[nodes * wire.NAME_END + node] = name_end
    return 1 <= kind <= LARGEST_KIND


@jit_lean_inline
def _add_parent(parent, data, lists, at, fill):
    """Append a parent to the data or the control parents."""
    if data:
        if fill:
            lists.data[at[DATA]] = parent
        at[DATA] += 1
    else:
        if fill:
            lists.control[at[CONTROL]] = parent
        at[CONTROL] += 1


@jit_lean_inline
def _is_ascii(content, begin, end):
    """Tell whether a text is ASCII."""
    bits = 0
    for place in range(begin, end):
        bits |= content[place]
    return bits < 128


@jit_lean_inline
def _name(content, begin, end, words):
    """Return which word is the name of an attribute, or `BAD`, and where its value begins."""
    if begin + 2 > end or content[begin] != wire.FIRST_FIELD:
        return wire.BAD, wire.BAD
    length = int(content[begin + 1])
    last = begin + 1 + length
    if length + 2 > len(words.first) or last >= end:
        return wire.BAD, wire.BAD
    for entry in range(words.first[length], words.first[length + 1]):
        word = words.by_length[entry]
        same = length
        shift = words.ends[word] - 1
        while same > 0 and content[last + same - length] == words.letters[shift + same - length]:
            same -= 1
        if same == 0:
            return word, last + 1
    return wire.BAD, wire.BAD


@jit_lean_inline
def _value(content, place, end, trusted, number, words, lists, table, node, nodes, at, fill):
    """Read the value of an attribute that has a column."""
    tag, place = read_varint(content, place, end)
    if place < 0:
        return False
    if number < wire.GROUP_WORD:
        value, place = read_varint(content, place, end)
        if place != end:
            return False
        if tag in (wire.INT32_VALUE, wire.UINT32_VALUE):
            if value > HALF:
                return False
        elif tag == wire.BOOL_VALUE:
            if value > 1:
                return False
        elif tag != wire.INT64_VALUE and tag != wire.UINT64_VALUE:
            return False
        if fill:
            table[nodes * (wire.INTEGERS + number) + node] = value
        return value <= words.largest[number]
    if number >= wire.EXACT_WORDS:
        if tag != wire.DOUBLE_VALUE or end - place != 8:
            return False
        if fill:
            table[nodes * (wire.EXACT_START + number - wire.EXACT_WORDS) + node] = place
        return trusted or content[place + 7] << 8 | content[place + 6] < NOT_FINITE
    begin, stop = read_piece(content, place, end)
    if stop != end:
        return False
    if number == wire.GROUP_WORD:
        if tag != wire.STRING_VALUE:
            return False
        if begin == end:  # all ranks; protobuf has seen that it is the only name
            return trusted
        if not (trusted or _is_ascii(content, begin, end)):
            return False
        if fill:
            index = _numbered(content, begin, end, lists.group_slots, lists.group_texts, at[GROUPS])
            at[GROUPS] += index == at[GROUPS]
            table[nodes * wire.GROUP + node] = index
        else:
            at[GROUPS] += 1
        return True
    if tag != wire.BOOL_LIST:
        return False
    if begin < end:
        flags, stop = read_piece(content, begin + 1, end)
        if content[begin] != wire.FIRST_FIELD or stop != end:
            return False
        begin = flags
        for flag in range(begin, end):
            if content[flag] > 1:
                return False
    if fill:
        index = _numbered(content, begin, end, lists.flag_slots, lists.flag_texts, at[FLAGS])
        at[FLAGS] += index == at[FLAGS]
        table[nodes * wire.INVOLVED + node] = index
    else:
        at[FLAGS] += 1
    return True


@jit_lean_inline
def _tensors(content, place, end, trusted, number, first, lists, at, fill):
    """Read what a node reads or writes: names and sizes in turn."""
    if place == end:
        return True  # the attribute has no value
    kind = INPUTS if number == wire.TENSOR_WORDS else OUTPUTS
    tag, place = read_varint(content, place, end)
    if place < 0 or tag != wire.STRING_LIST or at[kind] != first:
        return False
    place, stop = read_piece(content, place, end)
    if stop != end:
        return False
    while place < end:
        if content[place] != wire.FIRST_FIELD:
            return False
        name, name_end = read_piece(content, place + 1, end)
        if name_end < 0 or name_end >= end or content[name_end] != wire.FIRST_FIELD:
            return False
        digit, place = read_piece(content, name_end + 1, end)
        if place <= digit or place - digit > MOST_DIGITS:
            return False
        if not (trusted or _is_ascii(content, name, name_end)):
            return False
        size = 0
        while digit < place and content[digit] != POINT:
            figure = content[digit] - ZERO
            if figure < 0 or figure > 9 or size > (LARGEST - figure) // 10:
                return False
            size = 10 * size + figure
            digit += 1
        if digit < place and not 0 < size < MOST_EXACT:
            return False
        for decimal in range(digit + 1, place):  # STAGE writes 64.0
            if content[decimal] != ZERO:
                return False
        if fill:
            text = _numbered(
                content, name, name_end, lists.tensor_slots, lists.tensor_texts, at[TENSOR_NAMES]
            )
            tensor = lists.first_tensors[text]
            if text == at[TENSOR_NAMES]:
                at[TENSOR_NAMES] += 1
                tensor = lists.first_tensors[text] = at[TENSORS]
                lists.tensors[2 * tensor] = text
                lists.tensors[2 * tensor + 1] = size
            elif lists.tensors[2 * tensor + 1] != size:
                tensor = _numbered_pair(text, size, lists.pair_slots, lists.tensors, at[TENSORS])
            at[TENSORS] += tensor == at[TENSORS]
            if kind == INPUTS:
                lists.inputs[at[INPUTS]] = tensor
            else:
                lists.outputs[at[OUTPUTS]] = tensor
        at[kind] += 1
    return True


@jit_lean
def _numbered(content, begin, end, slots, texts, count):
    """Return the number of a text among the different ones so far; a new one is added."""
    mask = len(slots) - 1
    mixed = end - begin
    place = begin
    while place + 4 <= end:
        four = content[place] | content[place + 1] << 8
        four |= content[place + 2] << 16 | content[place + 3] << 24
        mixed = ((mixed ^ four) * SPREAD) & LARGEST
        place += 4
    while place < end:
        mixed = ((mixed ^ content[place]) * SPREAD) & LARGEST
        place += 1
    slot = (mixed ^ mixed >> 32) & mask
    while slots[slot] > 0:
        known = slots[slot] - 1
        shift = texts[2 * known] - begin
        if texts[2 * known + 1] - shift == end:
            place = begin
            while place < end and content[place] == content[place + shift]:
                place += 1
            if place == end:
                return known
        slot = (slot + 1) & mask
    slots[slot] = count + 1
    texts[2 * count] = begin
    texts[2 * count + 1] = end
    return count


@jit_lean
def _numbered_pair(first, second, slots, pairs, count):
    """Return the number of a pair among the different ones so far; a new one is added."""
    mask = len(slots) - 1
    mixed = (first & HALF) * 40503 + (second & HALF) * 30011 + (second >> 31) * 50021
    slot = (mixed ^ mixed >> 15) & mask
    while slots[slot] > 0:
        known = slots[slot] - 1
        if pairs[2 * known] == first and pairs[2 * known + 1] == second:
            return known
        slot = (slot + 1) & mask
    slots[slot] = count + 1
    pairs[2 * count] = first
    pairs[2 * count + 1] = second
    return count
