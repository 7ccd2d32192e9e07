"""How large a figure is."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import DataError
from perfmodel.report.plots.describe import WIDTHS

LEAST, MOST = 1.5, 20.0
"""Widths that can be read [in]."""


@dataclass(frozen=True, slots=True)
class Paper:
    """The width of a figure, and how wide words may be [in]."""

    width: float

    def height(self, share: float) -> float:
        """Return the height of a figure as a share of a column's width, less of a page's."""
        column = WIDTHS["column"]
        return share * (
            self.width if self.width <= column else column + 0.25 * (self.width - column)
        )

    @property
    def wide(self) -> bool:
        """Whether there is room for long words beside bars."""
        return self.width > 4.5


def paper_of(width: str | float) -> Paper:
    """Return the paper of ``column``, ``page`` or a width in inches.

    Raises
    ------
    DataError
        It is none of these, or too narrow or wide to be read.
    """
    inches = WIDTHS.get(str(width))
    if inches is None:
        try:
            inches = float(width)
        except ValueError:
            inches = float("nan")
    if not LEAST <= inches <= MOST:
        raise DataError(
            f"width: '{width}' is not {', '.join(WIDTHS)} or inches from {LEAST:g} to {MOST:g}"
        )
    return Paper(inches)
