"""Where the time of strategies goes, as bars that add up to it."""

from __future__ import annotations

from perfmodel.base.errors import DataError
from perfmodel.base.figures import INK
from perfmodel.base.table import Table
from perfmodel.base.variables import RATE
from perfmodel.report.plots.axes import number_axis, short_number
from perfmodel.report.plots.describe import Axis, Line, Mark, Text
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.names import in_common
from perfmodel.report.plots.parts import TIMES, Whole
from perfmodel.report.plots.sizes import Paper
from perfmodel.report.plots.stacked import TOP, Rows, bar_names, bars_plot, chosen_rows, stacked
from perfmodel.store.subject import subject_of


def breakdown_plot(
    table: Table,
    *,
    top: int = TOP,
    by: str = RATE,
    each: str | None = None,
    band: bool = False,
    where: str | None = None,
    everything: bool = False,
    paper: Paper,
) -> Plot:
    """Describe where the time goes; options as of `perfmodel.plot`."""
    subject = subject_of(table)
    found = chosen_rows(table, top, by, each, where, everything)
    whole = TIMES[subject.verb]
    marks, axis = stacked(found, whole, "s", margin=0.05 if band else 0.13)
    notes = [in_common(found, subject)]
    if band:
        if f"{whole.name}_low" not in table:
            raise DataError("no band: only steps of training have one")
        marks += _bands(found, whole.name)
        notes.append("line: 10th to 90th percentile")
        most = max(row[f"{whole.name}_high"] for row in found)
        axis = number_axis(axis.name, "s", [0.0, most], zero=True, label=whole.words)
    else:
        marks += _totals(found, whole, axis)
    return bars_plot("breakdown", bar_names(found, each, table, paper), axis, marks, notes, paper)


def _totals(found: Rows, whole: Whole, axis: Axis) -> list[Mark]:
    marks: list[Mark] = []
    for at, row in enumerate(found):
        total = sum(float(row[part.name]) for part in whole.parts)
        marks.append(Text(total, float(at), short_number(total, axis.factor), dx=3.0, halo=False))
    return marks


def _bands(found: Rows, name: str) -> list[Mark]:
    return [
        Line([row[f"{name}_low"], row[f"{name}_high"]], [at, at], INK, "10–90 %", keyed=not at)
        for at, row in enumerate(found)
    ]
