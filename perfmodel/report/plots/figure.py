"""A figure, before and as it is drawn: panels with axes and marks, in SI units.

Whatever a figure shows is said here once. `draw` draws it with matplotlib (the extra ``plot``) for
papers, ``page/figure.js`` for pages; `Plot.described` is what both are drawn from, as JSON.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base import cells
from perfmodel.base.errors import DataError, one_line
from perfmodel.base.figures import (
    DPI,
    FORMATS,
    LETTER,
    SHADES,
    SMALL,
    SOFT,
    STYLE,
    TEXT,
    WHITE,
    check_plot,
    figure_metadata,
    ink_on,
    shade,
)
from perfmodel.base.files import atomic_path
from perfmodel.report.plots.marks import (
    Axis,
    Band,
    Bars,
    Cells,
    Line,
    Mark,
    Panel,
    Points,
    Text,
    _axis_document,
    described_panel,
    legend_of,
    rows_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """A figure: what `perfmodel.plot` returns.

    Attributes
    ----------
    kind : str
    panels : tuple of Panel
        One below the other.
    width, height : float
        [in].
    title : str
    notes : tuple of str
        What a caption should say: what was left out, what all that is shown have in common.
    facts : dict
        Further numbers of the figure for its JSON document.
    aligned : bool
        Whether the axes of panels begin at one edge.
    """

    kind: str
    panels: tuple[Panel, ...]
    width: float
    height: float
    title: str = ""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    aligned: bool = True

    def save(self, path: str | Path) -> None:
        """Draw the figure into a file, completely or not at all.

        Parameters
        ----------
        path : str or Path
            ``.svg``, ``.png`` or ``.pdf``; ``.html`` is a page to point and zoom in.

        Raises
        ------
        DataError
            Another ending, the library for it is missing, or the file cannot be written.
        """
        check_saving(path)
        with atomic_path(path) as temporary:
            if temporary.suffix.lower() == PAGE:
                from perfmodel.report.page_text import page_html

                text = page_html(self.described(), start="single", theme="light")
                temporary.write_text(text, encoding="utf-8")
            else:
                write(self, temporary)

    def save_data(self, path: str | Path) -> None:
        """Write the numbers behind the figure as CSV, completely or not at all.

        Raises
        ------
        DataError
            The file cannot be written.
        """
        rows = self.rows()
        with (
            atomic_path(path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            names = dict.fromkeys(name for row in rows for name in row)
            writer = csv.writer(file)
            writer.writerow(cells.written(names))
            writer.writerows(cells.written(row.get(name, "") for name in names) for row in rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers behind the figure, in SI units: a row per point, bar or cell."""
        found = []
        for number, panel in enumerate(self.panels, 1):
            where = {"panel": number} if len(self.panels) > 1 else {}
            for mark in panel.marks:
                found += [where | row for row in rows_of(panel, mark)]
        return found

    def described(self) -> dict[str, Any]:
        """Return all that is drawn, fit for JSON: what pages draw, with ``page/figure.js``."""
        return {
            "kind": self.kind,
            "title": self.title,
            "width": self.width,
            "height": self.height,
            "panels": [described_panel(panel) for panel in self.panels],
            "notes": list(self.notes),
        }

    def to_json_dict(self) -> dict[str, Any]:
        """Return axes and numbers, fit for JSON."""
        return {
            "kind": self.kind,
            "title": self.title,
            "width": self.width,
            "height": self.height,
            "panels": [
                {
                    "x": _axis_document(panel.x),
                    "y": _axis_document(panel.y),
                    "series": [
                        {"mark": type(mark).__name__.lower(), "label": mark.label, "rows": rows}
                        for mark in panel.marks
                        if not isinstance(mark, Text | Cells)
                        and (rows := list(rows_of(panel, mark)))
                    ]
                    + [
                        {"mark": "cells", "label": mark.scale.name, "rows": [*rows_of(panel, mark)]}
                        for mark in panel.marks
                        if isinstance(mark, Cells)
                    ],
                }
                for panel in self.panels
            ],
            "notes": list(self.notes),
            **self.facts,
        }

    def _repr_svg_(self) -> str:
        """Return the drawing for a notebook."""

        return svg_text(self)


PAGE = ".html"


def check_saving(path: str | Path) -> None:
    """Make sure, before a long computation, that a figure can be drawn into a file.

    Raises
    ------
    DataError
        Another ending than those of figures, or what draws it is missing.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (*FORMATS, PAGE):
        known = ", ".join((*FORMATS, PAGE))
        raise DataError(f"cannot draw '{path}': a figure's name ends in {known}")
    if suffix != PAGE:
        check_plot(path)


SHAPES = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle": "^",
    "down": "v",
    "cross": "X",
}
MANY, INSIDE_DPI = 200, 200
"""Points of a mark that an .svg or .pdf holds as a picture; of that picture."""


def draw(plot: Plot) -> Figure:
    """Return the figure as matplotlib has it."""
    from matplotlib.figure import Figure

    with quiet_style():
        figure = Figure(figsize=(plot.width, plot.height), layout="constrained")
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.04, h_pad=0.04, hspace=0.04)
        ratios = [panel.height for panel in plot.panels]
        if plot.aligned:
            every = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
        else:
            parts: Any = figure.subfigures(len(ratios), 1, squeeze=False, height_ratios=ratios)
            every = np.array([part.subplots() for part in parts[:, 0]])
        for axes, panel in zip(every, plot.panels, strict=True):
            _draw_panel(figure, axes, panel, panel.height / sum(ratios))
        if plot.title:
            figure.suptitle(one_line(plot.title), fontsize=TEXT, x=0.02, ha="left")
        _add_key(figure, plot)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "constrained_layout not applied", UserWarning)
            try:
                figure.draw_without_rendering()
            except UserWarning:
                raise DataError("labels leave no room to draw in; ask for a wider figure") from None
        return figure


def write(plot: Plot, path: Path) -> None:
    """Draw into a file of matplotlib's formats; equal figures are equal files."""
    figure = draw(plot)
    with quiet_style():
        suffix = path.suffix.lower()
        dpi = DPI if suffix == ".png" else INSIDE_DPI
        figure.savefig(path, dpi=dpi, metadata=figure_metadata(suffix))


def svg_text(plot: Plot) -> str:
    """Return the drawing as SVG."""
    figure, file = draw(plot), io.StringIO()
    with quiet_style():
        figure.savefig(file, format="svg", dpi=INSIDE_DPI, metadata=figure_metadata(".svg"))
    return file.getvalue()


@contextlib.contextmanager
def quiet_style() -> Iterator[None]:
    """Draw as `STYLE` says, whatever else was set."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def _draw_panel(figure: Figure, axes: Axes, panel: Panel, share: float) -> None:
    wide, high = figure.get_size_inches()
    for axis, which, inches in ((panel.x, "x", wide), (panel.y, "y", high * share)):
        _set_axis(axes, axis, which, 72.0 * inches)
    if panel.grid:
        axes.grid(True)
    if panel.square:
        axes.set_box_aspect(1.0)
    for number, mark in enumerate(panel.marks):
        _draw_mark(figure, axes, panel, mark, 2.0 + number / 100)


def _set_axis(axes: Axes, axis: Axis, which: str, room: float) -> None:
    if axis.scale == "log":
        axes.set(**{f"{which}scale": "log"})
    axes.set(**{f"{which}lim": (axis.low / axis.factor, axis.high / axis.factor)})
    ticks = [at / axis.factor for at, _ in axis.ticks]
    side = axes.xaxis if which == "x" else axes.yaxis
    side.set_ticks(ticks, [text for _, text in axis.ticks])
    side.set_ticks([], minor=True)
    side.set_label_text(axis.title_in(room))
    if axis.scale == "category":
        side.set_tick_params(length=0.0)


def _draw_mark(figure: Figure, axes: Axes, panel: Panel, mark: Mark, order: float) -> None:
    x, y = panel.x, panel.y
    match mark:
        case Points():
            _draw_points(axes, x, y, mark, order)
        case Line():
            style = (0, (3.0, 2.0)) if mark.dashed else "-"
            axes.plot(
                _in(x, mark.x),
                _in(y, mark.y),
                color=mark.colour,
                lw=mark.width,
                ls=style,
                zorder=order,
                solid_capstyle="butt",
            )
        case Band():
            axes.fill_between(
                _in(x, mark.x),
                _in(y, mark.low),
                _in(y, mark.high),
                color=mark.colour,
                lw=0.0,
                zorder=order - 1.0,
            )
        case Bars():
            _draw_bars(axes, x, mark, order)
        case Cells():
            _draw_cells(figure, axes, mark, 65.0 * figure.get_size_inches()[1])
        case Text():
            _draw_text(axes, x, y, mark)


def _in(axis: Axis, values: Any) -> Any:
    """Return values in the axis' shown unit."""
    return np.asarray(values, float) / axis.factor


def _draw_points(axes: Axes, x: Axis, y: Axis, mark: Points, order: float) -> None:
    across, up = _in(x, mark.x), _in(y, mark.y)
    if len(mark.low):
        ends = np.stack([up - _in(y, mark.low), _in(y, mark.high) - up])
        axes.errorbar(
            across, up, np.maximum(ends, 0.0), fmt="none", ecolor=mark.colour, elinewidth=0.6,
            zorder=order,
        )  # fmt: skip
    axes.scatter(
        across,
        up,
        s=np.square(np.asarray(mark.size, float)),
        marker=SHAPES[mark.marker],
        edgecolor=mark.colour if mark.hollow else "none",
        linewidths=0.8 if mark.hollow else 0.0,
        alpha=mark.alpha,
        zorder=order,
        rasterized=len(across) > MANY,
        facecolor=WHITE if mark.hollow else mark.colour,
    )


def _draw_bars(axes: Axes, x: Axis, mark: Bars, order: float) -> None:
    from matplotlib.collections import PolyCollection

    begin, length, half = _in(x, mark.start), _in(x, mark.length), mark.height / 2
    at, end = np.asarray(mark.at, float), begin + length
    corners = [(begin, at - half), (end, at - half), (end, at + half), (begin, at + half)]
    axes.add_collection(
        PolyCollection(
            np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1),  # type: ignore[arg-type]
            facecolors=mark.colour,
            edgecolors=WHITE if mark.hatch or mark.edge else "none",
            linewidths=0.4 if mark.edge else 0.0,
            hatch=mark.hatch or None,
            zorder=order,
        ),
        autolim=False,
    )
    for row, start, wide, text in zip(mark.at, mark.start, mark.length, mark.texts, strict=False):
        if text:
            axes.annotate(
                text,
                ((start + wide / 2) / x.factor, row),
                ha="center",
                va="center_baseline",
                color=ink_on(mark.colour),
                zorder=order + 1,
            )


def _draw_cells(figure: Figure, axes: Axes, mark: Cells, room: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.patches import Rectangle

    for side in axes.spines.values():
        side.set_visible(False)
    for row, values in enumerate(mark.values):
        for column, value in enumerate(values):
            known, place = math.isfinite(value), (column - 0.5, row - 0.5)
            colour = shade(mark.share(value)) if known else WHITE
            axes.add_patch(
                Rectangle(place, 1.0, 1.0, facecolor=colour, edgecolor=WHITE, linewidth=0.8)
            )
            if (row, column) in mark.hatched:
                axes.add_patch(_hatched(place))
            text = mark.texts[row][column]
            if text:
                axes.annotate(
                    text, (column, row), ha="center", va="center", color=ink_on(colour), zorder=5
                )
    scale = mark.scale
    ends = scale.low / scale.factor, scale.high / scale.factor
    norm = LogNorm(*ends) if scale.scale == "log" else Normalize(*ends)
    shades = SHADES[::-1] if mark.reverse else SHADES
    colours = LinearSegmentedColormap.from_list("shades", shades)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, aspect=28, pad=0.02, shrink=0.9)
    bar.set_label(scale.title_in(room))
    bar.set_ticks(
        [at / scale.factor for at, _ in scale.ticks], labels=[it for _, it in scale.ticks]
    )
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2.0)


def _hatched(place: tuple[float, float]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        place, 1.0, 1.0, facecolor="none", edgecolor=SOFT, linewidth=0.0, hatch="/////"
    )


def _draw_text(axes: Axes, x: Axis, y: Axis, mark: Text) -> None:
    words = axes.annotate(
        mark.text,
        (mark.x / x.factor, mark.y / y.factor),
        (mark.dx, mark.dy),
        textcoords="offset points",
        color=mark.colour,
        ha=mark.align,
        va=mark.valign,
        fontsize=mark.size,
        rotation=mark.angle,
        rotation_mode="anchor",
        zorder=6,
        annotation_clip=False,
    )
    words.set_in_layout(False)
    if mark.halo:  # an outline would make paths of the letters in SVG
        words.set_bbox({"boxstyle": "square,pad=0.05", "color": WHITE, "alpha": 0.75, "lw": 0.0})


def _add_key(figure: Figure, plot: Plot) -> None:
    """Put the key below the figure, in as many columns as there is room for."""
    marks = legend_of(plot.panels)
    if not marks:
        return
    handles = [_sample(mark) for mark in marks]
    labels = [_label(mark) for mark in marks]
    room = 72.0 * plot.width - 12.0
    columns = len(labels)
    while columns > 1 and _key_width(labels, columns) > room:
        columns -= 1
    figure.legend(
        handles,
        labels,
        loc="outside lower left",
        ncols=columns,
        handlelength=1.3,
        handleheight=0.8,
        handletextpad=0.5,
        columnspacing=1.2,
        labelspacing=0.3,
        borderpad=0.1,
    )


def _label(mark: Any) -> str:
    return str(mark.hatched_label if isinstance(mark, Cells) else mark.label)


def _key_width(labels: Sequence[str], columns: int) -> float:
    """Return about how wide a key is whose labels run down its columns [pt]."""
    widest = [max(map(len, part)) for part in split(labels, columns)]
    return SMALL * sum(LETTER * 1.04 * letters + 3.0 for letters in widest)


def split(labels: Sequence[str], columns: int) -> list[Sequence[str]]:
    """Return the labels of every column of a key; the first ones may have one more."""
    rows, more = divmod(len(labels), columns)
    begin = [rows * at + min(at, more) for at in range(columns + 1)]
    return [labels[a:b] for a, b in pairwise(begin)]


def _sample(mark: Any) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    match mark:
        case Points():
            return Line2D(
                [], [], ls="", marker=SHAPES[mark.marker], color=mark.colour, ms=4.0,
                markerfacecolor=WHITE if mark.hollow else mark.colour,
                markeredgewidth=0.8 if mark.hollow else 0.0,
            )  # fmt: skip
        case Line():
            return Line2D(
                [], [], color=mark.colour, lw=mark.width, ls=(0, (3.0, 2.0)) if mark.dashed else "-"
            )
        case Cells():
            return Patch(facecolor=WHITE, edgecolor=SOFT, hatch="/////", linewidth=0.0)
        case Bars():
            return Patch(
                facecolor=mark.colour, edgecolor=WHITE, hatch=mark.hatch or None, linewidth=0.0
            )
    return Patch(facecolor=mark.colour, linewidth=0.0)
