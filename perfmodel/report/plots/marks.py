"""What figures consist of before anything draws them: panels with axes and marks, in SI units.

`figure.draw` draws them for papers, ``page/figure.js`` for pages, of the same description.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from perfmodel.base.errors import DataError
from perfmodel.base.figures import INK, LETTER, SMALL, TEXT

LEAST, MOST = 1.5, 20.0
"""Widths that can be read [in]."""


@dataclass(frozen=True, slots=True)
class Paper:
    """The width of a figure, and how wide words may be [in]."""

    width: float

    def height(self, share: float) -> float:
        """Return the height of a figure as a share of a column's width, less of a page's."""
        column = WIDTHS["column"]
        return share * (
            self.width if self.width <= column else column + 0.25 * (self.width - column)
        )

    @property
    def wide(self) -> bool:
        """Whether there is room for long words beside bars."""
        return self.width > 4.5


def paper_of(width: str | float) -> Paper:
    """Return the paper of ``column``, ``page`` or a width in inches.

    Raises
    ------
    DataError
        It is none of these, or too narrow or wide to be read.
    """
    inches = WIDTHS.get(str(width))
    if inches is None:
        try:
            inches = float(width)
        except ValueError:
            inches = float("nan")
    if not LEAST <= inches <= MOST:
        raise DataError(
            f"width: '{width}' is not {', '.join(WIDTHS)} or inches from {LEAST:g} to {MOST:g}"
        )
    return Paper(inches)


Numbers = Sequence[float]
Scale = Literal["linear", "log", "category"]
WIDTHS = {"column": 3.3, "page": 7.0}
"""Of a column and of a page of two [in]."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    Attributes
    ----------
    name : str
        The variable, as data files call it.
    label, unit : str
        Words and unit shown.
    factor : float
        What one shown unit is in SI units: 1e-3 of ms.
    scale : {"linear", "log", "category"}
    low, high : float
        Ends, in SI units; of categories their numbers.
    ticks : tuple of (float, str)
        Where, in SI units, and what is written there.
    """

    name: str
    label: str
    unit: str = ""
    factor: float = 1.0
    scale: Scale = "linear"
    low: float = 0.0
    high: float = 1.0
    ticks: tuple[tuple[float, str], ...] = ()

    @property
    def title(self) -> str:
        """The words beside the axis, with the unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def title_in(self, room: float) -> str:
        """Return the title, the unit on a line of its own where it has no room otherwise [pt]."""
        fits = not self.unit or len(self.title) * LETTER * TEXT <= 0.9 * room
        return self.title if fits else f"{self.label}\n({self.unit})"

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at `low` and 1 at `high`."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def category(self, value: float) -> str | float:
        """Return what an axis of categories calls a value."""
        if self.scale != "category":
            return value
        return str(dict(self.ticks).get(value, value)).replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Points:
    """Points, with bands along y where `low` and `high` are given."""

    x: Numbers
    y: Numbers
    colour: str
    label: str = ""
    marker: str = "circle"
    size: float | Numbers = 4.0  # diameter [pt]
    alpha: float = 1.0
    hollow: bool = False
    low: Numbers = ()
    high: Numbers = ()
    texts: Sequence[str] = ()
    keyed: bool = True  # explained in a key, rather than by words beside it


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    x: Numbers
    y: Numbers
    colour: str
    label: str = ""
    dashed: bool = False
    width: float = 1.0  # [pt]
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class Band:
    """What lies between two lines."""

    x: Numbers
    low: Numbers
    high: Numbers
    colour: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars, each on a number of a y axis of categories."""

    at: Numbers
    start: Numbers
    length: Numbers
    colour: str
    label: str = ""
    hatch: str = ""
    height: float = 0.68
    edge: bool = True
    texts: Sequence[str] = ()
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class Cells:
    """A table of numbers as colours; NaN where there is none.

    Attributes
    ----------
    values : sequence of sequence of float
        By row (y) and column (x), in units of `scale`.
    texts : sequence of sequence of str
        What stands in the cells.
    hatched : tuple of (int, int)
        Row and column of cells that are hatched.
    scale : Axis
        Of the colours.
    reverse : bool
        Whether small numbers are bright.
    """

    values: Sequence[Numbers]
    texts: Sequence[Sequence[str]]
    hatched: tuple[tuple[int, int], ...]
    scale: Axis
    reverse: bool = False
    hatched_label: str = ""

    def share(self, value: float) -> float:
        """Return the place of a value in the colours, 0 to 1."""
        if self.scale.high <= self.scale.low:
            return 1.0
        share = self.scale.share(value)
        return 1.0 - share if self.reverse else share


@dataclass(frozen=True, slots=True)
class Text:
    """Words at a point of the data, moved by some points (1/72 in)."""

    x: float
    y: float
    text: str
    colour: str = INK
    align: Literal["left", "center", "right"] = "left"
    valign: Literal["top", "center", "bottom"] = "center"
    dx: float = 0.0
    dy: float = 0.0
    angle: float = 0.0
    size: float = SMALL
    halo: bool = True


Mark = Points | Line | Band | Bars | Cells | Text


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes with what they show."""

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    height: float = 1.0  # share of the figure's, beside those of other panels
    grid: bool = False
    square: bool = False


def rows_of(panel: Panel, mark: Mark) -> Iterator[dict[str, Any]]:
    """Return the numbers of a mark; none of texts."""
    x, y = panel.x, panel.y
    match mark:
        case Points() | Line():
            texts = getattr(mark, "texts", ())
            bands = [getattr(mark, name, ()) for name in ("low", "high")]
            for at, (one, other) in enumerate(zip(mark.x, mark.y, strict=True)):
                row = {"series": mark.label, x.name: x.category(one), y.name: y.category(other)}
                for name, band in zip(("low", "high"), bands, strict=True):
                    if len(band):
                        row[f"{y.name}_{name}"] = band[at]
                if len(texts):
                    row["text"] = texts[at]
                yield row
        case Band():
            for one, low, high in zip(mark.x, mark.low, mark.high, strict=True):
                yield {
                    "series": mark.label,
                    x.name: one,
                    f"{y.name}_low": low,
                    f"{y.name}_high": high,
                }
        case Bars():
            for at, (place, start, length) in enumerate(
                zip(mark.at, mark.start, mark.length, strict=True)
            ):
                found = {
                    "series": mark.label,
                    y.name: y.category(place),
                    "start": start,
                    x.name: length,
                }
                yield found | ({"text": mark.texts[at]} if len(mark.texts) else {})
        case Cells():
            for line, values in enumerate(mark.values):
                for column, value in enumerate(values):
                    state = {} if math.isfinite(value) else {"text": mark.texts[line][column]}
                    yield {
                        x.name: x.category(column),
                        y.name: y.category(line),
                        mark.scale.name: value if math.isfinite(value) else None,
                        **state,
                    }


def legend_of(panels: Sequence[Panel]) -> list[Points | Line | Band | Bars | Cells]:
    """Return the marks that a key explains, one per label."""
    found: dict[str, Any] = {}
    for panel in panels:
        for mark in panel.marks:
            label = mark.hatched_label if isinstance(mark, Cells) else getattr(mark, "label", "")
            if label and getattr(mark, "keyed", True):
                found.setdefault(label, mark)
    return list(found.values())


def described_panel(panel: Panel) -> dict[str, Any]:
    """Return a panel as JSON has it: fields by their names, and of marks what they are."""
    return {
        "x": described_axis(panel.x),
        "y": described_axis(panel.y),
        "marks": [
            {"mark": type(mark).__name__.lower(), **_fields(mark)}
            | ({"scale": described_axis(mark.scale)} if isinstance(mark, Cells) else {})
            for mark in panel.marks
        ],
        "height": panel.height,
    }


def described_axis(axis: Axis) -> dict[str, Any]:
    """Return an axis as JSON has it."""
    return {**_fields(axis), "title": axis.title}


def _fields(item: Any) -> dict[str, Any]:
    return {it.name: _plain(getattr(item, it.name)) for it in fields(item)}


def _plain(value: Any) -> Any:
    """Return numbers and texts as JSON knows them; None for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(it) for it in value]
    return value.item() if hasattr(value, "item") else value


def _axis_document(axis: Axis) -> dict[str, Any]:
    return {
        "name": axis.name,
        "label": axis.title,
        "scale": axis.scale,
        "low": axis.low,
        "high": axis.high,
    }
