"""Figures: which formats, whether one can be drawn, what a file says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.base.errors import DataError

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
