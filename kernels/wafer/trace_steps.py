"""Instructions of tiles: a product, a reduction, and what they wait for.

An instruction is a line of three tables: what it is and where (`OPCODE` to `WAITS`), its
arguments, and the tile that it belongs to. What it waits for are instructions of the same
tile that follow one another: so many, the first of them so many lines before it.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit

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
