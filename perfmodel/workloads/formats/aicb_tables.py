"""Read and write AICB's tables: CSV workloads, and the times that it hands to Vidur.

In a CSV workload every row is one event of one rank. AICB writes them for its own replay, for
Megatron and for DeepSpeed; a log of a replay has the same columns, with times filled in::

    comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,...
    CommType.all_reduce,CommGroup.dp_group,128,1,step.has_overflow,None,None,,None,None,None,1
    CommType.computation,None,None,((4 4096 4096) (4096 11008)),forward.computation,None,...

A row is an event, or the end of an iteration (``epoch_end``). Sizes are those of
nccl-tests: the whole buffer in bytes. A computation has the shapes of a matrix product
instead. ``None`` is Python's, and nothing is quoted. What AICB wrote comes out byte for byte.
Many rows of a file are alike: each distinct one is read, and kept, once.

The table for Vidur has time and bytes of every layer's parts; tabs separate its columns::

    layer_id	layer_name	comp_time	comm_size
    0	attention	1	0
    3	moe	2	5562368

Sources: aliyun/aicb 23eec3c4, ``log_analyzer/log.py`` (LogItem, Workload.dump),
``utils/utils.py`` (CommType, CommGroup) and
``workload_generator/Vidur_workload_generator.py`` (dump_file).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import read_text, shortened
from perfmodel.workloads.formats.words import words_of

_WORDS = words_of("aicb_tables")
COLUMNS: tuple[str, ...] = _WORDS["columns"]
COMM_TYPES: tuple[str, ...] = _WORDS["comm_types"]
COMM_GROUPS: tuple[str, ...] = _WORDS["comm_groups"]
VIDUR_COLUMNS: tuple[str, ...] = _WORDS["vidur_columns"]
PARTS: tuple[str, ...] = _WORDS["parts"]
NOTHING = "None"
WHOLE = re.compile(r"[0-9]{1,60}")
DECIMAL = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?")
PRODUCT = re.compile(r"\(\(([0-9 ]{3,200})\) \(([0-9 ]{3,200})\)\)")

Number = int | float
Shape = tuple[int, ...]
Product = tuple[Shape, Shape]


@dataclass(frozen=True, slots=True)
class AicbEvent:
    """A row of a CSV workload.

    Attributes
    ----------
    comm_type : str
        One of `COMM_TYPES`.
    comm_group : str or None
        One of `COMM_GROUPS`: who takes part. None for computations and ends of iterations.
    comm_group_size : int or None
        Ranks that take part; AICB leaves it out in places (its MoE rows).
    message_size : int, float or pair of shapes
        Whole buffer [B], or the two matrices of a product: rows, maybe in several
        dimensions, then columns, as ((4, 4096, 5120), (5120, 13824)).
    stage : str
        Where in the iteration, for people.
    destination, source : int or None
        Root of a ``reduce`` and of a ``broadcast``: a rank of the group.
    additional : str
        For point-to-point messages: which neighbour.
    elapsed_time : float or None
        Time measured in a replay, as the log has it [ms].
    algorithm_bandwidth, bus_bandwidth : float or None
        Bandwidths measured in a replay, as the log has them [GB/s].
    count : int or float
        1 in all of AICB's workloads.
    """

    comm_type: str
    comm_group: str | None = None
    comm_group_size: int | None = None
    message_size: Number | Product = 0
    stage: str = ""
    destination: int | None = None
    source: int | None = None
    additional: str = ""
    elapsed_time: Number | None = None
    algorithm_bandwidth: Number | None = None
    bus_bandwidth: Number | None = None
    count: Number = 1

    @property
    def floating_point_operations(self) -> int:
        """Operations of a computation, 2 per multiply-add; 0 for anything else [FLOP]."""
        if not isinstance(self.message_size, tuple):
            return 0
        operations = 2 * self.message_size[1][1]
        for size in self.message_size[0]:
            operations *= size
        return operations


def read_aicb_csv(path: str | os.PathLike[str]) -> tuple[AicbEvent, ...]:
    """Read a CSV workload, or the log of a replay.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    tuple of AicbEvent
        Like rows share one object.

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; says line, column and what would be right.
    """
    return parse_aicb_csv(read_text(path, "an AICB CSV workload"), str(path))


def parse_aicb_csv(text: str, file: str = "workload") -> tuple[AicbEvent, ...]:
    """Read a workload from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_aicb_csv`.
    """
    first, *lines = split_lines(text)
    if first != ",".join(COLUMNS):
        raise FormatError(f"{file}, line 1: should be the columns {','.join(COLUMNS)}")
    distinct: dict[str, AicbEvent] = {}
    for number, line in enumerate(lines, 2):
        if line not in distinct:
            distinct[line] = _event(line, f"{file}, line {number}")
    return tuple(distinct[line] for line in lines)


def format_aicb_csv(events: Iterable[AicbEvent]) -> str:
    """Return the text of a CSV workload, as AICB writes it.

    Parameters
    ----------
    events : iterable of AicbEvent

    Raises
    ------
    FormatError
        An event holds what a file cannot: an unknown type, a comma in a text, a negative
        size, NaN.
    """
    lines: dict[int, tuple[AicbEvent, str]] = {}  # by identity: generators repeat events
    text = [",".join(COLUMNS)]
    for number, event in enumerate(events, 2):
        if id(event) not in lines:
            line = ",".join(_cells(event))
            if "\n" in line or "\r" in line or _event(line, f"workload, row {number}") != event:
                raise FormatError(f"workload, row {number}: cannot be written as one line: {event}")
            lines[id(event)] = (event, line)
        text.append(lines[id(event)][1])
    return "\n".join(text) + "\n"


def split_lines(text: str) -> list[str]:
    """Split at newlines, Windows' too; an empty last line is none."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines


def _event(line: str, place: str) -> AicbEvent:
    """Read a row; `place` says in errors which."""
    cells = line.split(",")
    if len(cells) != len(COLUMNS):
        raise FormatError(f"{place}: {len(cells)} columns where a row has {len(COLUMNS)}")
    kind = _member(cells, 0, "CommType", COMM_TYPES, place)
    group = None if cells[1] == NOTHING else _member(cells, 1, "CommGroup", COMM_GROUPS, place)
    size: Number | Product
    if kind == "computation":
        size = _product(cells[3], place)
    else:
        size = _number(cells, 3, place, "a size in bytes >= 0, as 4096")
        if group is None and kind != "epoch_end":
            groups = ", ".join(f"CommGroup.{name}" for name in COMM_GROUPS)
            raise FormatError(f"{place}, column 2 (comm_group): '{kind}' needs one of {groups}")
    ranks, destination, source = (_whole_or_none(cells, column, place) for column in (2, 5, 6))
    measured = (_number_or_none(cells, column, place) for column in (8, 9, 10))
    elapsed, algorithm, bus = measured
    count = _number(cells, 11, place, "a number >= 0, as 1")
    where = (cells[4], destination, source, cells[7])
    return AicbEvent(kind, group, ranks, size, *where, elapsed, algorithm, bus, count)


def _cells(event: AicbEvent) -> tuple[str, ...]:
    """Return a row's cells as Python prints AICB's objects."""
    kind, group, ranks, size, *others = (getattr(event, field.name) for field in fields(event))
    if isinstance(size, tuple):
        shapes = (" ".join(map(str, shape)) for shape in size)
        size = f"({' '.join(f'({shape})' for shape in shapes)})"
    named = NOTHING if group is None else f"CommGroup.{group}"
    return (f"CommType.{kind}", named, *map(str, (ranks, size, *others)))


def _member(
    cells: Sequence[str], column: int, kind: str, members: Sequence[str], place: str
) -> str:
    """Return the member's name of a cell such as CommType.all_reduce."""
    prefix, _, name = cells[column].partition(".")
    if prefix != kind or name not in members:
        raise _wrong(
            cells[column],
            column,
            place,
            f"{kind}. and a name, as {kind}.{members[0]}"
            + did_you_mean((name or prefix)[:60], members),
        )
    return name


def _product(cell: str, place: str) -> Product:
    """Return the two shapes of a matrix product."""
    wanted = "the shapes of a matrix product, as ((2048 1 1024) (1024 4096))"
    match = PRODUCT.fullmatch(cell)
    words = [part.split(" ") for part in match.groups()] if match else []
    if not words or not all(WHOLE.fullmatch(word) for part in words for word in part):
        raise _wrong(cell, 3, place, wanted)
    left, right = (tuple(map(int, part)) for part in words)
    if not 2 <= len(left) <= 3 or len(right) != 2:
        raise _wrong(cell, 3, place, wanted)
    if left[-1] != right[0]:
        raise _wrong(cell, 3, place, f"two matrices that fit: {left[-1]} columns, {right[0]} rows")
    return left, right


def _number(cells: Sequence[str], column: int, place: str, wanted: str) -> Number:
    """Return a number >= 0, whole where the cell has no point."""
    cell = cells[column]
    if WHOLE.fullmatch(cell):
        return int(cell)
    if DECIMAL.fullmatch(cell) and math.isfinite(float(cell)):
        return float(cell)
    raise _wrong(cell, column, place, wanted)


def _number_or_none(cells: Sequence[str], column: int, place: str) -> Number | None:
    """Return a number >= 0, or None."""
    if cells[column] == NOTHING:
        return None
    return _number(cells, column, place, "None or a number >= 0")


def _whole_or_none(cells: Sequence[str], column: int, place: str) -> int | None:
    """Return a whole number >= 0, or None."""
    if cells[column] == NOTHING:
        return None
    if not WHOLE.fullmatch(cells[column]):
        raise _wrong(cells[column], column, place, "None or a whole number >= 0")
    return int(cells[column])


def _wrong(cell: str, column: int, place: str, wanted: str) -> FormatError:
    """Return the error of a cell."""
    shown = cell if len(cell) <= 60 else cell[:57] + "..."
    return FormatError(
        f"{place}, column {column + 1} ({COLUMNS[column]}): '{shown}' should be {wanted}"
    )


@dataclass(frozen=True, slots=True)
class VidurPart:
    """A part of a layer.

    Attributes
    ----------
    layer : int
        From 0.
    part : str
        One of `PARTS`.
    compute_time : int
        Forward time with its norm [ns]; 1 for each piece whose time is unknown.
    message_size : int
        All-reduce of attention and MLP, dispatch and combine of a MoE together [B].
    """

    layer: int
    part: str
    compute_time: int
    message_size: int


def read_vidur_csv(path: str | os.PathLike[str]) -> tuple[VidurPart, ...]:
    """Read a Vidur CSV of AICB.

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; says line, column and what would be right.
    """
    return parse_vidur_csv(read_text(path, "AICB's CSV for Vidur"), str(path))


def parse_vidur_csv(text: str, file: str = "workload") -> tuple[VidurPart, ...]:
    """Read a Vidur CSV from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_vidur_csv`.
    """
    first, *lines = split_lines(text)
    if first != "\t".join(VIDUR_COLUMNS):
        raise FormatError(
            f"{file}, line 1: should be the columns {', '.join(VIDUR_COLUMNS)}, separated by tabs"
        )
    return tuple(_part(line, f"{file}, line {number}") for number, line in enumerate(lines, 2))


def format_vidur_csv(parts: Iterable[VidurPart]) -> str:
    """Return the text of a Vidur CSV, as AICB writes it.

    Raises
    ------
    FormatError
        A part has another name than those of `PARTS`, or a negative number.
    """
    lines = ["\t".join(VIDUR_COLUMNS)]
    for number, part in enumerate(parts, 2):
        lines.append("\t".join(map(str, astuple(part))))
        _part(lines[-1], f"workload, row {number}")
    return "\n".join(lines) + "\n"


def _part(line: str, place: str) -> VidurPart:
    """Read a row; `place` says in errors which."""
    cells = line.split("\t")
    if len(cells) != len(VIDUR_COLUMNS):
        raise FormatError(
            f"{place}: {len(cells)} columns where a row has {len(VIDUR_COLUMNS)}, separated by tabs"
        )
    layer, part, time, size = cells
    if part not in PARTS:
        part = shortened(part)
        hint = did_you_mean(part, PARTS)
        raise FormatError(f"{place}, column 2 (layer_name): '{part}' is unknown{hint}")
    for column, cell in enumerate(cells):
        if column != 1 and not WHOLE.fullmatch(cell):
            raise FormatError(
                f"{place}, column {column + 1} ({VIDUR_COLUMNS[column]}): "
                f"'{shortened(cell)}' should be a whole number >= 0"
            )
    return VidurPart(int(layer), part, int(time), int(size))
