"""Tables, JSON, remarks and progress: results on stdout, the rest on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import Settings
from perfmodel.cli.shared.layout import laid_out, terminal_width, wrapped
from perfmodel.strategy.fields import FIELD_BY_NAME, FIELDS, HABITS

if TYPE_CHECKING:
    from perfmodel.kernels.work import Choice
    from perfmodel.software.framework import Framework


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
    model: str, hardware: str, devices: int, row: dict[str, Any], framework: Framework
) -> str:
    """Return the options that name one strategy, for a command to try next."""
    import shlex

    from perfmodel.strategy.single import usual

    parts = ["--model", model, "--hardware", hardware, "--devices", str(devices)]
    parts += ["--seq-len", str(row["sequence_length"])]
    parts += ["--global-batch", str(row["global_batch_size"])]
    items = dict(strategy_items(row))
    for name, value in usual(framework, row).items():
        if row[name] != value and row.get(HABITS[name], 2) > 1:
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
