"""Figures: predicted against measured.

Needs matplotlib (the extra ``plot``), which is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.figures import check_plot, figure_metadata, unit_ticks
from perfmodel.base.files import atomic_path
from perfmodel.base.units import counted
from perfmodel.measured.compare import Comparison, natural_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAND = 0.1
MOST_COLOURS = 10
OTHERS = "others"


def save_comparison(found: Comparison, path: str | Path) -> None:
    """Draw predicted against measured into a file, completely or not at all.

    Parameters
    ----------
    found : Comparison
        The colour is the first column of ``found.by``; the most frequent values have
        one of their own.
    path : str or Path
        Ends in one of `FORMATS`.

    Raises
    ------
    DataError
        No row was scored, or the file cannot be written.
    """
    check_plot(path)
    figure = comparison_figure(found)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata=figure_metadata(temporary.suffix.lower()))


def comparison_figure(found: Comparison) -> Figure:
    """Return the figure of `save_comparison`: logarithmic axes, a band of ±10 %.

    Raises
    ------
    DataError
        No row was scored.
    """
    from matplotlib.figure import Figure

    groups = _groups(found)
    if not groups:
        raise DataError(f"{found.file}: no row was scored, so that there is nothing to draw")
    figure = Figure(figsize=(7.0, 6.2), layout="constrained")
    axes = figure.add_subplot()
    every = np.concatenate([points for _, points in groups])
    low, high = every.min() / 1.5, every.max() * 1.5
    line = np.array([low, high])
    axes.fill_between(
        line, line * (1 - BAND), line * (1 + BAND), color="0.85", lw=0, label=f"±{BAND:.0%}"
    )
    axes.plot(line, line, color="0.4", lw=0.8)
    size = float(np.clip(400.0 / np.sqrt(len(every)), 2.0, 30.0))
    for i, (label, points) in enumerate(groups):
        error = points[:, 1] / points[:, 0] - 1.0
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=size,
            alpha=0.6,
            lw=0,
            color="0.5" if label == OTHERS else f"C{i % MOST_COLOURS}",
            label=f"{label}: {counted(len(points), 'row')}, median {np.median(np.abs(error)):.1%}",
            rasterized=len(every) > 2000,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        aspect="equal",
        xlabel=f"measured {_words(found.quantity)}",
        ylabel=f"predicted {_words(found.quantity)}",
        title=f"{found.kind}: {Path(found.file).name}",
    )
    unit_ticks(axes.xaxis, low, high, found.unit)
    unit_ticks(axes.yaxis, low, high, found.unit)
    axes.grid(True, which="major", lw=0.3)
    axes.legend(loc="upper left", fontsize="small", framealpha=0.9, title=_legend_title(found))
    return figure


def _groups(found: Comparison) -> list[tuple[str, Any]]:
    """Return (value of the first grouping column, points of shape (row, 2)) in order."""
    column = found.by[0] if found.by else None
    points: dict[str, list[Sequence[float]]] = {}
    for row in found.rows:
        projected, measured = row.outcome.projected, row.outcome.measured
        if projected is not None and measured is not None:
            label = "rows" if column is None else row.cells.get(column) or "not stated"
            points.setdefault(label, []).append((measured, projected))
    frequent = sorted(points, key=lambda label: -len(points[label]))
    if len(points) > MOST_COLOURS:
        rest = [point for label in frequent[MOST_COLOURS - 1 :] for point in points[label]]
        points = {label: points[label] for label in frequent[: MOST_COLOURS - 1]}
        points[OTHERS] = rest
    ordered = sorted(points.items(), key=lambda item: (item[0] == OTHERS, natural_order(item)))
    return [(label, np.array(values)) for label, values in ordered]


def _legend_title(found: Comparison) -> str | None:
    return _words(found.by[0]) if found.by else None


def _words(name: str) -> str:
    return name.replace("_", " ")
