"""The best value over two fields, in cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE
from perfmodel.report.plots.axes import (
    category_axis,
    field_words,
    inner_size,
    short_number,
    text_size,
    variable_axis,
)
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Cells, Panel, Paper
from perfmodel.store.results import LARGER_IS_BETTER, column, select, shape_of
from perfmodel.store.subject import SERVING, TRAINING, subject_of
from perfmodel.wafer.result_subject import SUBJECT as WAFER

DEFAULTS = {
    TRAINING.verb: ("tensor_parallel", "pipeline_parallel"),
    SERVING.verb: ("concurrency", "tensor_parallel"),
    WAFER.verb: ("grid_columns", "context"),
}
MOST = 40
"""Values of a field that can be told apart."""
TOO_LARGE = "does not fit"
HATCHED = "impossible, or not in the sweep"


def heatmap_plot(
    table: Table,
    *,
    x: str | None = None,
    y: str | None = None,
    value: str | None = None,
    where: str | None = None,
    everything: bool = False,
    log: bool = False,
    paper: Paper,
) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    subject = subject_of(table)
    default = DEFAULTS[subject.verb]
    names = [subject.aliases.get(it, it) for it in (x or default[0], y or default[1])]
    value = subject.aliases.get(value or RATE, value or RATE)
    columns = [column(table, name) for name in names]
    numbers = column(table, value)
    if numbers.dtype.kind not in "fiub":
        raise DataError(f"'{value}' is not a number and has no colour")
    possible = select(table, where, fitting=False)
    chosen = possible if everything else select(table, where)
    known = [_values(every, name) for every, name in zip(columns, names, strict=True)]
    reverse = value not in LARGER_IS_BETTER
    best = _best(numbers, columns, known, chosen, reverse)
    if not np.isfinite(best).any():
        raise DataError("nothing to draw: no strategy is possible, fits and passes the filter")
    there = np.isfinite(_best(numbers, columns, known, possible, reverse))
    scale = variable_axis(table, value, best, margin=0.0, log=log)
    paper_height = _height(paper, known)
    hatched = [(row, at) for row, at in np.argwhere(~there).tolist()]
    texts = _texts(best, there, scale.factor, paper, paper_height)
    cells = Cells(
        best.tolist(),
        texts,
        tuple(hatched),
        scale,
        reverse,
        HATCHED if hatched else "",
    )
    x_axis, y_axis = (
        category_axis(
            name, [_tick(it) for it in values], label=field_words(table, name), down=False
        )
        for name, values in zip(names, known, strict=True)
    )
    others = math.prod(shape_of(table))
    notes = [f"best {field_words(table, value)} of {chosen.size:,} of {others:,} strategies"]
    if (there & ~np.isfinite(best)).any():
        notes.append("–: possible, does not fit")
    panel = Panel(x_axis, y_axis, (cells,))
    return Plot("heatmap", (panel,), paper.width, paper_height, notes=tuple(notes))


def _values(every: NDArray[Any], name: str) -> list[Any]:
    known: list[Any] = np.unique(every).tolist()
    if len(known) > MOST:
        raise DataError(f"'{name}' has {len(known):,} values; at most {MOST} can be told apart")
    return known


def _best(
    numbers: NDArray[Any],
    columns: list[NDArray[Any]],
    known: list[list[Any]],
    chosen: NDArray[np.intp],
    smallest: bool,
) -> NDArray[np.float64]:
    """Return the best of chosen numbers by values of y and x, NaN where there is none."""
    at = [np.searchsorted(it, every[chosen]) for it, every in zip(known, columns, strict=True)]
    sign = 1.0 if smallest else -1.0
    found = np.full((len(known[1]), len(known[0])), math.inf)
    values = sign * numbers[chosen].astype(float)
    np.fmin.at(found, (at[1], at[0]), values)
    return np.where(np.isfinite(found), sign * found, math.nan)


def _height(paper: Paper, known: list[list[Any]]) -> float:
    """Return a height with which cells are about half as high as they are wide, or square."""
    across, up = (len(it) for it in known)
    cell = (paper.width - 1.3) / across
    return round(min(max(0.85 + up * min(max(cell * 0.62, 0.2), 0.45), 1.4), 1.3 * paper.width), 3)


def _texts(
    best: NDArray[np.float64], there: NDArray[np.bool_], factor: float, paper: Paper, height: float
) -> list[list[str]]:
    """Return what stands in the cells: as many digits as have room, or nothing."""
    wide, high = inner_size(paper.width - 0.55, height)
    room = wide / best.shape[1], high / best.shape[0]
    for write in (short_number, _whole_number):
        texts = [
            [
                write(it, factor) if math.isfinite(it) else "–" * bool(ok)
                for it, ok in zip(*line, strict=True)
            ]
            for line in zip(best.tolist(), there.tolist(), strict=True)
        ]
        sizes = [text_size(it) for line in texts for it in line if it]
        if all(size[0] < 0.92 * room[0] and size[1] < 1.1 * room[1] for size in sizes):
            return texts
    return [["–" if it == "–" else "" for it in line] for line in texts]


def _whole_number(value: float, factor: float) -> str:
    return f"{value / factor:.0f}" if abs(value) >= 9.5 * factor else f"{value / factor:.1g}"


def _tick(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
