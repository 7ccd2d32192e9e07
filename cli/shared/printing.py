"""Tables, JSON, remarks and progress: results on stdout, the rest on stderr.

Tables and sentences are laid out for the width of the terminal. Where stdout is no terminal,
nothing is broken or folded, so that scripts read one row per line; the variable ``COLUMNS`` states
a width for both.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS
from perfmodel.cli.group import Settings

if TYPE_CHECKING:
    from perfmodel.kernels.work import Choice
    from perfmodel.sweeps.sweep import Problem

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
class PrintedColumn:
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

    def columns(without: Sequence[int]) -> list[PrintedColumn]:
        return [
            PrintedColumn([header], [[row[i]] for row in rows], i in left)
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


def _total(columns: Sequence[PrintedColumn], gap: int) -> int:
    return sum(column.width for column in columns) + gap * (len(columns) - 1)


def _wrap_text(columns: Sequence[PrintedColumn], excess: int) -> None:
    """Wrap the widest columns of text until nothing exceeds, or none can be narrower."""
    for column in sorted((item for item in columns if item.is_text), key=lambda item: -item.width):
        if excess <= 0:
            return
        before = column.width
        column.wrap(max(LEAST_TEXT, before - excess))
        excess -= before - column.width


def _fitting(
    first: PrintedColumn, rest: list[PrintedColumn], gap: int, width: int
) -> tuple[list[PrintedColumn], list[PrintedColumn]]:
    """Return the columns of the next block, and those that are left."""
    count = len(rest)
    while count > 1 and _total([first, *rest[:count]], gap) > width:
        count -= 1
    return [first, *rest[:count]], rest[count:]


def _lines(columns: Sequence[PrintedColumn], rows: int, gap: int) -> tuple[list[str], list[str]]:
    """Return the lines of the headings, which end at one height, and of the rows."""
    height = max(len(column.head) for column in columns)
    heads = [[""] * (height - len(column.head)) + column.head for column in columns]
    cells = [[column.cells[row] for column in columns] for row in range(rows)]
    texts = [_joined(columns, parts, gap) for parts in (heads, *cells)]
    return texts[0], [line for lines in texts[1:] for line in lines]


def _joined(
    columns: Sequence[PrintedColumn], parts: Sequence[Sequence[str]], gap: int
) -> list[str]:
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


def styled(text: str, **style: Any) -> str:
    """Return text with colour, unless NO_COLOR is set or stdout is not a terminal."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, **style)


def heading(text: str) -> str:
    """Return a heading."""
    return styled(text, bold=True)


def remark(text: str) -> None:
    """Say something on stderr, unless the run is quiet."""
    if not _settings().quiet:
        click.echo(text, err=True)


def detail(text: str) -> None:
    """Say something on stderr where the user asked for more (``-v``)."""
    if _settings().verbose:
        click.echo(text, err=True)


def _settings() -> Settings:
    context = click.get_current_context(silent=True)
    return context.ensure_object(Settings) if context else Settings()


def print_json(document: Any) -> None:
    """Print a document as JSON; what is not a finite number becomes null."""
    click.echo(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    spare: Sequence[int] = (),
) -> str:
    """Lay out a table with columns as wide as they need to be, and as the terminal allows.

    Parameters
    ----------
    headers : sequence of str
    rows : sequence of sequence of str
    left : sequence of int
        Columns aligned to the left; the others stand to the right.
    spare : sequence of int
        Columns that a narrow terminal does without, the first one first.
    """
    found = laid_out(headers, rows, left, terminal_width(), spare)
    parts = ["\n".join([*map(heading, heads), *lines]) for heads, lines in found.blocks]
    if found.left_out:
        parts[-1] += f"\n(no room for: {', '.join(found.left_out)})"
    return "\n\n".join(parts)


def say(text: str, indent: int = 0) -> None:
    """Print a sentence, broken where it is longer than the terminal is wide."""
    click.echo(wrapped(text, indent))


def percent(fraction: float, sign: str = "") -> str:
    """Return a fraction as a percentage: ``percent(0.5)`` is ``"50.0 %"``."""
    return f"{100 * fraction:{sign}.1f} %"


def share(part: float, whole: float) -> str:
    """Return a percentage; a dash where there is nothing."""
    return percent(part / whole) if part and whole else "–"


def error_statistic(name: str, value: float | None) -> str:
    """Return a relative error as a cell, with its sign where it is a bias."""
    sign = "+" if name == "bias" else ""
    return "–" if value is None else percent(value, sign)


def strategy_label(row: dict[str, Any]) -> str:
    """Return a strategy in one line: what differs from the defaults."""
    return " · ".join(f"{name} {value}" for name, value in strategy_items(row))


def strategy_items(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the option and the value of every field that is worth naming."""
    shown = ("tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size")
    implied = {
        "sequence_parallel": row["tensor_parallel"] > 1,
        "context_parallel_kind": row["context_parallel_kind"]
        if row["context_parallel"] == 1
        else "ring",
        "pipeline_schedule": "interleaved" if row["virtual_pipeline"] > 1 else "1f1b",
    }
    for spec in FIELDS:
        if spec.name in ("global_batch_size", "sequence_length"):
            continue
        value = row[spec.name]
        if spec.name in shown or value != implied.get(spec.name, spec.default):
            yield spec.option, str(value).lower() if isinstance(value, bool) else str(value)


def command_line(
    problem: Problem, model: str, hardware: str, devices: int, row: dict[str, Any]
) -> str:
    """Return the options that name one strategy, for a command to try next."""
    import shlex

    from perfmodel.strategy.defaults import unlike_software

    parts = ["--model", model, "--hardware", hardware, "--devices", str(devices)]
    parts += ["--seq-len", str(row["sequence_length"])]
    parts += ["--global-batch", str(row["global_batch_size"])]
    items = dict(strategy_items(row))
    for name in unlike_software(row, problem.framework, problem.model):
        items.setdefault(FIELD_BY_NAME[name].option, str(row[name]).lower())
    for name, value in items.items():
        if name != "dp" and (name, value) not in (("tp", "1"), ("pp", "1")):
            parts += [f"--{name}", value]
    return shlex.join(parts)


def announce_compilation(chosen: Choice) -> None:
    """Say that kernels are compiled, where none lie in the cache."""
    if not chosen.cached:
        remark(f"compiling kernels, first run only ({chosen.reason})")


def tell_choice() -> None:
    """Say whether kernels ran compiled, and why, to whom wants to know."""
    from perfmodel.kernels.work import choice_so_far

    chosen = choice_so_far()
    if chosen is not None:
        how = "compiled" if chosen.compiled else "uncompiled"
        detail(f"kernels ran {how}: {chosen.reason}")


@contextlib.contextmanager
def progress(total: int, text: str, done: int = 0) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on stderr; give the function that advances it, or None where silent.

    Rate and time left are those of this run, whatever was `done` before.
    """
    if not total or not shows_progress():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f}/s" if speed else "")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(text, total=total, completed=done)
        yield lambda count: shown.advance(task, count)


@contextlib.contextmanager
def activity(text: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show on stderr what goes on, and how long already, until it is over.

    Gives the function that says how much is done, of how much; or None where silent. Work of
    which that is not known shows that it runs.
    """
    if not shows_progress():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None, amount="")

        def tell(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total, amount=f"{done:,}/{total:,}")

        yield tell


def shows_progress() -> bool:
    """Tell whether progress is shown: to a person at a terminal who did not ask for less."""
    context = click.get_current_context(silent=True)
    as_json = context is not None and bool(context.params.get("as_json"))
    return sys.stderr.isatty() and not _settings().quiet and not as_json
