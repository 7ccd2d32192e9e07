"""Which formats figures are written in, and by what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.errors import DataError
from perfmodel.base.figures import FORMATS, check_plot
from perfmodel.base.files import atomic_path

if TYPE_CHECKING:
    from perfmodel.report.plots.figure import Plot

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
        return
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise DataError(
            "pages to point in need plotly: pip install 'perfmodel[interactive]'"
        ) from None


def save_plot(plot: Plot, path: str | Path) -> None:
    """Draw a figure into a file, completely or not at all; see `Plot.save`."""
    check_saving(path)
    with atomic_path(path) as temporary:
        if temporary.suffix.lower() == PAGE:
            from perfmodel.report.plots.draw_plotly import write
        else:
            from perfmodel.report.plots.draw_matplotlib import write
        write(plot, temporary)
