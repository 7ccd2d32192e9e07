"""Read and write the CSV that AICB makes for Vidur: time and bytes of every layer's parts.

Columns are separated by tabs::

    layer_id	layer_name	comp_time	comm_size
    0	attention	1	0
    3	moe	2	5562368

Source: aliyun/aicb 23eec3c4, ``workload_generator/Vidur_workload_generator.py`` (dump_file).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import read_text, shortened
from perfmodel.workloads.formats.aicb.csv import split_lines

COLUMNS = ("layer_id", "layer_name", "comp_time", "comm_size")
PARTS = ("attention", "mlp", "moe")  # LayerType
WHOLE = re.compile(r"[0-9]{1,60}")


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
    if first != "\t".join(COLUMNS):
        raise FormatError(
            f"{file}, line 1: should be the columns {', '.join(COLUMNS)}, separated by tabs"
        )
    return tuple(_part(line, f"{file}, line {number}") for number, line in enumerate(lines, 2))


def format_vidur_csv(parts: Iterable[VidurPart]) -> str:
    """Return the text of a Vidur CSV, as AICB writes it.

    Raises
    ------
    FormatError
        A part has another name than those of `PARTS`, or a negative number.
    """
    lines = ["\t".join(COLUMNS)]
    for number, part in enumerate(parts, 2):
        lines.append("\t".join(map(str, astuple(part))))
        _part(lines[-1], f"workload, row {number}")
    return "\n".join(lines) + "\n"


def _part(line: str, place: str) -> VidurPart:
    """Read a row; `place` says in errors which."""
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise FormatError(
            f"{place}: {len(cells)} columns where a row has {len(COLUMNS)}, separated by tabs"
        )
    layer, part, time, size = cells
    if part not in PARTS:
        part = shortened(part)
        hint = did_you_mean(part, PARTS)
        raise FormatError(f"{place}, column 2 (layer_name): '{part}' is unknown{hint}")
    for column, cell in enumerate(cells):
        if column != 1 and not WHOLE.fullmatch(cell):
            raise FormatError(
                f"{place}, column {column + 1} ({COLUMNS[column]}): "
                f"'{shortened(cell)}' should be a whole number >= 0"
            )
    return VidurPart(int(layer), part, int(time), int(size))
