"""Instructions of cores as text, core by core, in plain Python.

Where kernels are not compiled: what `perfmodel.kernels.wafer.trace_lines.format_lines` writes byte
by byte is put together of pieces here, each made once for all lines that say the same. The bytes
are equal, and come fifty times as fast as from that kernel uncompiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfmodel.kernels.wafer.trace_lines import (
    ARGUMENTS,
    BACK,
    BARRIER,
    MULTICAST,
    OPCODE,
    TILE,
    WAITS,
)


class _Pieces(dict[tuple[int, ...], str]):
    """Pieces of text, each made when it is first asked for."""

    def __init__(self, make: Callable[[tuple[int, ...]], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: tuple[int, ...]) -> str:
        self[key] = made = self._make(key)
        return made


def format_cores(
    parts: Sequence[Any], firsts: Sequence[int], table: Any, names: Sequence[str], tiles: Any
) -> Iterator[bytes]:
    """Yield the lines of text of each core.

    Parameters
    ----------
    parts : sequence of int64[lines]
        Which instructions each core has.
    firsts : sequence of int
        Number of each core's first line.
    table : Instructions
        Lines, arguments and destinations, as `format_lines` takes them.
    names : sequence of str
        Of instructions.
    tiles : iterable of (str, list of int)
        Comment of each tile, and the numbers that follow it; negative: nothing more.
    """
    lines, arguments, destinations = table

    def words(key: tuple[int, ...]) -> str:
        opcode, count, *given = key
        if opcode == BARRIER:
            return f" {names[opcode]} " + "".join(f"{half & 0xFFFFFFFF:08x}" for half in given[:2])
        if opcode == MULTICAST:
            source, size, first, many = given
            given = [source, *destinations[first : first + many].tolist(), size]
            count = len(given)
        return " ".join(["", names[opcode], *map(str, given[:count])])

    heads, waited = _Pieces(words), _Pieces(_waits)
    ends = [_comment(*tile) for tile in tiles]
    for rows, first in zip(parts, firsts, strict=True):
        here, given = lines[rows].T.tolist(), arguments[rows].T.tolist()
        numbers = range(first, first + len(rows))
        begins = map(int.__sub__, numbers, here[BACK])
        pieces = zip(
            map(str, numbers),
            map(heads.__getitem__, zip(here[OPCODE], here[ARGUMENTS], *given, strict=True)),
            map(waited.__getitem__, zip(begins, here[WAITS], strict=True)),
            map(ends.__getitem__, here[TILE]),
            strict=True,
        )
        yield "".join(itertools.chain.from_iterable(pieces)).encode()


def _waits(key: tuple[int, ...]) -> str:
    """Return the numbers of instructions that one waits for: the first, and how many."""
    begin, count = key
    return f" [{' '.join(map(str, range(begin, begin + count)))}]" if count > 0 else ""


def _comment(text: str, numbers: Sequence[int]) -> str:
    """Return what stands behind an instruction of a tile."""
    shown = itertools.takewhile(lambda number: number >= 0, numbers)
    return "\t\t;" + text + "".join(f"_{number}" for number in shown) + "\n"
