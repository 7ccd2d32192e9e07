"""One declared value: what a field, an option, a fact or a setting is called, takes and means.

Columns, coordinates, Python arguments, command-line options, help pages, checks of files and
reference pages come from tables of fields. It imports nothing heavy, so that the command line can
read it at once.

A dataclass of facts is such a table: each attribute is made by `fact`, which holds its unit, limits
and meaning, and its annotation is the kind of value: a number, a text, a flag, or a tuple of them
(nested for tables of numbers).

Options that a run would silently ignore are refused, in Python as on the command line.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.files import read_rows

if TYPE_CHECKING:
    from perfmodel.base.columns import Flags

MOST = 2**40
"""Nothing that is counted is larger in any run."""
LARGEST = 1e100
"""No fact is larger: what follows from facts is finite."""
KINDS: Mapping[type, str] = {bool: "flag", int: "count", float: "number", str: "text"}
"""Type of a fact -> its kind."""
TYPES: Mapping[str, type] = {kind: of for of, kind in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Field:
    """One value that the user may state.

    Attributes
    ----------
    name : str
        Name in Python, and of the column and coordinate.
    option : str
        Spelling on the command line, without the dashes.
    kind : str
        How values are written and stored: "int", "float", "bool" or "choice"; of facts one of
        `TYPES`; options of commands have further ones (`perfmodel.cli.shared.options.TYPES`).
    default : int or float or str or bool, optional
        Value where nothing is said; None for none.
    description : str
        One line for help pages and ``long_name``.
    choices : tuple of str
        Labels of a ``choice`` field; the column stores the index.
    minimum, maximum : float
        Smallest and largest value of a number; infinite for any.
    form : str
        What a label looks like, of a field with too many choices to list.
    above, below : bool
        Whether a number must exceed the minimum, or stay below the maximum.
    section : str
        Heading of the help page below which the option stands.
    spellings : tuple of str
        Every spelling of the option with its dashes, where it is not ``--option``.
    metavar : str
        What stands for the value on the help page; empty for the kind's own word.
    complete : str
        What the shell proposes (`perfmodel.cli.shared.completions`).
    required, repeated, shown : bool
        Whether the option must be given, may be given again for a further value, and has its
        default on the help page.
    unit : str
        SI unit; empty for texts, flags and pure numbers.
    several : bool
        Whether a text may have several of the choices, a space between them.
    depth : int
        0 for a single value, 1 for a tuple of them, 2 for a tuple of rows, …
    shape : tuple of int
        Of tuples and tuples in tuples; 0 for any length.
    least : float
        Smallest of the numbers above 0.
    noun : str
        What messages call a count.
    long_name : str
        What it is in a dataset, where that is not the description.
    """

    name: str
    option: str
    kind: str
    default: int | float | str | bool | None
    description: str
    choices: tuple[str, ...] = ()
    minimum: float = 1
    maximum: float = MOST
    form: str = ""
    above: bool = False
    below: bool = False
    section: str = ""
    spellings: tuple[str, ...] = ()
    metavar: str = ""
    complete: str = ""
    required: bool = False
    repeated: bool = False
    shown: bool = True
    unit: str = ""
    several: bool = False
    depth: int = 0
    shape: tuple[int, ...] = ()
    least: float = 0.0
    noun: str = "a whole number"
    long_name: str = ""

    @property
    def expected(self) -> str:
        """What a label of a ``choice`` field should be, after "is not"."""
        return self.form or f"one of {', '.join(self.choices)}"

    def convert(self, value: Any, level: int = 0) -> Any:
        """Return a fact in its kind; ValueError where it is another or beyond the limits."""
        if level < self.depth:
            return self._convert_items(value, level)
        kind = TYPES[self.kind]
        if kind in (bool, str):
            if not isinstance(value, kind) or (self.choices and self._unknown(value)):
                raise ValueError
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        whole = kind is float or value == int(value) if math.isfinite(value) else False
        tiny = 0 < value < self.least or (self.above and value <= self.minimum)
        if not whole or tiny or not self.minimum <= value <= self.maximum:
            raise ValueError
        return kind(value)

    def _convert_items(self, value: Any, level: int) -> tuple[Any, ...]:
        length = self.shape[level] if level < len(self.shape) else 0
        if not isinstance(value, list | tuple) or (length and len(value) != length):
            raise ValueError
        items = tuple(self.convert(item, level + 1) for item in value)
        if level + 1 < self.depth and len({len(item) for item in items}) > 1:
            raise ValueError
        return items

    def _unknown(self, value: Any) -> list[Any]:
        """Return what of a text is no choice."""
        words = str(value).split() or [value] if self.several else [value]
        return [word for word in words if word not in self.choices]

    def hint(self, value: Any) -> str:
        """Return the choices nearest to a wrong word among several, for messages."""
        if not self.several or not isinstance(value, str):
            return ""
        return "".join(did_you_mean(word, self.choices) for word in self._unknown(value)[:1])

    def expectation(self, value: Any = None) -> str:
        """Return what a right fact looks like, for messages on a wrong one."""
        if self.kind == "flag":
            single = "true or false"
        elif self.kind == "text":
            which = "words of " if self.several else "one of "
            single = which + ", ".join(self.choices) if self.choices else "a text"
        else:
            noun = self.noun if self.kind == "count" else "a finite number"
            limit = f"of at least {self.minimum:g}"
            if self.above:
                limit = "above 0" + (f" (at least {self.least:g})" if self.least else "")
            beyond = isinstance(value, int | float) and value > LARGEST
            if self.maximum < LARGEST or (beyond and self.maximum == LARGEST):
                limit += f", at most {self.maximum:.10g}"
            single = f"{noun} {limit}" + (f" [{self.unit}]" if self.unit else "")
        sizes = " x ".join(str(size or "any") for size in self.shape)
        shape = f" of shape {sizes}" if sizes else ""
        nested = f"a list{' of lists' * (self.depth - 1)}{shape}, each entry "
        return nested + single if self.depth else single


def field_of(key: str, row: Mapping[str, Any]) -> Field:
    """Return the field of a table's row (TOML): a text of any kind where it says no more."""
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


_CELLS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "choice": str,
    "bool": "true".__eq__,
}


def read_fields(
    path: str | Path, choices: Mapping[str, tuple[str, ...]]
) -> Mapping[str, tuple[Field, ...]]:
    """Return the fields of a table, a row each (CSV; empty cells: as of `Field`), by ``of``.

    Parameters
    ----------
    path : str or Path
        With columns ``of`` and some of `Field`.
    choices : mapping of str to tuple of str
        Those of fields by their names.
    """
    found: dict[str, list[Field]] = {}
    for row in read_rows(path):
        cells: dict[str, Any] = {**row, "choices": choices.get(row["name"], ())}
        cells["default"] = _CELLS[row["kind"]](row["default"])
        for limit in cells.keys() & {"minimum", "maximum"}:
            cells[limit] = int(row[limit]) if row[limit].isdigit() else float(row[limit])
        found.setdefault(cells.pop("of"), []).append(Field(**cells))
    return {of: tuple(fields) for of, fields in found.items()}


def fact_field(
    kind: str,
    description: str,
    unit: str = "",
    *,
    minimum: float = 0.0,
    maximum: float = LARGEST,
    positive: bool = False,
    default: Any = None,
    **more: Any,
) -> Field:
    """Return a fact's field; with no default it is required.

    Parameters
    ----------
    kind : str
        One of `TYPES`.
    description, unit, minimum, maximum, default, **more
        As of `Field`.
    positive : bool
        Whether numbers must exceed zero.
    """
    return Field(
        "", "", kind, default, description, unit=unit, minimum=minimum, maximum=maximum,
        above=positive, required=default is None, **more,
    )  # fmt: skip


def fact(
    description: str, unit: str = "", *, default: Any = dataclasses.MISSING, **more: Any
) -> Any:
    """Declare one fact of a dataclass: what its annotation does not say of `fact_field`.

    Parameters
    ----------
    description : str
        For documentation and messages.
    unit : str
        SI unit; empty for texts, flags and pure numbers.
    default : optional
        Where files are silent; without it they must speak.
    **more
        As of `fact_field`.
    """
    known = None if default is dataclasses.MISSING else default
    declared = fact_field("", description, unit, default=known, **more)
    required = default is dataclasses.MISSING
    declared = dataclasses.replace(declared, required=required)
    return dataclasses.field(default=default, metadata={"field": declared})


@cache
def facts_of(kind: type) -> dict[str, Field]:
    """Return the facts that a dataclass declares, by name."""
    hints = typing.get_type_hints(kind)
    found = {}
    for item in dataclasses.fields(kind):
        if "field" not in item.metadata:
            continue
        hint, depth = hints[item.name], 0
        if type(None) in typing.get_args(hint):  # | None: files may be silent
            hint = typing.get_args(hint)[0]
        while typing.get_origin(hint) is tuple:
            hint, depth = typing.get_args(hint)[0], depth + 1
        found[item.name] = dataclasses.replace(
            item.metadata["field"], name=item.name, kind=KINDS[hint], depth=depth
        )
    return found


FLAGS = {"settings": "--set"}
"""Option whose name on the command line is not its name in Python."""


def flag(name: str) -> str:
    """Return what an option is called on the command line, as all messages call it."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def refuse_unused(
    given: Collection[str],
    used: Collection[str],
    purposes: Mapping[str, Collection[str]],
    run: str,
) -> None:
    """Refuse what somebody stated that has no effect on this run.

    Parameters
    ----------
    given : collection of str
        Options that were stated, by their names in Python.
    used : collection of str
        Options that have an effect.
    purposes : mapping of str to collection of str
        What some options are for, in words; others are not looked at.
    run : str
        What it is instead, in words.

    Raises
    ------
    StrategyError
        Names the option, what it is for, and the run.
    """
    for purpose, names in purposes.items():
        for name in names:
            if name in given and name not in used:
                raise StrategyError(f"{flag(name)} is for {purpose}; {run}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, its stable code, its flag name and what to say to the user; fields it is about."""

    code: int
    name: str
    reason: str
    broken: Callable[..., Flags]
    fields: tuple[str, ...] = ()


def read_rules(
    path: str | Path, broken: Mapping[str, Callable[..., Flags]], **words: str
) -> tuple[tuple[Rule, ...], Mapping[int, str], Mapping[int, str]]:
    """Return rules, and the names and reasons of every status, from a table of statuses.

    Parameters
    ----------
    path : str or Path
        A row for each status in the order of codes: ``code,name,reason``, and perhaps ``fields``.
    broken : mapping of str to callable
        Names of those that are rules -> which rows of a grid break it.
    **words
        What stands for ``{word}`` in the reasons.
    """
    rows = {int(row["code"]): row for row in read_rows(path)}
    names = {code: row["name"] for code, row in rows.items()}
    reasons = {code: row["reason"].format(**words) for code, row in rows.items()}
    numbers = {name: code for code, name in names.items()}
    rules = []
    for name, which in broken.items():
        code = numbers[name]
        fields = tuple(rows[code].get("fields", "").split())
        rules.append(Rule(code, name, reasons[code], which, fields))
    return tuple(rules), names, reasons
