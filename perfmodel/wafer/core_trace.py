"""Core traces as the wafer workload generator writes them, and folders of them.

One file per core, ``node_<node>/<step>/core_<core>.csv``, which is no table: lines of

    <number> <INSTRUCTION> <arguments> [<numbers that it waits for>]<TAB><TAB>;<comment>

with the brackets left out where nothing is waited for. Banks are counted over the wafer,
sizes are bytes::

    READ bank bytes     WRITE bank bytes            COPY bank bank bytes
    GEMM M K N          ADD sides of a tile         MULTICAST bank banks bytes
    BARRIER 16 hexadecimal digits

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/core_level/common/isa.py``.

``traces/<phase>/node_<node>/<step>/core_<core>.csv``, as the wafer workload generator names
them. Text is made and put into the files whenever so many instructions have come together,
so that memory does not grow with their number.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import (
    DataError,
    FormatError,
    did_you_mean,
)
from perfmodel.base.files import (
    atomic_folder,
    check_writable,
    read_unpacked,
    shortened,
    user_path,
)
from perfmodel.wafer.cores.instructions import (
    CORE,
    MULTICAST,
    OPCODE,
    OPCODES,
    TILE,
    WAITS,
    Instructions,
    joined,
)

# Instructions of cores, as the wafer workload generator writes them.

LARGEST = 2**31  # B
ROOM = 2**22  # B of text that is made at once
_LINE = re.compile(r"(\d+) ([A-Z]+)((?: [0-9a-f]+)*)(?: \[(\d+(?: \d+)*)\])?\t\t;(.*)")
_FEWEST = {"READ": 2, "WRITE": 2, "GEMM": 3, "ADD": 1, "COPY": 3, "MULTICAST": 3, "BARRIER": 1}
_MOST = {"READ": 2, "WRITE": 2, "GEMM": 3, "ADD": 4, "COPY": 3, "BARRIER": 1}
HASH_DIGITS = 16
LONGEST_NUMBER = 21  # B, with a blank
SPARE = 128  # B of a line for all but its comment and the numbers of which it has many


class TracePiece(NamedTuple):
    """Instructions of tiles of one kind, in the order in which they are given to cores.

    A tile's instructions follow one another and run on one core.

    Attributes
    ----------
    instructions : Instructions
        Cores are counted from the node's first, banks over the wafer.
    comment : str
        What all comments begin with.
    numbers : array of int, shape (tiles, n)
        What follows it, each behind an underscore; negative: nothing more.
    """

    instructions: Instructions
    comment: str
    numbers: Integers


def format_pieces(pieces: Sequence[TracePiece], following: Integers) -> Iterator[tuple[int, bytes]]:
    """Yield the text of instructions, core by core, in parts.

    Parameters
    ----------
    pieces : sequence of TracePiece
        Of one node, in order.
    following : array of int, shape (cores,)
        Number of each core's next line; is moved on.

    Yields
    ------
    core : int
    text : bytes
        Whole lines, to be put behind those of the core so far.
    """
    from perfmodel.kernels._jit import compiling
    from perfmodel.kernels.work import kernel_work

    instructions, numbers, comment_of = _together(pieces)
    lines, arguments, _ = instructions
    if not len(lines):
        return
    if arguments.min() < 0:
        raise DataError("instructions: a bank, a size or a side is negative")
    comments = [piece.comment for piece in pieces]
    cores = lines[:, CORE]
    order = np.argsort(cores, kind="stable")
    counts = np.bincount(cores, minlength=len(following))
    starts = np.cumsum(counts) - counts
    firsts = following.copy()
    following += counts
    texts: list[bytes] | None = None
    some = np.flatnonzero(counts)
    with kernel_work(trace_lines=len(order)):
        if not compiling():
            from perfmodel.kernels.wafer.lines_at_once import format_cores

            parts = np.split(order, starts[some[1:]])
            tiles = zip(map(comments.__getitem__, comment_of), numbers.tolist(), strict=True)
            texts = list(format_cores(parts, firsts[some].tolist(), instructions, OPCODES, tiles))
    if texts is not None:  # handed out when the work is over: who takes them does other work
        yield from zip(some.tolist(), texts, strict=True)
        return
    sorted_cores = cores[order]
    identifiers = np.arange(len(order)) + (firsts - starts)[sorted_cores]
    yield from _compiled_parts(
        sorted_cores, order, identifiers, instructions, comments, comment_of, numbers
    )


def _compiled_parts(
    cores: Integers,
    order: Integers,
    identifiers: Integers,
    instructions: Instructions,
    comment_texts: Sequence[str],
    comment_of: Integers,
    numbers: Integers,
) -> Iterator[tuple[int, bytes]]:
    """Yield what `format_pieces` does, by the compiled kernel."""
    from perfmodel.kernels.wafer.trace_lines import format_lines

    lines, arguments, destinations = instructions
    comments, comment_ends = _texts(comment_texts)
    names, name_ends = _texts(OPCODES)
    text = np.empty(_room(lines, arguments, numbers, comment_ends), np.uint8)
    ends = np.zeros(len(order), np.int64)
    first = 0
    while first < len(order):
        until = format_lines(
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
        )
        begin = 0
        part = cores[first:until]
        last_lines = np.flatnonzero(np.append(part[1:] != part[:-1], True))
        for at in last_lines.tolist():
            end = int(ends[first + at])
            yield int(part[at]), text[begin:end].tobytes()
            begin = end
        first = until


def _room(lines: Integers, arguments: Integers, numbers: Integers, comment_ends: Integers) -> int:
    """Return bytes for some lines, of any kind at least one [B]."""
    sent = np.where(lines[:, OPCODE] == MULTICAST, arguments[:, 3], 0)
    others = lines[:, WAITS] + sent + numbers.shape[1]
    most = SPARE + LONGEST_NUMBER * others + np.diff(comment_ends, prepend=0).max()
    return int(min(most.sum(), ROOM + most.max()))


def _together(pieces: Sequence[TracePiece]) -> tuple[Instructions, Integers, Integers]:
    """Return the tables of several pieces as one, with the numbers and the piece of each tile."""
    tiles = np.array([len(piece.numbers) for piece in pieces], np.int64)
    instructions = joined([piece.instructions for piece in pieces])
    counts = [len(piece.instructions.lines) for piece in pieces]
    instructions.lines[:, TILE] += np.repeat(np.cumsum(tiles) - tiles, counts)
    width = max((piece.numbers.shape[1] for piece in pieces), default=0)
    numbers = np.full((tiles.sum(), width), -1, np.int64)
    begin = 0
    for piece in pieces:
        numbers[begin : begin + len(piece.numbers), : piece.numbers.shape[1]] = piece.numbers
        begin += len(piece.numbers)
    return instructions, numbers, np.repeat(np.arange(len(pieces)), tiles)


def _texts(texts: Sequence[str]) -> tuple[np.ndarray, Integers]:
    """Return texts behind one another, and where each ends."""
    coded = [text.encode() for text in texts]
    whole = np.frombuffer(b"".join(coded), np.uint8)
    return whole, np.cumsum([len(text) for text in coded], dtype=np.int64)


class Instruction(NamedTuple):
    """A line.

    Attributes
    ----------
    number : int
    name : str
        One of `OPCODES`.
    arguments : tuple of int
        As in the text; a barrier's digits as one number.
    waits : tuple of int
        Numbers of instructions of the same core.
    comment : str
    """

    number: int
    name: str
    arguments: tuple[int, ...]
    waits: tuple[int, ...]
    comment: str


def read_core_trace(path: str | os.PathLike[str]) -> Iterator[Instruction]:
    """Read a core's instructions, line by line.

    Parameters
    ----------
    path : str or path
        Perhaps packed by gzip.

    Raises
    ------
    FormatError
        The file cannot be read or is no such trace; names file and line.
    """
    text = read_unpacked(path, LARGEST).decode("utf-8-sig", errors="replace")
    yield from parse_core_trace(text, str(path))


def parse_core_trace(text: str, file: str = "core trace") -> Iterator[Instruction]:
    """Read a core's instructions from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_core_trace`.
    """
    for at, line in enumerate(text.splitlines(), 1):
        yield parse_instruction(line, f"{file}, line {at}")


def parse_instruction(line: str, place: str) -> Instruction:
    """Read a line; `place` is what errors call it.

    Raises
    ------
    FormatError
        It is none, or its arguments are not those of its instruction.
    """
    found = _LINE.fullmatch(line)
    if not found:
        raise FormatError(
            f"{place}: '{shortened(line)}' should be such as '2 GEMM 8 896 288 [0 1]', two tabs "
            "and ';' with a comment"
        )
    number, name, given, waits, comment = found.groups()
    if name not in OPCODES:
        raise FormatError(
            f"{place}: unknown instruction '{shortened(name)}'{did_you_mean(name, OPCODES)}"
        )
    words = given.split()
    if not _FEWEST[name] <= len(words) <= _MOST.get(name, len(words)):
        raise FormatError(f"{place}: {name} has {len(words)} arguments")
    if name == "BARRIER":
        if len(words[0]) != HASH_DIGITS:
            raise FormatError(f"{place}: a barrier has {HASH_DIGITS} digits, not {len(words[0])}")
        given_numbers = [int(words[0], 16)]
    else:
        if any(not word.isdigit() or len(word) > 18 for word in words):
            raise FormatError(f"{place}: arguments of {name} should be whole numbers")
        given_numbers = list(map(int, words))
    earlier = tuple(map(int, waits.split())) if waits else ()
    if any(other >= int(number) for other in earlier):
        raise FormatError(f"{place}: instruction {number} waits for one that is not before it")
    return Instruction(int(number), name, tuple(given_numbers), earlier, comment)


def format_instruction(instruction: Instruction) -> str:
    """Return an instruction as a line without its end."""
    number, name, arguments, waits, comment = instruction
    if name == "BARRIER":
        words = [f"{arguments[0]:0{HASH_DIGITS}x}"]
    else:
        words = [str(argument) for argument in arguments]
    if waits:
        words.append(f"[{' '.join(map(str, waits))}]")
    return " ".join([str(number), name, *words]) + f"\t\t;{comment}"


# Folders of core traces: a file per core, written piece by piece.

GATHERED = 2**19
"""Instructions that are held before they become text; about 100 B each."""

FOLDER = "traces"


def write_core_traces(
    folder: str | os.PathLike[str],
    step: str,
    nodes: Iterable[int],
    cores: int,
    pieces: Iterable[tuple[int, Sequence[TracePiece]]],
) -> int:
    """Write the traces of some nodes; a folder of traces that is there is replaced.

    Parameters
    ----------
    folder : str or path
        Where ``traces`` is to stand.
    step : str
        Such as ``decode0``.
    nodes : iterable of int
        Nodes that are written; the pieces of others are passed over.
    cores : int
        Of a node.
    pieces : iterable of (int, sequence of TracePiece)
        Node and instructions, in order.

    Returns
    -------
    int
        Lines written.

    Raises
    ------
    DataError
        The folder cannot be written, or holds something else under that name; nothing is
        left half-written.
    MachineError
        The disk is full, or the like.
    """
    with replaced_traces(user_path(folder) / FOLDER) as temporary:
        places = {node: temporary / "decode" / f"node_{node}" / step for node in nodes}
        texts = CoreTexts(places.values(), cores)
        for node, made in pieces:
            if node in places:
                texts.add(places[node], made)
        return texts.flush()


class CoreTexts:
    """Text of the cores of some nodes: a file per core, written once there is enough of it.

    Parameters
    ----------
    places : iterable of path
        Folder of each node, made here; a core without any instruction has an empty file in it.
    cores : int
        Of a node.
    """

    def __init__(self, places: Iterable[Path], cores: int) -> None:
        self._following = {place: np.zeros(cores, np.int64) for place in places}
        self._gathered: dict[Path, list[TracePiece]] = {}
        self._held = 0
        for place in self._following:
            place.mkdir(parents=True)
            for core in range(cores):
                (place / f"core_{core}.csv").touch()

    def add(self, place: Path, pieces: Sequence[TracePiece]) -> None:
        """Add instructions of a node, behind those that it was given before."""
        self._gathered.setdefault(place, []).extend(pieces)
        self._held += sum(len(piece.instructions.lines) for piece in pieces)
        if self._held >= GATHERED:
            self.flush()

    def flush(self) -> int:
        """Write what is gathered; return the lines that were written so far."""
        for place, pieces in self._gathered.items():
            for core, text in format_pieces(pieces, self._following[place]):
                with (place / f"core_{core}.csv").open("ab") as file:
                    file.write(text)
        self._gathered, self._held = {}, 0
        return sum(int(numbers.sum()) for numbers in self._following.values())


@contextlib.contextmanager
def replaced_traces(target: Path) -> Iterator[Path]:
    """Give a temporary folder beside `target`, renamed to it on success, removed on failure."""
    check_writable(target.parent / f".{target.name}.check")
    if target.exists() and not _is_traces(target):
        raise DataError(
            f"cannot write '{target}': it exists and holds something else than traces of cores"
        )
    with atomic_folder(target) as temporary:
        yield temporary


def _is_traces(target: Path) -> bool:
    """Whether a folder holds nothing but folders of nodes below folders of phases."""
    return target.is_dir() and all(
        phase.is_dir() and all(node.name.startswith("node_") for node in phase.iterdir())
        for phase in target.iterdir()
    )
