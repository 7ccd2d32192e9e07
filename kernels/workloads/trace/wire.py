"""Protobuf's wire format, as far as nodes of Chakra traces need it.

Content is `bytes` where kernels run uncompiled and uint8 where they are compiled.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit, jit_lean_inline

BAD = -1  # in place of a place: what stands here is for protobuf to explain

# Columns of a table of nodes, one behind another. What a node does not state is `ABSENT`.
IDENTIFIER = 0
KIND = 1
START = 2  # [µs]
DURATION = 3  # [µs]
INTEGERS = 4  # attributes from here on, in the order of the words
INTEGER_WORDS = 10  # how many: those of the schema's table (`formats.chakra.schema.INTEGERS`)
GROUP = INTEGERS + INTEGER_WORDS
INVOLVED = GROUP + 1
EXACT_START = GROUP + 2  # where in the content the eight bytes of a double stand; then DURATION
NAME_BEGIN = GROUP + 4
NAME_END = GROUP + 5
COLUMNS = GROUP + 6
ABSENT = -1

# Attributes that have columns, by their position among the words.
GROUP_WORD = INTEGER_WORDS
INVOLVED_WORDS = GROUP_WORD + 1  # two names of one attribute
EXACT_WORDS = GROUP_WORD + 3  # start and duration
TENSOR_WORDS = GROUP_WORD + 5  # inputs and outputs

# Tags: 8 × field number + wire type.
ID_TAG = 0x08
NAME_TAG = 0x12
KIND_TAG = 0x18
CONTROL_TAG = 0x20
CONTROL_PACKED = 0x22
DATA_TAG = 0x28
DATA_PACKED = 0x2A
START_TAG = 0x30
DURATION_TAG = 0x38
ATTRIBUTE_TAG = 0x52
FIRST_FIELD = 0x0A  # a text or a message in field 1
DOUBLE_VALUE = 0x19
INT32_VALUE = 0x38
INT64_VALUE = 0x48
UINT32_VALUE = 0x58
UINT64_VALUE = 0x68
BOOL_VALUE = 0xD8
BOOL_LIST = 0xE2
STRING_VALUE = 0xEA
STRING_LIST = 0xF2

LONGEST_LENGTH = 5  # bytes of a message's length; ASTRA-sim's feeder refuses longer ones


@jit_lean_inline
def read_varint(content, place, end):
    """Return the number below 2^63 at a place, and the place behind it, or `BAD`."""
    value = 0
    shift = 0
    while place < end and shift < 63:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    return 0, BAD


@jit_lean_inline
def read_piece(content, place, end):
    """Return where the text or message begins whose length stands at a place, and its end."""
    length, begin = read_varint(content, place, end)
    if begin < 0 or length > end - begin:
        return 0, BAD
    return begin, begin + length


@jit
def read_frames(content, place, begins, starts, ends):
    """Find the messages of a file, each behind its length.

    Parameters
    ----------
    content : bytes or uint8[size]
    place : int
        Where the first begins.
    begins, starts, ends : int64[messages]
        To fill: where each begins with its length, and with its content, and ends. Arrays
        without room: only count.

    Returns
    -------
    messages : int
    place : int
        Where they end: that of the content, or of the first one that is not as it should be
        (empty, or longer than what is left).
    """
    size = len(content)
    fill = begins.shape[0] > 0
    count = 0
    while place < size:
        start, end = read_piece(content, place, size)
        if end <= start or start - place > LONGEST_LENGTH:
            break
        if fill:
            begins[count] = place
            starts[count] = start
            ends[count] = end
        count += 1
        place = end
    return count, place
