"""Instructions as text, byte by byte."""

from __future__ import annotations

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.wafer.trace_steps import (
    ARGUMENTS,
    BACK,
    BARRIER,
    MULTICAST,
    OPCODE,
    TILE,
    WAITS,
)

DIGITS = 20  # of a number of 64 bits
SPARE = 128  # B of a line besides numbers of which it has any number and its comment

ZERO = 48
LETTER_A = 97 - 10
SPACE = 32
TAB = 9
LINE_END = 10
SEMICOLON = 59
UNDERSCORE = 95
OPENING = 91
CLOSING = 93


@jit_inline
def _number(text, at, value):
    """Write a whole number of at least 0; return where it ends."""
    end = at + 1
    rest = value // 10
    while rest > 0:
        end += 1
        rest //= 10
    place = end
    while True:
        place -= 1
        text[place] = ZERO + value % 10
        value //= 10
        if value == 0:
            break
    return end


@jit
def format_lines(
    order,
    first,
    lines,
    arguments,
    destinations,
    identifiers,
    names,
    name_ends,
    comments,
    comment_ends,
    comment_of,
    numbers,
    text,
    ends,
):
    """Write instructions as lines of text, until all are written or there is no room for one.

    Parameters
    ----------
    order : int64[lines]
        Which instruction each line is.
    first : int
        First line to write.
    lines, arguments : int64
        Tables of `perfmodel.kernels.wafer.trace_steps`. A barrier's arguments are the upper and
        the lower half of 64 bits. A multicast's are its source, its bytes, its first
        destination in `destinations` and how many it has.
    destinations : int64
        Banks.
    identifiers : int64[lines]
        Of each line, in the order of lines.
    names, name_ends : uint8, int64
        Names of instructions behind one another, and where each ends.
    comments, comment_ends : uint8, int64
        Texts of comments, likewise.
    comment_of : int64[tiles]
        Which text a tile has.
    numbers : int64[tiles, n]
        What follows it, each behind an underscore; negative: nothing.
    text : uint8[room]
        To fill.
    ends : int64[lines]
        To fill: where each line ends.

    Returns
    -------
    int
        First line that is not written.
    """
    at = 0
    room = text.shape[0]
    for line in range(first, order.shape[0]):
        row = order[line]
        opcode = lines[row, OPCODE]
        tile = lines[row, TILE]
        comment = comment_of[tile]
        comment_begin = comment_ends[comment - 1] if comment > 0 else 0
        wanted = SPARE + (DIGITS + 1) * (lines[row, WAITS] + numbers.shape[1])
        wanted += comment_ends[comment] - comment_begin
        if opcode == MULTICAST:
            wanted += (DIGITS + 1) * arguments[row, 3]
        if at + wanted > room:
            return line
        identifier = identifiers[line]
        at = _number(text, at, identifier)
        text[at] = SPACE
        at += 1
        for letter in range(name_ends[opcode - 1] if opcode > 0 else 0, name_ends[opcode]):
            text[at] = names[letter]
            at += 1
        if opcode == BARRIER:
            text[at] = SPACE
            at += 1
            for half in range(2):
                for digit in range(8):
                    value = (arguments[row, half] >> (28 - 4 * digit)) & 15
                    text[at] = value + (ZERO if value < 10 else LETTER_A)
                    at += 1
        elif opcode == MULTICAST:
            text[at] = SPACE
            at = _number(text, at + 1, arguments[row, 0])
            for place in range(arguments[row, 2], arguments[row, 2] + arguments[row, 3]):
                text[at] = SPACE
                at = _number(text, at + 1, destinations[place])
            text[at] = SPACE
            at = _number(text, at + 1, arguments[row, 1])
        else:
            for place in range(lines[row, ARGUMENTS]):
                text[at] = SPACE
                at = _number(text, at + 1, arguments[row, place])
        if lines[row, WAITS] > 0:
            text[at] = SPACE
            text[at + 1] = OPENING
            at += 2
            begin = identifier - lines[row, BACK]
            for other in range(begin, begin + lines[row, WAITS]):
                if other > begin:
                    text[at] = SPACE
                    at += 1
                at = _number(text, at, other)
            text[at] = CLOSING
            at += 1
        text[at] = TAB
        text[at + 1] = TAB
        text[at + 2] = SEMICOLON
        at += 3
        for letter in range(comment_begin, comment_ends[comment]):
            text[at] = comments[letter]
            at += 1
        for place in range(numbers.shape[1]):
            if numbers[tile, place] < 0:
                break
            text[at] = UNDERSCORE
            at = _number(text, at + 1, numbers[tile, place])
        text[at] = LINE_END
        at += 1
        ends[line] = at
    return order.shape[0]
