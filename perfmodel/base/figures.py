"""Figures: which formats, whether one can be drawn, what a file says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axis import Axis

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: str | Path) -> None:
    """Make sure, before a long computation, that a figure can be drawn into a file.

    Raises
    ------
    DataError
        Another format than those of `FORMATS`, or matplotlib is missing.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise DataError(f"cannot draw '{path}': a figure's name ends in {', '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise DataError("figures need matplotlib: pip install 'perfmodel[plot]'") from None


def figure_metadata(suffix: str) -> dict[str, Any] | None:
    """Leave out the date, so that equal figures are equal files."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)


def unit_ticks(axis: Axis, low: float, high: float, unit: str) -> None:
    """Write the ticks of a logarithmic axis in a unit with its prefix: 10 µs, 1 ms.

    A short axis has ticks at 1, 2 and 5, so that there are always some.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    short = high < 100 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.set_major_formatter(EngFormatter(unit))
    axis.set_minor_formatter(NullFormatter())
