"""Instructions of cores as columns, and columns as text.

An instruction is a line of three tables: what it is and where (`OPCODE` to `WAITS`), its
arguments, and the tile that it belongs to. What it waits for are instructions of the same
tile that follow one another: so many, the first of them so many lines before it.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit, jit_inline, jit_lean

# Instructions of tiles: a product, a reduction, and what they wait for.

READ = 0
WRITE = 1
GEMM = 2
ADD = 3
COPY = 4
MULTICAST = 5
BARRIER = 6

# Columns of a line.
OPCODE = 0
CORE = 1
TILE = 2
ARGUMENTS = 3  # how many
BACK = 4  # lines from the first instruction that it waits for
WAITS = 5  # how many it waits for
COLUMNS = 6

MOST_ARGUMENTS = 4


@jit
def _put(lines, at, opcode, core, tile, back, waits):
    lines[at, OPCODE] = opcode
    lines[at, CORE] = core
    lines[at, TILE] = tile
    lines[at, ARGUMENTS] = 2 if opcode <= WRITE else 3
    lines[at, BACK] = back
    lines[at, WAITS] = waits


@jit
def product_lines(
    entries, bank, size, out_entries, out_bank, out_size, cores, repeats, sides, lines, arguments
):
    """Write the instructions of products of tiles: reads, products, writes.

    Products wait for all reads; those of a second kind, as of scores with values, also for
    those of the first; writes wait for the last products.

    Parameters
    ----------
    entries : int64[tiles + 1]
        Where the reads of each tile begin, and the end.
    bank, size : int64[reads]
        Banks that are read, and bytes [B].
    out_entries, out_bank, out_size : int64
        The same of what is written.
    cores, repeats : int64[tiles]
        Core of each tile, and how often each of its products is repeated.
    sides : int64[tiles, 6]
        M, K and N of the product and of a second one; M of 0 where there is none.
    lines : int64[lines, COLUMNS]
    arguments : int64[lines, MOST_ARGUMENTS]
        Tables to fill.

    Returns
    -------
    int
        Lines written.
    """
    at = 0
    for tile in range(cores.shape[0]):
        begin = at
        core = cores[tile]
        for entry in range(entries[tile], entries[tile + 1]):
            _put(lines, at, READ, core, tile, 0, 0)
            arguments[at, 0] = bank[entry]
            arguments[at, 1] = size[entry]
            at += 1
        last = begin
        for kind in range(2):
            if sides[tile, 3 * kind] == 0:
                continue
            last = at
            for _ in range(repeats[tile]):
                _put(lines, at, GEMM, core, tile, at - begin, last - begin)
                arguments[at, 0] = sides[tile, 3 * kind]
                arguments[at, 1] = sides[tile, 3 * kind + 1]
                arguments[at, 2] = sides[tile, 3 * kind + 2]
                at += 1
        done = at
        for entry in range(out_entries[tile], out_entries[tile + 1]):
            _put(lines, at, WRITE, core, tile, at - last, done - last)
            arguments[at, 0] = out_bank[entry]
            arguments[at, 1] = out_size[entry]
            at += 1
    return at


@jit
def reduction_lines(
    parts, entries, bank, size, out_entries, out_bank, out_size, cores, sides, lines, arguments
):
    """Write the instructions of sums of tiles: the first is read, each other read and added.

    An addition waits for what it reads and for the addition before it, or the first reads;
    writes wait for the last addition.

    Parameters
    ----------
    parts : int64[sums + 1]
        Where the tiles of each sum begin, and the end.
    entries : int64[tiles + 1]
        Where the reads of each tile begin, and the end.
    bank, size : int64[reads]
    out_entries, out_bank, out_size : int64
        What each sum writes, as in `product_lines`.
    cores : int64[sums]
    sides : int64[sums, MOST_ARGUMENTS]
        Sides of a tile; 0 behind the last.
    lines, arguments : int64
        Tables to fill, as in `product_lines`.

    Returns
    -------
    int
        Lines written.
    """
    at = 0
    for total in range(cores.shape[0]):
        core = cores[total]
        number = 0
        while number < MOST_ARGUMENTS and sides[total, number] > 0:
            number += 1
        held = at  # the first of what holds the sum so far
        for part in range(parts[total], parts[total + 1]):
            for entry in range(entries[part], entries[part + 1]):
                _put(lines, at, READ, core, total, 0, 0)
                arguments[at, 0] = bank[entry]
                arguments[at, 1] = size[entry]
                at += 1
            if part > parts[total]:
                _put(lines, at, ADD, core, total, at - held, at - held)
                lines[at, ARGUMENTS] = number
                for side in range(number):
                    arguments[at, side] = sides[total, side]
                held = at
                at += 1
        done = at
        for entry in range(out_entries[total], out_entries[total + 1]):
            _put(lines, at, WRITE, core, total, at - held, done - held)
            arguments[at, 0] = out_bank[entry]
            arguments[at, 1] = out_size[entry]
            at += 1
    return at


# Instructions of attention: blocks of queries against keys and values, chunk by chunk.


# Columns of a task.
TASK_CORE = 0
REPEATS = 1  # heads of keys and values, one after the other
QUERIES = 2  # rows of scores: queries times the heads that share keys
DEPTH = 3  # of queries and keys
KEYS = 4
VALUES = 5  # elements of a value
QUERY_BYTES = 6
KEY_BYTES = 7  # of one key
VALUE_BYTES = 8  # of one value; 0 where it is part of the key
WRITTEN_BYTES = 9
WHOLE = 10  # 1: all keys of the queries are here, and the result is divided by its sum
TASK_COLUMNS = 11


@jit_inline
def _line(lines, arguments, at, core, opcode, back, one, two, three):
    lines[at, 0] = opcode
    lines[at, 1] = core
    lines[at, 2] = 0
    lines[at, 3] = 3 if opcode == GEMM else 2
    lines[at, 4] = back
    lines[at, 5] = back
    arguments[at, 0] = one
    arguments[at, 1] = two
    arguments[at, 2] = three
    arguments[at, 3] = 0


@jit_lean
def count_attention_lines(tasks, chunk):
    """Count the instructions that `attention_lines` writes."""
    count = 0
    for task in range(tasks.shape[0]):
        chunks = (tasks[task, KEYS] + chunk - 1) // chunk
        each = 4 + (tasks[task, VALUE_BYTES] > 0)
        one = 1 + each * chunks + (chunks - 1) + tasks[task, WHOLE] + 1
        count += tasks[task, REPEATS] * one
    return count


@jit_lean
def attention_lines(tasks, chunk, lines, arguments):
    """Write the instructions of tasks: queries read once, then keys in chunks.

    Of each chunk the scores are a product; the exponents of all of them less the largest so
    far, and their sum, an addition of their size; their product with the values is the other.
    From the second chunk on the sums so far are scaled to the new largest score and added to.

    Parameters
    ----------
    tasks : int64[tasks, TASK_COLUMNS]
    chunk : int
        Keys at a time.
    lines : int64[lines, 6]
        To fill: opcode, core, tile, number of arguments, lines back to the first that it waits
        for, how many it waits for.
    arguments : int64[lines, 4]
        To fill.

    Returns
    -------
    int
        Lines written.
    """
    at = 0
    for task in range(tasks.shape[0]):
        core = tasks[task, TASK_CORE]
        queries = tasks[task, QUERIES]
        values = tasks[task, VALUES]
        for _ in range(tasks[task, REPEATS]):
            _line(
                lines,
                arguments,
                at,
                core,
                READ,
                0,
                core,
                tasks[task, QUERY_BYTES],
                0,
            )
            at += 1
            first = 0
            while first < tasks[task, KEYS]:
                keys = min(chunk, tasks[task, KEYS] - first)
                size = keys * tasks[task, KEY_BYTES]
                _line(lines, arguments, at, core, READ, 0, core, size, 0)
                wanted = 2 if first == 0 else 1
                depth = tasks[task, DEPTH]
                _line(
                    lines,
                    arguments,
                    at + 1,
                    core,
                    GEMM,
                    wanted,
                    queries,
                    depth,
                    keys,
                )
                _line(lines, arguments, at + 2, core, ADD, 1, queries, keys, 0)
                at += 3
                wanted = 1
                if tasks[task, VALUE_BYTES] > 0:
                    size = keys * tasks[task, VALUE_BYTES]
                    _line(lines, arguments, at, core, READ, 0, core, size, 0)
                    at += 1
                    wanted = 2
                _line(lines, arguments, at, core, GEMM, wanted, queries, keys, values)
                at += 1
                if first > 0:
                    _line(lines, arguments, at, core, ADD, 1, queries, values, 0)
                    at += 1
                first += keys
            if tasks[task, WHOLE]:
                _line(lines, arguments, at, core, ADD, 1, queries, values, 0)
                at += 1
            _line(
                lines,
                arguments,
                at,
                core,
                WRITE,
                1,
                core,
                tasks[task, WRITTEN_BYTES],
                0,
            )
            at += 1
    return at


# Instructions as text, byte by byte.

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
        Tables of `perfmodel.kernels.wafer.trace_lines`. A barrier's arguments are the upper and
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
