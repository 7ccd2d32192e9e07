"""Stacked bars: where the time and the memory of strategies go, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base import figures
from perfmodel.base.errors import DataError
from perfmodel.base.figures import BLACK, INK
from perfmodel.base.table import Table
from perfmodel.kernels.variables import MEMORY_COMPONENTS, RATE
from perfmodel.report.kinds import SHOWN
from perfmodel.report.plots.axes import category_axis, number_axis, short_number
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Axis, Bars, Line, Mark, Panel, Paper, Text
from perfmodel.report.plots.names import full_name, in_common, names_of, picked
from perfmodel.store.results import best_of_each, best_rows, rows
from perfmodel.store.subject import TRAINING, subject_of


class Part(NamedTuple):
    """A part of a whole: variable, words, colour and hatch."""

    name: str
    words: str
    colour: str
    hatch: str = ""


class Whole(NamedTuple):
    """What parts add up to.

    Attributes
    ----------
    name : str
        The variable; empty where no variable has the sum.
    words : str
    parts : tuple of Part
        In the order in which they are stacked.
    """

    name: str
    words: str
    parts: tuple[Part, ...]


def _wholes(what: str) -> Mapping[str, Whole]:
    """Return what times, or memory, are made of by what results are about."""
    return {
        verb: Whole(
            told.get("name", ""),
            told["words"],
            tuple(
                Part(name, words, getattr(figures, colour.upper()), HATCH if hatched else "")
                for name, words, colour, *hatched in told["parts"]
            ),
        )
        for verb, told in SHOWN[what].items()
    }


HATCH = "/////"
TIMES, MEMORY = _wholes("time"), _wholes("memory")
"""Parts of times, which are those of ``TIME_COMPONENTS``, and of memory: by the verb of results."""


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


SHORT = ("last forward", "first layer backward", "last layer backward", "update")
"""Of `perfmodel.training.stages.MOMENTS`, as figures have room for."""


def memory_plot(
    table: Table,
    *,
    top: int = TOP,
    by: str = RATE,
    each: str | None = None,
    where: str | None = None,
    everything: bool = False,
    stages: bool = False,
    pick: int = 1,
    paper: Paper,
) -> Plot:
    """Describe where the memory goes; options as of `perfmodel.plot`."""
    if stages:
        return _of_stages(table, pick, by, where, everything, paper)
    subject = subject_of(table)
    found = chosen_rows(table, top, by, each, where, everything)
    whole = MEMORY[subject.verb]
    limits = [row.get("memory_capacity") for row in found]
    marks, axis = stacked(found, whole, "B", [it for it in limits if it is not None])
    marks += _capacity(limits)
    names = bar_names(found, each, table, paper)
    return bars_plot("memory", names, axis, marks, [in_common(found, subject)], paper)


def _of_stages(
    table: Table, pick: int, by: str, where: str | None, everything: bool, paper: Paper
) -> Plot:
    """Describe the memory of one strategy's stages, moment by moment.

    Raises
    ------
    DataError
        As of `picked`.
    """
    from perfmodel.training.stages import stage_memories

    row, problem, said = picked(table, pick, by, where, everything)
    found = stage_memories(*problem)
    held, names = [], []
    for stage in found:
        first, last = stage.first, stage.first + stage.stages - 1
        alike = f"stage {first}" if stage.stages == 1 else f"{stage.stages} stages from {first}"
        if stage.stages > 1 and len(found) <= 3:
            alike = f"stages {first}–{last}"
        for moment, sizes in zip(SHORT, stage.held, strict=True):
            held.append(dict(zip(MEMORY_COMPONENTS, sizes.tolist(), strict=True)))
            names.append(f"{alike}: {moment}" if paper.wide else f"{alike}:\n{moment}")
    limits = [float(row["memory_capacity"])] * len(held)
    marks, axis = stacked(held, MEMORY[TRAINING.verb], "B", limits[:1])
    marks += _capacity(limits)
    return bars_plot("memory", names, axis, marks, [said], paper)


def _capacity(limits: Sequence[float | None]) -> list[Mark]:
    """Return a line across every bar where its memory ends."""
    known = [(at, limit) for at, limit in enumerate(limits) if limit is not None]
    same = {limit for _, limit in known}
    if len(same) == 1 and len(known) == len(limits):
        (limit,) = same
        return [Line([limit] * 2, [-0.5, len(limits) - 0.5], BLACK, "capacity")]
    return [Line([limit] * 2, [at - 0.45, at + 0.45], BLACK, "capacity") for at, limit in known]
