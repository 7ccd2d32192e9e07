"""Sweeps as a whole: what nothing beats in two variables, the best in cells, and scaling."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.figures import GREY, MARKERS, PALETTE
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE
from perfmodel.report.kinds import WAFERS
from perfmodel.report.plots.axes import (
    Wanted,
    category_axis,
    field_words,
    inner_size,
    number_axis,
    placed,
    short_number,
    text_size,
    variable_axis,
)
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Axis, Cells, Line, Panel, Paper, Points
from perfmodel.report.plots.names import full_name, groups_of
from perfmodel.store.results import (
    GROUPS,
    LARGER_IS_BETTER,
    column,
    front_among,
    rows,
    scaling,
    select,
    shape_of,
)
from perfmodel.store.subject import SERVING, TRAINING, subject_of

DEFAULTS = {
    TRAINING.verb: ("memory_total", RATE),
    SERVING.verb: ("tokens_per_second_per_user", RATE),
    WAFERS: ("tokens_per_second", "mesh_tokens_per_second"),
}
"""What lies along x and y where nobody says."""
FINE = (36, 27)
"""Parts of x and y per inch of width: of points behind the front, one is drawn in each."""


def pareto_plot(
    table: Table,
    *,
    x: str | None = None,
    y: str | None = None,
    group: str | None = None,
    band: bool = False,
    log: bool = False,
    where: str | None = None,
    everything: bool = False,
    paper: Paper,
) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    subject = subject_of(table)
    default = DEFAULTS.get(subject.verb)
    if default is None:
        raise DataError(f"results of 'perfmodel {subject.verb}' have no front; see its own figure")
    across, up = (subject.aliases.get(it, it) for it in (x or default[0], y or default[1]))
    chosen = select(table, where, fitting=not everything)
    values = [_numbers(table, name)[chosen] for name in (across, up)]
    shown = np.isfinite(values[0]) & np.isfinite(values[1])
    if log:
        shown &= (values[0] > 0.0) & (values[1] > 0.0)
    chosen, values = chosen[shown], [it[shown] for it in values]
    if not chosen.size:
        raise DataError("nothing to draw: no strategy is possible, fits and passes the filter")
    groups = groups_of(table, chosen, group)
    fronts_of = [
        front_among(table, (across, up), chosen[groups.of == number])
        for number in range(len(groups.labels))
    ]
    bands = [_band(table, up, front) if band else {} for front in fronts_of]
    reach = [values[0], np.concatenate([values[1], *(it for one in bands for it in one.values())])]
    x_axis = variable_axis(table, across, reach[0], log=log)
    y_axis = variable_axis(table, up, reach[1], log=log)
    marks: list[Any] = []
    fronts: list[Any] = []
    wanted: list[Wanted] = []
    dots: list[tuple[float, float]] = []
    faint: list[tuple[float, float]] = []
    for number, label in enumerate(groups.labels):
        own = np.flatnonzero(groups.of == number)
        if not own.size:
            continue
        front = fronts_of[number]
        at = own[np.searchsorted(chosen[own], front)]
        colour, marker = groups.colour(number), groups.marker(number)
        behind = _thinned(np.setdiff1d(own, at), values, [int(it * paper.width) for it in FINE])
        pale = [it[behind].tolist() for it in values]
        marks.append(Points(pale[0], pale[1], colour, label, marker, 2.2, 0.3, keyed=False))
        one, other = (it[at].tolist() for it in values)
        line = _steps(one, other, across, colour)
        fronts.append(line)
        dots += _along(line)
        texts = [full_name(row, subject.fields) for row in rows(table, front)]
        fronts.append(
            Points(
                one, other, colour, label, marker, 4.2, keyed=False, texts=texts, **bands[number]
            )
        )
        points = list(zip(one, other, strict=True))
        dots += points
        faint += zip(*pale, strict=True)
        if label:
            wanted.append(Wanted(label, colour, points[::-1]))
    size = inner_size(paper.width, paper.height(0.75))
    words = placed(wanted, x_axis, y_axis, size, dots, faint)
    notes = [f"{chosen.size:,} points"]
    count = len(faint) + sum(front.size for front in fronts_of)
    if count < chosen.size:
        notes = [f"{chosen.size:,} points, of which {count:,} are drawn: others lie on these"]
    if band:
        notes.append("bars: 10th to 90th percentile")
    notes.append(
        f"lines: not beaten in both, by {groups.name}"
        if groups.name
        else "line: not beaten in both"
    )
    panel = Panel(x_axis, y_axis, (*(it for it in marks if len(it.x)), *fronts, *words))
    facts = {"points": int(chosen.size), "drawn": count}
    return Plot(
        "pareto", (panel,), paper.width, paper.height(0.75), notes=tuple(notes), facts=facts
    )


def _numbers(table: Table, name: str) -> Any:
    values = column(table, name)
    if values.dtype.kind not in "fiub":
        raise DataError(f"'{name}' is not a number and cannot lie along an axis")
    return values.astype(float)


def _thinned(own: Any, values: list[Any], fine: list[int]) -> Any:
    """Return one of those points that would lie on each other."""
    if own.size <= fine[0]:
        return own
    parts = []
    for it, count in zip(values, fine, strict=True):
        low, high = it.min(), it.max()
        parts.append(np.floor((it[own] - low) / ((high - low) or 1.0) * (count - 1)))
    _, first = np.unique(parts[0] * fine[1] + parts[1], return_index=True)
    return own[np.sort(first)]


def _steps(x: list[float], y: list[float], across: str, colour: str) -> Line:
    """Return the border of what is beaten: it changes y where the next point is reached."""
    # What is between two points is beaten by the better one in x, which is the first one where
    # larger is better and points ascend in y.
    order = np.argsort(x, kind="stable")
    xs, ys = np.array(x)[order], np.array(y)[order]
    if across in LARGER_IS_BETTER:  # as good as the next one in y, until there
        corners_x, corners_y = np.repeat(xs, 2)[:-1], np.repeat(ys, 2)[1:]
    else:
        corners_x, corners_y = np.repeat(xs, 2)[1:], np.repeat(ys, 2)[:-1]
    return Line(corners_x.tolist(), corners_y.tolist(), colour, width=0.9)


def _along(line: Line) -> list[tuple[float, float]]:
    """Return points of a line's pieces, which words should not cover."""
    shares = np.linspace(0.2, 0.8, 4)
    return [
        (float(x0 + share * (x1 - x0)), float(y0 + share * (y1 - y0)))
        for (x0, y0), (x1, y1) in pairwise(zip(line.x, line.y, strict=True))
        for share in shares
    ]


def _band(table: Table, name: str, front: Any) -> dict[str, Any]:
    """Return the ends of the 10-90 % band of a variable, where results have one."""
    stem = name.removesuffix("_mean")
    low, high = f"{stem}_low", f"{stem}_high"
    if low in table and high in table:
        return {
            "low": column(table, low)[front].tolist(),
            "high": column(table, high)[front].tolist(),
        }
    if "step_time_low" in table and name in (RATE, *UTILIZATIONS):
        values, step = column(table, name)[front], column(table, "step_time")[front]
        ends = (
            values * step / column(table, it)[front] for it in ("step_time_high", "step_time_low")
        )
        return dict(zip(("low", "high"), (it.tolist() for it in ends), strict=True))
    raise DataError(
        f"no band of '{name}': there is one of times of steps, of their rates, and of latencies"
    )


UTILIZATIONS = (
    *("model_flops_utilization", "model_flops_utilization_non_causal"),
    "hardware_flops_utilization",
)
"""What is the inverse of the step's time."""


MAPPED = {
    TRAINING.verb: ("tensor_parallel", "pipeline_parallel"),
    SERVING.verb: ("concurrency", "tensor_parallel"),
    WAFERS: ("grid_columns", "context"),
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
    default = MAPPED[subject.verb]
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


HEIGHTS = (0.62, 0.38)
"""Of the figure's height: throughput and efficiency."""
NAMED = (
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "zero_stage",
)


def scaling_plot(
    table: Table, *, where: str | None = None, everything: bool = False, paper: Paper
) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    weak = table.attrs.get("scaling") == "weak"
    rows = scaling(table, where=where, fitting=not everything)
    batch = "batch per device" if weak else "global_batch_size"
    curves: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        row["batch per device"] = row["global_batch_size"] / row["devices"]
        curves.setdefault(tuple(row.get(name) for name in (*GROUPS, batch)), []).append(row)
    if all(len(own) < 2 for own in curves.values()):
        raise DataError(
            "scaling needs several numbers of devices, as of "
            "'perfmodel sweep --devices 256,512,1024'"
        )
    if len(curves) > len(PALETTE):
        raise DataError(f"{len(curves)} curves could not be told apart; choose some with --where")
    counts = sorted({row["devices"] for row in rows})
    base = number_axis("devices", "1", counts, log=True, margin=0.08)
    bare = Axis("devices", "", "", 1.0, "log", base.low, base.high, _ticks(counts, blank=True))
    across = Axis("devices", "devices", "", 1.0, "log", base.low, base.high, _ticks(counts))
    total = number_axis(
        "tokens_per_second",
        "1/s",
        [row["tokens_per_second"] for row in rows],
        log=True,
        margin=0.08,
    )
    share = number_axis(
        "scaling_efficiency", "1", [0.0, 1.0, *(row["scaling_efficiency"] for row in rows)],
        zero=True, label="efficiency", wanted=3,
    )  # fmt: skip
    above: list[Any] = []
    below: list[Any] = [Line([base.low, base.high], [1.0, 1.0], GREY, dashed=True, width=0.7)]
    wanted, dots = [], []
    names = [
        name
        for name in (*GROUPS, batch)
        if len({str(own[0].get(name)) for own in curves.values()}) > 1
    ]
    for number, own in enumerate(curves.values()):
        colour, marker = PALETTE[number], MARKERS[number]
        label = full_name(own[0], names)
        x, y = [row["devices"] for row in own], [row["tokens_per_second"] for row in own]
        ideal = [own[0][RATE] * count for count in x]
        above.append(Line(x, ideal, GREY, "ideal", dashed=True, width=0.7))
        texts = [full_name(row, NAMED) for row in own]
        above += [
            Line(x, y, colour),
            Points(x, y, colour, label, marker, 4.0, texts=texts, keyed=False),
        ]
        efficiency = [row["scaling_efficiency"] for row in own]
        below += [
            Line(x, efficiency, colour),
            Points(x, efficiency, colour, label, marker, 4.0, keyed=False),
        ]
        points = list(zip(x, y, strict=True))
        dots += points
        for a, b in pairwise(points):  # the lines between them
            dots += zip(
                np.geomspace(a[0], b[0], 9).tolist(),
                np.geomspace(a[1], b[1], 9).tolist(),
                strict=True,
            )
        if label:
            wanted.append(Wanted(label, colour, points[::-1]))
    height = paper.height(0.95)
    size = inner_size(paper.width, height * HEIGHTS[0])
    words = placed(wanted, across, total, size, dots)
    panels = (
        Panel(bare, total, (*above, *words), HEIGHTS[0]),
        Panel(across, share, tuple(below), HEIGHTS[1]),
    )
    notes = [
        "best strategy on every number of devices",
        "weak scaling" if weak else "strong scaling",
    ]
    facts = {"subject": TRAINING.verb, "curves": len(curves)}
    return Plot("scaling", panels, paper.width, height, notes=tuple(notes), facts=facts)


def _ticks(counts: list[int], blank: bool = False) -> tuple[tuple[float, str], ...]:
    """Return a tick per number of devices, or for every second or third of many."""
    every = -(-len(counts) // 7)
    return tuple((float(it), "" if blank else f"{it:,}") for it in counts[::every])
