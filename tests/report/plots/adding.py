"""Bars of a figure, added up."""

from __future__ import annotations

import math

from perfmodel.report.plots.marks import Bars


def sums(plot) -> list[float]:
    """Return how long the bars of every row are together."""
    (panel,) = plot.panels
    found: dict[float, list[float]] = {}
    for mark in panel.marks:
        if isinstance(mark, Bars):
            for at, start, length in zip(mark.at, mark.start, mark.length, strict=True):
                found.setdefault(at, []).append(length)
                assert start >= 0.0
    return [math.fsum(found[at]) for at in sorted(found)]
