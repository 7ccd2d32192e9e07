"""What is compared: projections from options, strategies from files."""

from __future__ import annotations

import contextlib
import copy
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from perfmodel.base.errors import DataError, PerfModelError, did_you_mean
from perfmodel.base.files import user_path
from perfmodel.cli.core.project import project_command, projected
from perfmodel.cli.group import Command
from perfmodel.cli.shared.costs import NAMES as COST_OPTIONS
from perfmodel.cli.shared.costs import given_costs, with_costs
from perfmodel.cli.shared.models import given_reading
from perfmodel.cli.shared.options import CLOCK, CLOCK_OPTIONS
from perfmodel.cli.shared.types import TRUTH

if TYPE_CHECKING:
    from perfmodel.base.table import Table

OWN = ("as_json", "quiet", "verbose")
MOST_DIGITS = 9  # of the N of FILE#N
OF_ALL = ("model", "mtp_layers", "framework", "devices")  # what a file says once
GIVEN = f"{__name__}.given"
OPTIONS = {
    str(param.name): param
    for param in project_command.params
    if isinstance(param, click.Option) and param.name not in OWN
}
"""Options of a projection, by the name of their value."""


class SidesCommand(Command):
    """A command that keeps the options of ``project`` as they were written."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and remember what was written for each option."""
        ctx.meta[GIVEN] = self.make_parser(ctx).parse_args(args=list(args))[0]
        return super().parse_args(ctx, args)


def shared_options() -> list[click.Parameter]:
    """Return the options of ``project`` as a command shows them whose sides may have their own."""
    found: list[click.Parameter] = []
    for original in OPTIONS.values():
        option = copy.copy(original)
        option.required = option.expose_value = option.is_eager = False
        option.callback = None
        found.append(option)
    return found


def complete_file(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Leave files to the shell."""
    return [CompletionItem(incomplete, type="file")]


def refuse_options(given: Mapping[str, Any]) -> None:
    """Refuse options of ``project`` where all sides are files.

    Raises
    ------
    click.UsageError
        One was given.
    """
    for name, option in OPTIONS.items():
        if given.get(name) and name not in COST_OPTIONS:
            raise click.UsageError(f"{option.opts[0]} has no effect: A and B are files")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: its results, and the sweep that they are from."""

    text: str
    row: dict[str, Any]
    stored: bool
    sweep: Table | None = None

    @property
    def fits(self) -> bool:
        """Whether the strategy fits in memory; true where the results don't say."""
        return bool(self.row.get("fits", True))

    @property
    def tight(self) -> bool:
        """Whether it fits by less than the measured error of memory, where the results say so."""
        return self.fits and bool(self.row.get("tight", False))


def side(ctx: click.Context, text: str, given: Mapping[str, Any], by: str) -> Side:
    """Return what A or B names.

    Parameters
    ----------
    ctx : click.Context
    text : str
        As typed.
    given : mapping
        Options of ``project`` that both share: name -> what was typed.
    by : str
        What a file is ranked by.

    Raises
    ------
    click.UsageError, PerfModelError
        What is wrong, and with which of the two.
    """
    with blamed_on(text):
        if is_projection(text):
            return _projected(ctx, text, given)
        return _stored(ctx, text, given, by)


@contextlib.contextmanager
def blamed_on(text: str) -> Iterator[None]:
    """Say of which side something is wrong, as typed; ``-`` adds nothing."""
    try:
        yield
    except click.UsageError as error:
        if text == "-":
            raise
        raise click.UsageError(f"{text}: {error.format_message()}", error.ctx) from None
    except PerfModelError as error:
        known = text.partition("#")[0] in str(error)
        raise error if known or text == "-" else type(error)(f"{text}: {error}") from None


# ---------------------------------------------------------------- projections


def _projected(ctx: click.Context, text: str, given: Mapping[str, Any]) -> Side:
    """Project the common options with the changes of one side."""
    with stated(ctx, text, given) as it:
        found = projected(it.problem, it.costs)
    head = {
        "model": found.model.name,
        "mtp_layers": len(found.model.mtp_layers),
        "framework": found.framework.name,
        "devices": found.grid.devices,
    }
    return Side(text, head | found.row, False)


class Stated(NamedTuple):
    """A projection as options state it.

    Attributes
    ----------
    problem : dict of str to value
        What `perfmodel.cli.core.project.load_problem` takes.
    costs : dict of str to value
    """

    problem: dict[str, Any]
    costs: dict[str, Any]


@contextlib.contextmanager
def stated(ctx: click.Context, text: str, given: Mapping[str, Any]) -> Iterator[Stated]:
    """Parse the common options with the changes of one side, and give them to what loads them.

    Raises
    ------
    click.UsageError, DataError
        As of `side`.
    """
    arguments = _arguments(given, {} if text == "-" else _changes(text))
    with project_command.make_context(ctx.info_name, arguments, parent=ctx.parent) as own:
        values = dict(own.params)
        costs, reading = given_costs(values), given_reading(values)
        yield Stated(values | {"reading": reading}, costs)


def is_projection(text: str) -> bool:
    """Tell whether a side is options rather than a file."""
    return not _exists(text) and (text == "-" or "=" in text)


def _changes(text: str) -> dict[str, str]:
    """Split ``'KEY=VALUE KEY=VALUE'``."""
    found: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise DataError(f"cannot be read ({error})") from None
    for word in words:
        key, equals, value = word.partition("=")
        key = key.lstrip("-") if "." in key else key.lstrip("-").replace("_", "-")
        if not key or not equals or not value:
            raise DataError(f"'{word}' should be KEY=VALUE, as in tp=8")
        if key in found:
            raise DataError(f"'{key}' is there twice")
        found[key] = value
    return found


def _arguments(given: Mapping[str, Any], changes: Mapping[str, str]) -> list[str]:
    """Return the command line of one projection: what both share, and its changes."""
    by_name = {
        name.removeprefix("--"): field
        for field, param in OPTIONS.items()
        for name in param.opts
        if name.startswith("--")
    }
    paths = {key: value for key, value in changes.items() if "." in key}
    changed = {}
    for key, value in changes.items():
        if key not in paths and key not in by_name:
            hint = did_you_mean(key, by_name)
            raise DataError(f"'perfmodel project' has no option '{key}'{hint}")
        if key not in paths:
            changed[by_name[key]] = value
    arguments = [f"--set={path}={value}" for path, value in paths.items()]
    replaced = {*paths}
    if CLOCK in paths or changed.keys() & {*CLOCK_OPTIONS}:
        replaced |= {CLOCK, *CLOCK_OPTIONS} - changed.keys()
    for name, param in OPTIONS.items():
        for value in _listed(changed.get(name, given.get(name))):
            path = str(value).partition("=")[0].strip() if name == "settings" else name
            if path not in replaced:
                arguments += _words(param, value)
    return arguments


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _words(option: click.Option, value: Any) -> Iterator[str]:
    """Yield an option as it stands on a command line; nothing where it was not given."""
    name = max(option.opts, key=len)
    if value is None:
        return
    if option.is_flag:
        if TRUTH.get(str(value).lower(), True):
            yield name
    else:  # what is no text says that only the option was there, without a value
        yield f"{name}={value if isinstance(value, str) else option.flag_value}"


# ---------------------------------------------------------------- files


def _exists(text: str) -> bool:
    """Tell whether a text names a file, whatever the text."""
    try:
        return user_path(text).exists()
    except (OSError, ValueError, RuntimeError):
        return False


def _stored(ctx: click.Context, text: str, given: Mapping[str, Any], by: str) -> Side:
    """Return the N-th best strategy of a file."""
    name, number = file_of(text)
    place = number or 1
    path = user_path(name)
    if path.suffix.lower() == ".json":
        return Side(text, _from_json(path, name, place, by), True)
    from perfmodel.store.results import best, open_table
    from perfmodel.store.subject import TRAINING, subject_of

    found = open_table(path)
    subject = subject_of(found)
    if subject is not TRAINING:
        raise DataError(
            f"'{name}' holds results of 'perfmodel {subject.verb}'; diff compares training steps"
        )
    found = with_costs(found, costs_of(ctx, given), by)
    ranked = best(found, place, by=by) or best(found, place, by=by, fitting=False)
    if len(ranked) < place:
        raise DataError(f"'{name}' holds {len(ranked):,} strategies that fit, no #{place}")
    head = {key: found.attrs[key] for key in OF_ALL if key in found.attrs}
    return Side(text, head | ranked[place - 1], True, None if number else found)


def file_of(text: str) -> tuple[str, int | None]:
    """Part ``FILE#N`` into the file and the number; None where there is none.

    Raises
    ------
    DataError
        The number is 0.
    """
    name, mark, number = text.rpartition("#")
    if not mark or not number.isdecimal() or len(number) > MOST_DIGITS or _exists(text):
        return text, None
    if int(number) < 1:
        raise DataError(f"'{text}' should end in #1, #2, …")
    return name, int(number)


def costs_of(ctx: click.Context, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of costs that the command was given."""
    arguments = [
        word
        for name in COST_OPTIONS
        for value in _listed(given.get(name))
        for word in _words(OPTIONS[name], value)
    ]
    params: list[click.Parameter] = [OPTIONS[name] for name in COST_OPTIONS]
    command = click.Command("costs", params=params)
    with command.make_context(ctx.info_name, arguments, parent=ctx.parent) as own:
        return given_costs(dict(own.params))


def _from_json(path: Path, name: str, place: int, by: str) -> dict[str, Any]:
    """Return a strategy of what a command printed or wrote as JSON."""
    from perfmodel.base.files import read_json
    from perfmodel.store.damage import check_row

    document = read_json(path)
    if not isinstance(document, dict):
        raise DataError(f"'{name}' holds no projection")
    rows = [document] if "step_time" in document else document.get("strategies")
    if rows is None and isinstance(document.get("rows"), list):
        rows = _ranked(document["rows"], by)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(
            f"'{name}' holds no projection; 'project --json' and 'best --json' write one"
        )
    if len(rows) < place:
        raise DataError(f"'{name}' holds {len(rows):,} strategies, no #{place}")
    check_row(rows[place - 1], name)
    return _head(document) | rows[place - 1]


def _head(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says once of all its strategies."""
    import numpy as np

    found = {key: facts[key] for key in OF_ALL if key in facts}
    return {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in found.items()
    }


def _ranked(rows: Sequence[Any], by: str) -> list[Any]:
    """Return the rows of a whole sweep that fit, best first."""
    from perfmodel.store.results import LARGER_IS_BETTER

    sign = -1.0 if by in LARGER_IS_BETTER else 1.0
    fitting = [
        row
        for row in rows
        if isinstance(row, dict) and row.get("fits") and isinstance(row.get(by), int | float)
    ]
    return sorted(fitting, key=lambda row: sign * row[by])
