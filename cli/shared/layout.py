"""Tables and sentences laid out for the width of a terminal.

Where stdout is no terminal, nothing is broken or folded, so that scripts read one row per line;
the variable ``COLUMNS`` states a width for both.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

NARROWEST = 40  # what is narrower is laid out as if it were so wide
LEAST_TEXT = 12  # a column of text is not wrapped to less
WORDS = re.compile(r"\s+|[^\s_]+_*|_+")  # of a cell: names may be broken behind underscores
PIECES = re.compile(r"[^\s/_-]+(?:[/_-](?:\w\b[/_-]?)?)?")  # of a heading; "TFLOP/s" is one


def terminal_width() -> int | None:
    """Return the columns that a line may have; None where it may be as long as it is."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated) > 0:
        return max(NARROWEST, int(stated))
    if sys.stdout is not None and sys.stdout.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return None


def wrapped(text: str, indent: int = 0, width: int | None = None) -> str:
    """Return a sentence broken into lines, those after the first indented."""
    width = width or terminal_width()
    if width is None or len(text) <= width:
        return text
    return textwrap.fill(
        text,
        width,
        subsequent_indent=" " * min(indent, width // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass
class Column:
    """A column of a table: the lines of its heading, those of its cells, and its side."""

    head: list[str]
    cells: list[list[str]]
    left: bool

    @property
    def width(self) -> int:
        return max(
            max(map(len, self.head), default=0),
            max((len(line) for cell in self.cells for line in cell), default=0),
        )

    @property
    def is_text(self) -> bool:
        return self.left and any(set(" _") & set(line) for cell in self.cells for line in cell)

    def aligned(self, text: str) -> str:
        return text.ljust(self.width) if self.left else text.rjust(self.width)

    def break_head(self) -> None:
        """Break the heading into lines where it alone makes the column wide."""
        body = max((len(line) for cell in self.cells for line in cell), default=0)
        head = " ".join(self.head)
        pieces = PIECES.findall(head)
        if len(head) <= body or len(pieces) < 2:
            return
        limit = max(body, *map(len, pieces))
        lines = [""]
        for piece in pieces:
            joined = lines[-1] + ("" if lines[-1][-1:] in ("", *"/_-") else " ") + piece
            if len(joined) <= limit:
                lines[-1] = joined
            else:
                lines.append(piece)
        self.head = lines

    def wrap(self, width: int) -> None:
        """Break the cells into lines of at most a width."""
        self.cells = [_broken(" ".join(cell), width) for cell in self.cells]


def _broken(text: str, width: int) -> list[str]:
    """Break a cell at spaces and behind underscores; what has neither stays whole."""
    lines = [""]
    for piece in WORDS.findall(text):
        if not lines[-1] or len((lines[-1] + piece).rstrip()) <= width:
            lines[-1] += piece if lines[-1] else piece.lstrip()
        else:
            lines.append(piece.lstrip())
    return [line.rstrip() for line in lines]


@dataclass
class Layout:
    """A table in blocks (heads, lines), and the headings of the columns that it leaves out."""

    blocks: list[tuple[list[str], list[str]]]
    left_out: list[str]


def laid_out(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[int],
    width: int | None,
    spare: Sequence[int] = (),
) -> Layout:
    """Return a table, one block with all its columns where it is as narrow as it should be.

    What is wider has its headings broken and its columns moved together; then columns that may
    be spared are left out, one after the other, and text is wrapped. What is still too wide
    follows in further blocks, which repeat the first column.
    """

    def columns(without: Sequence[int]) -> list[Column]:
        return [
            Column([header], [[row[i]] for row in rows], i in left)
            for i, header in enumerate(headers)
            if i not in without
        ]

    found = columns(())
    if width is None or _total(found, 2) <= width:
        return Layout([_lines(found, len(rows), 2)], [])
    tries = [(count, gap, False) for count in range(len(spare) + 1) for gap in (2, 1)]
    for count, gap, wrap in [*tries, (len(spare), 1, True)]:
        found = columns(spare[:count])
        for column in found:
            column.break_head()
        if wrap:
            _wrap_text(found, _total(found, gap) - width)
        if _total(found, gap) <= width:
            dropped = [headers[i] for i in sorted(spare[:count])]
            return Layout([_lines(found, len(rows), gap)], dropped)
    parts: list[tuple[list[str], list[str]]] = []
    rest = found[1:]
    while rest or not parts:
        shown, rest = _fitting(found[0], rest, 2, width)
        parts.append(_lines(shown, len(rows), 2))
    return Layout(parts, [headers[i] for i in sorted(spare)])


def _total(columns: Sequence[Column], gap: int) -> int:
    return sum(column.width for column in columns) + gap * (len(columns) - 1)


def _wrap_text(columns: Sequence[Column], excess: int) -> None:
    """Wrap the widest columns of text until nothing exceeds, or none can be narrower."""
    for column in sorted((item for item in columns if item.is_text), key=lambda item: -item.width):
        if excess <= 0:
            return
        before = column.width
        column.wrap(max(LEAST_TEXT, before - excess))
        excess -= before - column.width


def _fitting(
    first: Column, rest: list[Column], gap: int, width: int
) -> tuple[list[Column], list[Column]]:
    """Return the columns of the next block, and those that are left."""
    count = len(rest)
    while count > 1 and _total([first, *rest[:count]], gap) > width:
        count -= 1
    return [first, *rest[:count]], rest[count:]


def _lines(columns: Sequence[Column], rows: int, gap: int) -> tuple[list[str], list[str]]:
    """Return the lines of the headings, which end at one height, and of the rows."""
    height = max(len(column.head) for column in columns)
    heads = [[""] * (height - len(column.head)) + column.head for column in columns]
    cells = [[column.cells[row] for column in columns] for row in range(rows)]
    texts = [_joined(columns, parts, gap) for parts in (heads, *cells)]
    return texts[0], [line for lines in texts[1:] for line in lines]


def _joined(columns: Sequence[Column], parts: Sequence[Sequence[str]], gap: int) -> list[str]:
    height = max(map(len, parts))
    return [
        (" " * gap)
        .join(
            column.aligned(part[line] if line < len(part) else "")
            for column, part in zip(columns, parts, strict=True)
        )
        .rstrip()
        for line in range(height)
    ]
