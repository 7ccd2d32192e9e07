"""What is said of a kernel: its axes, its settings, and how a grid of it is evaluated."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.fields import Field, field_of
from perfmodel.base.precisions import (
    ATTENTION_PRECISIONS,
    CACHE_FORMATS,
    OPERANDS,
    STREAM_PRECISIONS,
)
from perfmodel.compute.recurrence_counts import RECURRENCE_PHASES, RECURRENCES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Columns = Mapping[str, Any]
    Evaluated = tuple[Columns, Sequence[str]]

Values = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Grid:
    """One way to evaluate a kernel.

    Attributes
    ----------
    title : str
        What the kernels are called in a dataset.
    apart, axes : tuple of str
        Axes of which a call has one value, and those that it has columns of: together the
        order of the dataset, in which the last one varies fastest.
    evaluate : callable
        (device, columns, one keyword for each axis in `apart` and each setting) -> columns of
        results, and what the codes of ``bound`` mean. Raises `HardwareError` where the device
        has no such kernel.
    long_names : mapping of str to str
        Of axes that mean something else here.
    """

    title: str
    apart: tuple[str, ...]
    axes: tuple[str, ...]
    evaluate: Callable[..., Evaluated]
    long_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with all that may be said about a grid of it.

    Attributes
    ----------
    name, short_help : str
    axes : tuple of Field
        In the order of a help page. An axis takes whole numbers (kind "counts"), names of its
        choices or free words ("names"; "argument" where it is no option); its default is its one
        value where none is given, or none at all if empty. Some must be given without one.
    settings : tuple of Field
        What is the same for a whole grid.
    choose : callable
        Values of all axes -> the `Grid` that they are for; raises `DataError` where they do
        not go together.
    """

    name: str
    short_help: str
    axes: tuple[Field, ...]
    settings: tuple[Field, ...]
    choose: Callable[[Values], Grid]

    def grid(self, axes: Values) -> tuple[Grid, Values]:
        """Return how some axes are evaluated, and the values of all, defaults included.

        Raises
        ------
        DataError
            Unknown axis or name, an axis without values, or some that do not go together.
        """
        check_names(axes, [axis.name for axis in self.axes], f"a grid of {self.name} has no axis")
        found: dict[str, Sequence[Any]] = {}
        for axis in self.axes:
            default = [] if axis.default in (None, "") else [axis.default]
            found[axis.name] = values = list(axes.get(axis.name, default))
            if not values and axis.default != "":
                raise DataError(f"a grid of {self.name} needs values of '{axis.name}'")
            if axis.choices:
                check_names(values, axis.choices, f"unknown {axis.name}")
        return self.choose(found), found


def check_names(names: Iterable[Any], known: Collection[str], what: str) -> None:
    """Refuse what is not known.

    Raises
    ------
    DataError
    """
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known) or f"; known: {', '.join(known)}"
            raise DataError(f"{what} '{name}'{hint}")


def timed_columns(found: object, *more: str) -> dict[str, NDArray[Any]]:
    """Return the columns that the times of every kernel have, and `more`."""
    return {
        name: getattr(found, name) for name in ("time", "flops", "memory_traffic", "bound", *more)
    }


CHOICES: Mapping[str, tuple[str, ...]] = {
    "operands": OPERANDS,
    "attention": ATTENTION_PRECISIONS,
    "stream": STREAM_PRECISIONS,
    "cache": ("same", *CACHE_FORMATS),
    "recurrences": RECURRENCES,
    "recurrence_phases": RECURRENCE_PHASES,
}
"""Word for the names that an axis knows -> these names."""


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("kernels.toml").read_text(encoding="utf-8"))


def _row(kernel: str, name: str) -> dict[str, Any]:
    """Return what the table says of an axis or a setting: its own, or what several have."""
    document = _document()
    row = document[kernel].get(name) or document["common"][name]
    return _row(row["like"], name) if "like" in row else row


def kernel_of(name: str, choose: Callable[[Values], Grid]) -> Kernel:
    """Return a kernel with the axes and settings that ``kernels.toml`` says of it."""
    table = _document()[name]
    axes = tuple(_axis(axis, _row(name, axis)) for axis in table["axes"])
    settings = tuple(_setting(setting, _row(name, setting)) for setting in table["settings"])
    return Kernel(name, table["short_help"], axes, settings, choose)


def _axis(name: str, row: Mapping[str, Any]) -> Field:
    """Return an axis; whole numbers begin at 1, or at 0 where that is the default."""
    choices, text = row.get("choices", ()), row["long_name"]
    known = CHOICES[choices] if isinstance(choices, str) else choices
    plain = {
        "kind": "names" if known else "counts",
        "minimum": 0 if row.get("default") == 0 else 1,
        "required": "default" not in row,
        "description": text[0].upper() + text[1:],
    }
    return field_of(name, {**plain, **row, "choices": known})


KIND_OF: Mapping[type, str] = {bool: "flag", int: "int", float: "float"}


def _setting(name: str, row: Mapping[str, Any]) -> Field:
    """Return a setting, whose kind its default says."""
    return field_of(name, {"kind": KIND_OF.get(type(row.get("default")), "text"), **row})
