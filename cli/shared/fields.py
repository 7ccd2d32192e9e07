"""Options of commands, made from tables of fields (``cli/WING/options.toml``)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import click

from perfmodel.base.fields import Field
from perfmodel.base.files import read_toml
from perfmodel.cli.group import Option
from perfmodel.cli.shared import completions
from perfmodel.cli.shared.types import (
    Counts,
    FiniteRange,
    ListType,
    One,
    Paths,
    Size,
    Sizes,
    WholeRange,
    Words,
)

Function = TypeVar("Function", bound=Callable[..., Any])
FOLDER = Path(__file__).parents[1]
FILE = "options.toml"


class ListOption(Option):
    """An option of a `ListType`: ``A,B`` or the option repeated; None where it is not given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if isinstance(kwargs.get("default"), str):
            kwargs["default"] = (kwargs["default"],)
        super().__init__(*args, multiple=True, callback=_list_or_none, **kwargs)

    def type_cast_value(self, ctx: click.Context, value: Any) -> tuple[Any, ...]:
        """Join the lists, each value once."""
        lists = super().type_cast_value(ctx, value)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(lists)))


def _list_or_none(ctx: click.Context, param: click.Parameter, value: Any) -> list[Any] | None:
    return list(value) if value else None


def _limits(field: Field) -> dict[str, Any]:
    """Return the limits of a number as click has them."""
    return {
        "min": None if field.minimum == -math.inf else field.minimum,
        "max": None if field.maximum == math.inf else field.maximum,
        "min_open": field.above,
        "max_open": field.below,
    }


TYPES: Mapping[str, Callable[[Field], Any]] = {
    "text": lambda field: None,
    "flag": lambda field: None,
    "int": lambda field: WholeRange(**_limits(field)),
    "float": lambda field: FiniteRange(**_limits(field)),
    "choice": lambda field: click.Choice(field.choices),
    "path": lambda field: click.Path(),
    "size": lambda field: Size(),
    "sizes": lambda field: Sizes(),
    "count": lambda field: One(Counts()),
    "counts": lambda field: Counts(),
    "name": lambda field: One(Words()),
    "names": lambda field: Words(),
    "paths": lambda field: Paths(),
}
"""Kind of a field -> the type of its option."""


def option(*names: str, section: str, **kwargs: Any) -> Callable[[Function], Function]:
    """Return a click option in a section of the help page; one of a list may be repeated."""
    kind = ListOption if isinstance(kwargs.get("type"), ListType) else Option
    return click.option(*names, cls=kind, section=section, **kwargs)


def stack(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Apply decorators so that the help page lists them in the written order."""

    def apply(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


@cache
def fields_of(table: str) -> Mapping[str, Field]:
    """Return a table of fields.

    Parameters
    ----------
    table : str
        ``WING.TABLE``: a table of the wing's file; "shared" for what several wings share.
    """
    wing, _, name = table.partition(".")
    return {key: _field(key, row) for key, row in _document(wing)[name].items()}


@cache
def _document(wing: str) -> dict[str, Any]:
    return read_toml(FOLDER / wing / FILE)


def _field(key: str, row: Mapping[str, Any]) -> Field:
    plain: dict[str, Any] = {
        "name": key,
        "option": key.replace("_", "-"),
        "kind": "text",
        "default": None,
        "minimum": -math.inf,
        "maximum": math.inf,
    }
    lists = {name: tuple(row[name]) for name in ("choices", "spellings") if name in row}
    return Field(**{**plain, **row, **lists})


def options_of(table: str, *names: str, **given: Any) -> Callable[[Function], Function]:
    """Return the options of some fields of a table.

    Parameters
    ----------
    table : str
        As of `fields_of`.
    *names : str
        Keys of the table, in the order of the help page.
    **given
        What only Python knows of them: what `click.option` takes, in place of what the table says.
    """
    fields = fields_of(table)
    return stack(*(_option(fields[name], given) for name in names))


def _option(field: Field, given: Mapping[str, Any]) -> Callable[[Function], Function]:
    kwargs: dict[str, Any] = {"help": field.description, "required": field.required}
    if field.kind == "flag":
        kwargs["is_flag"] = True
    if field.default is not None:
        kwargs["default"] = field.default
    if field.repeated:
        kwargs["multiple"] = True
    if field.metavar:
        kwargs["metavar"] = field.metavar
    if field.complete:
        kwargs["shell_complete"] = getattr(completions, f"complete_{field.complete}")
    kwargs |= {"type": TYPES[field.kind](field), **given}
    if kwargs.get("default") is not None and field.kind != "flag" and field.shown:
        kwargs["show_default"] = True
    spellings = field.spellings or (f"--{field.option}",)
    return option(*spellings, field.name, section=field.section, **kwargs)
