"""Axes of variables: their words, units, ends and ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.figures import LETTER, SMALL
from perfmodel.base.table import Table
from perfmodel.base.units import GIB
from perfmodel.report.kinds import SHOWN, WAFERS
from perfmodel.report.plots.marks import Axis, Text
from perfmodel.store.results import as_table
from perfmodel.store.subject import subject_of

WORDS: Mapping[str, tuple[str, str]] = SHOWN["axes"]
"""Words and unit of variables where their name and units do not say it best."""
SHARES = ("utilization", "goodput", "efficiency", "share", "padding", "error", "elasticity")
"""Dimensionless variables with these in their names are shown in per cent."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
DECADE = (1.0, 2.0, 5.0)
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def variable_axis(table: Any, name: str, values: Any, **options: Any) -> Axis:
    """Return the axis of a variable or field of results; options as of `number_axis`."""
    table = as_table(table)
    name = subject_of(table).aliases.get(name, name)
    units = str(table[name].attrs.get("units", "1")) if name in table else "1"
    if name == "tokens_per_second" and subject_of(table).verb == WAFERS:
        options.setdefault("label", "speed of one user")
    return number_axis(name, units, values, **options)


def number_axis(
    name: str,
    units: str,
    values: Any,
    *,
    label: str = "",
    log: bool = False,
    zero: bool = False,
    margin: float = 0.05,
    wanted: int = 5,
) -> Axis:
    """Return an axis with round ticks that holds some values.

    Parameters
    ----------
    name, units : str
        Of the variable; SI units, as datasets have them.
    values : array_like
        What is shown; infinite and missing ones do not count.
    label : str
        Other words than those of `WORDS`.
    log : bool
        Logarithmic; zero and less do not count then.
    zero : bool
        Begin at zero.
    margin : float
        Share of the axis that stays free at its ends.
    wanted : int
        Ticks, about.
    """
    finite = np.asarray(values, float).ravel()
    finite = finite[np.isfinite(finite) & ((finite > 0.0) | (not log))]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (1.0, 2.0)
    words, unit, factor = shown_unit(name, units, high if log else max(abs(low), abs(high)))
    words = label or words
    if log:
        spread = max(math.log(high / low), 0.2)
        low, high = low * math.exp(-margin * spread), high * math.exp(margin * spread)
        ticks = log_ticks(low, high, factor, wanted)
        return Axis(name, words, unit, factor, "log", low, high, ticks)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    spread = (high - low) or abs(high) or 1.0
    low = low if zero and low == 0.0 else low - margin * spread
    high = high if zero and high == 0.0 else high + margin * spread
    return Axis(
        name, words, unit, factor, "linear", low, high, linear_ticks(low, high, factor, wanted)
    )


def category_axis(name: str, labels: Sequence[str], *, label: str = "", down: bool = True) -> Axis:
    """Return an axis of categories, the first one on top unless `down` is False."""
    low, high = -0.5, len(labels) - 0.5
    ticks = tuple((float(at), text) for at, text in enumerate(labels))
    ends = (high, low) if down else (low, high)
    return Axis(name, label, "", 1.0, "category", *ends, ticks)


def shown_unit(name: str, units: str, largest: float) -> tuple[str, str, float]:
    """Return words, shown unit and its factor for values up to `largest`."""
    base = next((base for base in (name, _stem(name)) if base in WORDS), "")
    words, unit = WORDS.get(base, (name.replace("_", " "), ""))
    ends = {"mean": "mean", "p50": "median", "p95": "95th percentile", "p99": "99th percentile"}
    if base and base != name:
        words += f", {ends[name.rpartition('_')[2]]}"
    if name == "cost_per_token":
        return words, unit, 1e-6
    if units == "s":
        steps = ((172800.0, "days", 86400.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3))
        return words, *next((it[1:] for it in steps if largest >= it[0]), ("µs", 1e-6))
    if units == "B":
        steps = ((1e12, "TiB", 2.0**40), (GIB / 4, "GiB", GIB), (2.0**18, "MiB", 2.0**20))
        return words, *next((it[1:] for it in steps if largest >= it[0]), ("kiB", 1024.0))
    if units == "1":
        percent = largest <= 10.0 and any(word in name for word in SHARES)
        return (words, "%", 0.01) if percent else (words, "", 1.0)
    unit = unit or units
    prefixes: tuple[tuple[float, str], ...] = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
    if units != "1/s":
        prefixes += ((1e3, "k"),)
    elif largest >= 1e5 and largest < 1e6:
        return words, f"1000 {unit}", 1e3
    elif largest >= 1e6:
        return words, f"million {unit}", 1e6
    for size, prefix in prefixes:
        if largest >= size:
            return words, f"{prefix}{unit}", size
    return words, unit, 1.0


def _stem(name: str) -> str:
    return name.rpartition("_")[0] if name.endswith(("_mean", "_p50", "_p95", "_p99")) else ""


LEAST = 1e-300
"""Numbers that differ by less are one, such as 0 and 0."""


def linear_ticks(
    low: float, high: float, factor: float = 1.0, wanted: int = 5
) -> tuple[tuple[float, str], ...]:
    """Return round numbers between two ends, in shown units."""
    low, high = low / factor, high / factor
    rough = (high - low) / max(wanted, 1)
    if not LEAST <= rough < math.inf:
        return ((low * factor, _number(low, 0)),)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in STEPS if one * power >= 0.999 * rough)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    digits += round(step * 10**digits, 6) % 1 != 0  # 2.5
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    numbers = [step * at for at in range(first, last + 1)]
    return tuple((number * factor, _number(number, digits)) for number in numbers)


def log_ticks(
    low: float, high: float, factor: float = 1.0, wanted: int = 5
) -> tuple[tuple[float, str], ...]:
    """Return powers of ten between two ends, in shown units; 1, 2 and 5 of a short axis."""
    low, high = low / factor, high / factor
    decades = math.log10(high / low)
    if decades < 0.7:
        return linear_ticks(low * factor, high * factor, factor, wanted)
    parts = DECADE if decades <= 2.3 else (1.0,)
    every = max(1, round(decades / wanted)) if len(parts) == 1 else 1
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [
        (part, power)
        for power in powers
        if power % every == 0
        for part in parts
        if low <= part * 10.0**power <= high
    ]
    return tuple((part * 10.0**power * factor, _power(part, power)) for part, power in numbers)


def _number(value: float, digits: int) -> str:
    return f"{value + 0.0:,.{digits}f}".replace("-", "−")


def _power(part: float, power: int) -> str:
    if -3 <= power <= 4:
        return f"{part * 10.0**power:,.{max(0, -power)}f}"
    return f"10{str(power).translate(SUPERSCRIPT)}"


def short_number(value: float, factor: float = 1.0) -> str:
    """Write a value in shown units with three digits at most."""
    number = value / factor
    if not math.isfinite(number):
        return ""
    size = abs(number)
    if size >= 9999.5:
        return f"{number / 1000:,.0f}k" if size >= 99999.5 else f"{number / 1000:.1f}k"
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{number:,.{digits}f}" if number != round(number) or digits == 0 else f"{number:.0f}"


def field_words(table: Table, name: str) -> str:
    """Return a field's or variable's name as words."""
    return subject_of(table).aliases.get(name, name).replace("_", " ")


LINE = 1.25
"""Height of a line, of its size."""
GAP = 4.0
"""Between a point and its words [pt]."""
MARGINS = (0.62, 0.5)
"""What axes take of a figure's width and height [in]."""


class Box(NamedTuple):
    """A rectangle on the paper [pt]."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Return the common area."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)


class Wanted(NamedTuple):
    """Words and the points of the data beside which they may stand, the best first."""

    text: str
    colour: str
    points: Sequence[tuple[float, float]]


def inner_size(width: float, height: float) -> tuple[float, float]:
    """Return about how large the axes of a figure are [pt]."""
    return 72.0 * (width - MARGINS[0]), 72.0 * (height - MARGINS[1])


def text_size(text: str) -> tuple[float, float]:
    """Return about how wide and high words are [pt]."""
    lines = text.split("\n")
    return LETTER * SMALL * max(map(len, lines)), LINE * SMALL * len(lines)


def placed(
    wanted: Sequence[Wanted],
    x: Axis,
    y: Axis,
    paper: tuple[float, float],
    occupied: Sequence[tuple[float, float]] = (),
    faint: Sequence[tuple[float, float]] = (),
    must: bool = True,
) -> list[Text]:
    """Choose a place for each of some words: near its point, on as little as can be.

    Parameters
    ----------
    wanted : sequence of Wanted
        The most important first.
    x, y : Axis
    paper : (float, float)
        Width and height of the axes [pt].
    occupied, faint : sequence of (float, float)
        Points of the data that words should not cover, and that they may if need be.
    must : bool
        Whether words that find no free place are written all the same.
    """

    def on_paper(point: tuple[float, float]) -> tuple[float, float]:
        return x.share(point[0]) * paper[0], y.share(point[1]) * paper[1]

    def covered(box: Box, dots: Floats) -> int:
        inside = (dots >= (box.left - 1, box.bottom - 1)) & (dots <= (box.right + 1, box.top + 1))
        return int(inside.all(axis=1).sum())

    dots, pale = (
        np.array([on_paper(point) for point in points]).reshape(-1, 2)
        for points in (occupied, faint)
    )
    taken: list[Box] = []
    found = []
    for text, colour, points in wanted:
        wide, high = text_size(text)
        best: tuple[float, Text, Box] | None = None
        for rank, point in enumerate(points):
            at = on_paper(point)
            for place, (align, valign, dx, dy) in enumerate(PLACES):
                left = at[0] + dx - {"left": 0.0, "center": wide / 2, "right": wide}[align]
                bottom = at[1] + dy - {"bottom": 0.0, "center": high / 2, "top": high}[valign]
                box = Box(left, bottom, left + wide, bottom + high)
                outside = wide * high - box.overlap(Box(0.0, 0.0, *paper))
                clash = sum(map(box.overlap, taken))
                cost = 100 * (outside + clash) + 30 * covered(box, dots) + 2 * rank + place
                cost += min(covered(box, pale), 10)
                if best is None or cost < best[0]:
                    words = Text(*point, text, colour, align, valign, dx, dy)  # type: ignore[arg-type]
                    best = cost, words, box
        if best is not None and (must or best[0] < 30):
            found.append(replace(best[1]))
            taken.append(best[2])
    return found


PLACES = (
    ("left", "center", GAP, 0.0),
    ("center", "bottom", 0.0, GAP),
    ("right", "center", -GAP, 0.0),
    ("center", "top", 0.0, -GAP),
    ("left", "bottom", GAP, GAP),
    ("left", "top", GAP, -GAP),
    ("right", "bottom", -GAP, GAP),
    ("right", "top", -GAP, -GAP),
    ("center", "bottom", 0.0, 4 * GAP),
    ("center", "top", 0.0, -4 * GAP),
)
"""Side, and how far aside, of words at a point; the best first."""
