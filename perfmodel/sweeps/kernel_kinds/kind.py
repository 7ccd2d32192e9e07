"""What is said of a kernel: its axes, its settings, and how a grid of it is evaluated."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError, did_you_mean
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
class GridAxis:
    """An axis of a kernel: whole numbers, names, or free words.

    Attributes
    ----------
    name : str
    long_name : str
        What it is, in a dataset.
    help : str
        What it is, in a help page; the same if empty.
    default : int or str, optional
        Its one value where none is given, or none at all if empty; None: some must be given.
        Whole numbers begin at 1, or at 0 where that is the default.
    choices : tuple of str
        Of names.
    words : bool
        Free words, which the evaluation checks.
    units : str
    option : str
        Its option where that is not its name; ``-`` for an argument.
    """

    name: str
    long_name: str
    help: str = ""
    default: int | str | None = None
    choices: tuple[str, ...] = ()
    words: bool = False
    units: str = "1"
    option: str = ""

    @property
    def minimum(self) -> int:
        """Smallest whole number."""
        return 0 if self.default == 0 else 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for a whole grid.

    Attributes
    ----------
    name, help : str
    default : bool, int, float or None
        Its type is the setting's; None for a text.
    flags : tuple of str
        Spellings on the command line, where they are not its name.
    least, most : float, optional
        Of a number.
    metavar : str, optional
    """

    name: str
    help: str
    default: bool | int | float | None
    flags: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    metavar: str | None = None


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
    axes : tuple of GridAxis
        In the order of a help page.
    settings : tuple of Setting
    choose : callable
        Values of all axes -> the `Grid` that they are for; raises `DataError` where they do
        not go together.
    """

    name: str
    short_help: str
    axes: tuple[GridAxis, ...]
    settings: tuple[Setting, ...]
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
    axes = []
    for axis in table["axes"]:
        row = dict(_row(name, axis))
        choices = row.pop("choices", ())
        known = CHOICES[choices] if isinstance(choices, str) else tuple(choices)
        axes.append(GridAxis(axis, choices=known, **row))
    settings = []
    for setting in table["settings"]:
        row = {"default": None, **_row(name, setting)}
        settings.append(Setting(setting, **{**row, "flags": tuple(row.get("flags", ()))}))
    return Kernel(name, table["short_help"], tuple(axes), tuple(settings), choose)
