"""Where words stand beside what they name, so that nothing lies upon anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.figures import LETTER, SMALL
from perfmodel.report.plots.describe import Axis, Text

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


def text_size(text: str, size: float = SMALL) -> tuple[float, float]:
    """Return about how wide and high words are [pt]."""
    lines = text.split("\n")
    return LETTER * size * max(map(len, lines)), LINE * size * len(lines)


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
