"""Figures: one quiet style, which formats, whether one can be drawn, what a file says of itself.

Colours are those of Okabe and Ito (2008), which people see apart whatever their colour vision,
and viridis for numbers (van der Walt and Smith, 2015). Text stays text in SVG and PDF.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axis import Axis

FORMATS = (".png", ".svg", ".pdf")
DPI = 300
"""Of .png."""

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, YELLOW, BLACK = "#E69F00", "#56B4E9", "#F0E442", "#000000"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
"""Of groups, in this order; yellow and black are for parts of bars."""
INK, GREY, SOFT, PALE, WHITE = "#262626", "#7F7F7F", "#BFBFBF", "#E6E6E6", "#FFFFFF"
"""Text and axes, what stands aside, idle parts, backgrounds."""
MARKERS = ("circle", "square", "diamond", "triangle", "down", "cross")
"""Of groups, so that colour is not all that tells them apart."""
SHADES = (
    *("#440154", "#482878", "#3E4989", "#31688E", "#26828E", "#1F9E89"),
    *("#35B779", "#6DCD59", "#B4DE2C", "#FDE725"),
)
"""Viridis, at equal distances."""

SMALL, TEXT = 7.0, 8.0
"""Sizes of numbers and keys, and of the words at axes [pt]."""
LETTER = 0.58
"""Mean width of a letter, of its size."""
THIN = 0.5
"""Of axes and ticks [pt]."""
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
    "font.size": SMALL,
    "axes.labelsize": TEXT,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.linewidth": THIN,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": THIN,
    "ytick.major.width": THIN,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "axes.labelpad": 2.5,
    "grid.linewidth": 0.4,
    "grid.color": PALE,
    "lines.linewidth": 1.0,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # labels come from users' files
    "svg.fonttype": "none",
    "svg.hashsalt": "perfmodel",
    "pdf.fonttype": 42,
}
"""What matplotlib draws by, as its ``rcParams``."""


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


def shade(share: float) -> str:
    """Return the colour of a number between 0 and 1."""
    at = min(max(share, 0.0), 1.0) * (len(SHADES) - 1)
    low = min(int(at), len(SHADES) - 2)
    mixed = (
        round(a + (at - low) * (b - a))
        for a, b in zip(_parts(SHADES[low]), _parts(SHADES[low + 1]), strict=True)
    )
    return "#" + "".join(f"{part:02X}" for part in mixed)


def ink_on(colour: str) -> str:
    """Return the colour of text on another: white or black, whichever contrasts more.

    By relative luminance (WCAG 2.2): 4.5 to 1 at least.
    """

    def linear(part: int) -> float:
        value = part / 255
        return value / 12.92 if value <= 0.04045 else math.pow((value + 0.055) / 1.055, 2.4)

    red, green, blue = map(linear, _parts(colour))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return WHITE if luminance < 0.179 else BLACK


def _parts(colour: str) -> Sequence[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def unit_ticks(axis: Axis, low: float, high: float, unit: str) -> None:
    """Write the ticks of a logarithmic axis in a unit with its prefix: 10 µs, 1 ms.

    A short axis has ticks at 1, 2 and 5, so that there are always some.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    short = high < 100 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.set_major_formatter(EngFormatter(unit))
    axis.set_minor_formatter(NullFormatter())
