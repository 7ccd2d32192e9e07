"""Stacked bars: where the time and the memory of strategies go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.report.plots.axes import category_axis, number_axis
from perfmodel.report.plots.describe import Axis, Bars, Mark, Panel
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.names import full_name, names_of
from perfmodel.report.plots.parts import Whole
from perfmodel.report.plots.sizes import Paper
from perfmodel.store.results import best_of_each, best_rows, rows
from perfmodel.store.subject import subject_of

Rows = Sequence[Mapping[str, Any]]
TOP = 6
"""Strategies where nobody says how many."""
MOST = 40
BAR, FRAME = 0.19, 0.72
"""Height of a bar's row, and of what is around all [in]."""
LEAST_SHARE = 0.002
"""Of the longest bar: parts that are shorter in all bars are not explained."""


def chosen_rows(
    table: Table, top: int, by: str, each: str | None, where: str | None, everything: bool
) -> Rows:
    """Return the best strategies, or the best one for each value of a column.

    Raises
    ------
    DataError
        There is none, or there are more than can be read.
    """
    if each is not None:
        names = [subject_of(table).aliases.get(name, name) for name in each.split(",")]
        found = best_of_each(table, names, where=where, by=by, fitting=not everything)
        found.sort(key=lambda row: [row[name] for name in names])
    else:
        found = rows(table, best_rows(table, top, by, where=where, fitting=not everything))
    if not found:
        raise DataError("nothing to draw: no strategy is possible, fits and passes the filter")
    if len(found) > MOST:
        raise DataError(
            f"{len(found):,} bars could not be read; at most {MOST}: choose with --where"
        )
    return found


def stacked(
    found: Rows, whole: Whole, units: str, limits: Sequence[float] = (), margin: float = 0.05
) -> tuple[list[Mark], Axis]:
    """Return the bars of parts that add up, and their axis."""
    values = np.array([[row[part.name] for part in whole.parts] for row in found], float)
    ends = np.cumsum(values, axis=1)
    longest = float(ends[:, -1].max(initial=0.0))
    reach = [0.0, longest, *limits]
    axis = number_axis(
        whole.name or "time", units, reach, zero=True, label=whole.words, margin=margin
    )
    marks: list[Mark] = []
    for number, part in enumerate(whole.parts):
        own = np.flatnonzero(values[:, number] > 0.0)
        if not own.size:
            continue
        length = values[own, number]
        visible = length.max() > LEAST_SHARE * longest
        marks.append(
            Bars(
                own.tolist(),
                (ends[own, number] - length).tolist(),
                length.tolist(),
                part.colour,
                part.words,
                part.hatch,
                keyed=bool(visible),
            )
        )
    return marks, axis


def bars_plot(
    kind: str,
    names: Sequence[str],
    axis: Axis,
    marks: Sequence[Mark],
    notes: Sequence[str],
    paper: Paper,
) -> Plot:
    """Return the figure of some bars, as high as they need."""
    lines = sum(max(1.0, 0.62 * (1 + name.count("\n"))) for name in names)
    keys = sum(getattr(mark, "keyed", False) for mark in marks)
    rows_of_key = -(-keys // (3 if paper.width < 4.5 else 6))
    height = FRAME + BAR * max(lines, 2.0) + 0.13 * rows_of_key
    panel = Panel(axis, category_axis("strategy", names), tuple(marks))
    return Plot(kind, (panel,), paper.width, round(height, 3), notes=tuple(filter(None, notes)))


def bar_names(found: Rows, each: str | None, table: Table, paper: Paper) -> list[str]:
    """Return what bars are called: by the columns of which each value has a bar, if any."""
    subject = subject_of(table)
    if each is None:
        return names_of(found, subject, 34 if paper.wide else 20)
    names = [subject.aliases.get(name, name) for name in each.split(",")]
    return [full_name(row, names) for row in found]
