"""Predicted against measured, and the errors of groups."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from perfmodel.base.cells import read as read_cells
from perfmodel.base.columns import natural_order
from perfmodel.base.errors import DataError, FormatError, did_you_mean
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.figures import GREY, MARKERS, PALETTE, SOFT
from perfmodel.base.files import read_text, shortened, user_path
from perfmodel.report.plots.axes import category_axis, log_ticks, number_axis
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Axis, Band, Line, Panel, Paper, Points, Text

BAND = 0.1
MOST_GROUPS = 12
OTHERS, NOT_STATED = "others", "not stated"
ROW, FRAME = 0.17, 0.5
"""Height of a group's row, and of what is around them [in]."""
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


Pair = tuple[Mapping[str, str], float, float]
"""Cells of a row that was scored, what was measured and what projected."""


class Compared(Protocol):
    """Projections beside measurements, as `perfmodel.measured.compare.Comparison` has them.

    Attributes
    ----------
    file : str
        The table's path.
    by : tuple of str
        Columns that it is grouped by where nobody says.
    quantity, unit : str
        What was compared.
    """

    @property
    def file(self) -> str: ...
    @property
    def by(self) -> tuple[str, ...]: ...
    @property
    def quantity(self) -> str: ...
    @property
    def unit(self) -> str: ...

    def scored_rows(self) -> list[Pair]:
        """Return cells, measured and projected value of every row that has both."""
        ...


class ComparedFile(NamedTuple):
    """A comparison as it was written; attributes as of `Compared`."""

    file: str
    by: tuple[str, ...]
    quantity: str
    unit: str
    rows: list[Pair]

    def scored_rows(self) -> list[Pair]:
        """Return cells, measured and projected value of every row that has both."""
        return self.rows


class Scored(NamedTuple):
    """Rows with a projection.

    Attributes
    ----------
    measured, projected : ndarray
    groups : list of str
    by : str
        What groups are of; empty where there is one.
    quantity, unit : str
    """

    measured: Any
    projected: Any
    groups: list[str]
    by: str
    quantity: str
    unit: str


def accuracy_plot(
    found: Compared | str | Path,
    *,
    group: str | None = None,
    where: str | None = None,
    paper: Paper,
) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    if isinstance(found, str | Path):
        found = read_compared(found)
    scored = _scored(found, group, where)
    order = _groups(scored)
    errors = scored.projected / scored.measured - 1.0
    of = np.array([name if name in order else OTHERS for name in scored.groups])
    axes = _axes(scored)
    low, high = axes[0].low, axes[0].high
    line = np.geomspace(low, high, 9).tolist()
    marks: list[Any] = [
        Band(line, [it * (1 - BAND) for it in line], [it * (1 + BAND) for it in line], SOFT),
        Line([low, high], [low, high], GREY, width=0.6),
        Text(high, high * (1 - BAND), f"±{BAND:.0%}", GREY, "right", "top", 0.0, -22.0),
    ]
    size = float(np.clip(60.0 / np.sqrt(len(errors)), 1.6, 4.0))
    rows: list[Any] = []
    for number, name in enumerate(order):
        own = of == name
        colour = GREY if name == OTHERS or number >= len(PALETTE) else PALETTE[number]
        marker = MARKERS[number % len(MARKERS)]
        marks.append(
            Points(
                scored.measured[own].tolist(), scored.projected[own].tolist(), colour, name, marker,
                size, 0.65, keyed=False,
            )
        )  # fmt: skip
        rows += _spread(errors[own], float(number), colour, marker, name)
    reach = max(2 * BAND, float(np.percentile(np.abs(errors), 95)))
    error = number_axis(
        "error", "1", [-reach, reach], label="predicted / measured − 1", margin=0.14, wanted=6
    )
    names = [f"{name or 'all'} ({(of == name).sum():,})" for name in order]
    ends = [-0.5, len(order) - 0.5]
    background = [Line([0.0, 0.0], ends, GREY, width=0.6)]
    background += [Line([it, it], ends, GREY, dashed=True, width=0.5) for it in (-BAND, BAND)]
    square = round(0.92 * min(paper.width, 3.3), 3)
    below = FRAME + ROW * len(order)
    height = round(square + below, 3)
    panels = (
        Panel(*axes, tuple(marks), square / height, square=True),
        Panel(error, category_axis("group", names), (*background, *rows), below / height),
    )
    absolute = np.abs(errors)
    notes = [
        f"{len(errors):,} rows of {Path(found.file).name}: median error {np.median(absolute):.1%}, "
        f"within {BAND:.0%}: {(absolute <= BAND).mean():.0%}",
        f"below: median and 10th to 90th percentile by {scored.by}"
        if scored.by
        else "below: median and 10th to 90th percentile",
    ]
    facts = {
        "median_absolute_error": float(np.median(absolute)),
        "share_within_band": float((absolute <= BAND).mean()),
    }
    return Plot(
        "accuracy", panels, paper.width, height, notes=tuple(notes), facts=facts, aligned=False
    )


def _scored(found: Compared, group: str | None, where: str | None) -> Scored:
    """Return the rows that count, and how they are grouped."""
    rows = found.scored_rows()
    if where:
        columns = list(dict.fromkeys(name for cells, *_ in rows for name in cells))
        mask = evaluate_mask(where, lambda name: _typed(rows, name), columns, len(rows))
        rows = [row for row, chosen in zip(rows, mask, strict=True) if chosen]
    if not rows:
        raise DataError(f"{found.file}: no row was scored, so that there is nothing to draw")
    by = group if group is not None else found.by[0] if found.by else ""
    by = "" if by == "none" else by
    if by and by not in rows[0][0]:
        raise DataError(f"cannot group by '{by}': no such column{did_you_mean(by, rows[0][0])}")
    groups = [(cells.get(by) or NOT_STATED) if by else "" for cells, *_ in rows]
    pairs = np.array([values for _, *values in rows], float)
    return Scored(pairs[:, 0], pairs[:, 1], groups, by, found.quantity, found.unit)


def _typed(rows: Sequence[Pair], name: str) -> Any:
    texts = [cells.get(name, "") for cells, *_ in rows]
    try:
        return np.array([float(text or "nan") for text in texts])
    except ValueError:
        return np.array(texts, str)


def _groups(scored: Scored) -> list[str]:
    """Return the groups that have a row of their own, in a natural order."""
    counts: dict[str, int] = {}
    for name in scored.groups:
        counts[name] = counts.get(name, 0) + 1
    often = sorted(counts, key=lambda name: (-counts[name], name))
    if len(often) > MOST_GROUPS:
        return [*sorted(often[: MOST_GROUPS - 1], key=lambda it: natural_order((it, 0))), OTHERS]
    return sorted(often, key=lambda it: natural_order((it, 0)))


def _axes(scored: Scored) -> tuple[Axis, Axis]:
    every = np.concatenate([scored.measured, scored.projected])
    low, high = float(every.min()) / 1.4, float(every.max()) * 1.4
    ticks = tuple((at, _prefixed(at, scored.unit)) for at, _ in log_ticks(low, high, wanted=4))
    words = scored.quantity.replace("_", " ")
    return tuple(
        Axis(name, f"{name} {words}", "", 1.0, "log", low, high, ticks)
        for name in ("measured", "predicted")
    )  # type: ignore[return-value]


def _prefixed(value: float, unit: str) -> str:
    """Write a tick with its unit and prefix: 10 µs."""
    factor, prefix = next(it for it in (*PREFIXES, (1e-12, "p")) if value >= 0.999 * it[0])
    return f"{value / factor:g} {prefix}{unit}".rstrip()


def _spread(errors: Any, at: float, colour: str, marker: str, name: str) -> list[Any]:
    """Return the median and the 10-90 % range of a group's errors."""
    low, middle, high = np.percentile(errors, (10, 50, 90)).tolist()
    label = f"{name}: 10th to 90th percentile".removeprefix(": ")
    return [
        Line([low, high], [at, at], colour, label, width=1.4, keyed=False),
        Points(
            [middle], [at], colour, f"{name}: median".removeprefix(": "), marker, 4.5, keyed=False
        ),
    ]


VALUES = ("measured", "projected")
NEEDED = ("line", *VALUES, "skip_reason")
LARGEST = 2**28  # B
USUAL = ("hardware", "model", "kind", "dtype", "precision")
"""What rows are grouped by where nobody says, the first that differs."""


def read_compared(path: str | Path) -> ComparedFile:
    """Return a written comparison, grouped by the first of `USUAL` that tells rows apart.

    Raises
    ------
    DataError
        The file is missing, no such table, or has a broken row (named by its line).
    """
    source = user_path(path)
    if not source.is_file():
        raise DataError(f"'{source}' does not exist; 'perfmodel compare … -o FILE.csv' writes one")
    try:
        text = read_text(source, "what 'perfmodel compare -o' writes", LARGEST)
        header, *lines = list(map(read_cells, csv.reader(io.StringIO(text)))) or [[]]
    except (FormatError, csv.Error) as error:
        raise DataError(f"'{source}' is no table of compared runs: {error}") from None
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise DataError(
            f"'{source}' is no table of compared runs: no column {', '.join(missing)}; "
            "'perfmodel compare … -o FILE.csv' writes one"
        )
    every: list[Mapping[str, str]] = []
    rows: list[Pair] = []
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise DataError(f"{source}:{number}: {len(line)} cells; the header has {len(header)}")
        cells = dict(zip(header, line, strict=True))
        measured, projected = (_number(cells, name, f"{source}:{number}") for name in VALUES)
        every.append(cells)
        if measured is not None and projected is not None:
            rows.append((cells, measured, projected))
    said = every[0] if every else {}
    by = next((it for it in USUAL if len({cells.get(it) for cells in every}) > 1), None)
    return ComparedFile(
        str(source),
        (by,) if by else (),
        said.get("quantity") or "time",
        said.get("quantity_unit", "s"),
        rows,
    )


def _number(cells: Mapping[str, str], name: str, where: str) -> float | None:
    """Return a positive number; None where the cell is empty."""
    text = cells[name]
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1e100:
        raise DataError(f"{where}: {name} '{shortened(text)}' is not a positive number")
    return value
