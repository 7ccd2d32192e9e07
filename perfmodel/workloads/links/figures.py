"""Figures: a topology, its links coloured and widened by the time of what they carry.

Needs matplotlib (the extra ``plot``), which is imported when a figure is drawn.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.base.errors import DataError
from perfmodel.base.figures import check_plot, figure_metadata
from perfmodel.base.files import atomic_path
from perfmodel.base.units import format_si
from perfmodel.workloads.links.axes import FULL, RING
from perfmodel.workloads.links.layout import Blocks, blocks_of, on_circle, vertex_positions
from perfmodel.workloads.links.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure


MOST_DEVICES = 256
MOST_SINGLE = 32  # more devices than these are drawn by their blocks, where they have any
BLOCK_PITCH = 2.0  # between boxes, as multiples of what devices have
MOST_LINKS = 20_000
MOST_ARROWS = 600
LABELLED = 144  # devices that have their number beside them
ASIDE, LEAST_ASIDE = 0.055, 2.2  # half the distance of a link's two directions; least [pt]
BULGE = 0.16  # of a curved link, as a share of its length
MOST_BULGE = 0.8
POINTS = 32  # of a curved link
NARROWEST, WIDEST = 0.8, 4.5  # line widths of an almost idle and of the slowest link [pt]
MANY_LINKS = 250  # more links than these are drawn thinner
LEAST_SHARE = 0.4  # of the widths, in a drawing whose devices stand close together
COLOURS, PALEST = "plasma_r", 0.15  # the palest colours cannot be seen on white


def check_drawing(topology: Topology) -> None:
    """Make sure that a drawing of the topology could be read.

    Raises
    ------
    DataError
        It has too many devices or links.
    """
    count, links = topology.device_count, topology.link_count
    if count > MOST_DEVICES or links > MOST_LINKS:
        raise DataError(
            f"a drawing of {count:,} devices and {links:,} links could not be read; at most "
            f"{MOST_DEVICES} devices: draw a smaller system of the same kind"
        )


def save_topology(
    topology: Topology, path: str | Path, loads: Floats | None = None, title: str = ""
) -> None:
    """Draw a topology into a file, completely or not at all.

    Parameters
    ----------
    topology : Topology
    path : str or Path
        Ends in one of `perfmodel.base.figures.FORMATS`.
    loads : float64[links], optional
        Bytes over every link: the colour is their time, bytes over bandwidth. Without them
        it says the dimension.
    title : str

    Raises
    ------
    DataError
        Too large to be read, another format, no matplotlib, or the file cannot be written.
    """
    check_plot(path)
    figure = topology_figure(topology, loads, title)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata=figure_metadata(temporary.suffix.lower()))


def topology_figure(topology: Topology, loads: Floats | None = None, title: str = "") -> Figure:
    """Return the figure of `save_topology`.

    Raises
    ------
    DataError
        The topology is too large to be read.
    """
    from matplotlib.figure import Figure

    check_drawing(topology)
    times = None if loads is None else topology.link_times(loads)
    blocks = blocks_of(topology) if topology.device_count > MOST_SINGLE else None
    shown = topology if blocks is None else blocks.outer
    places = vertex_positions(shown) * (1.0 if blocks is None else BLOCK_PITCH)
    width, height = np.ptp(places, axis=0) + 2.0
    scale = float(np.clip(18.0 / max(width, 1.3 * height), 0.19, 1.1))
    size = (max(5.5, width * scale + 2.0), max(4.0, height * scale + 1.4))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_aspect("equal")
    curves = _curves(shown, places, max(ASIDE, LEAST_ASIDE / (72.0 * scale)))
    longest = 0.0 if times is None else float(times.max(initial=0.0))
    if times is None:
        _draw_dimensions(axes, shown, curves)
    else:
        between = times if blocks is None else blocks.slowest_between(times)
        _draw_times(axes, curves, between, longest, scale)
        _add_scale(figure, axes, longest)
    if blocks is None:
        _draw_devices(axes, places[: topology.device_count], scale)
    else:
        _draw_blocks(axes, topology, blocks, places, scale, times)
        note = textwrap.fill(_bundles(topology, blocks, times), round(10 * size[0]))
        title = f"{title}\n{note}"
    _draw_switches(axes, shown, places, scale)
    drawn = np.vstack([places, curves.reshape(-1, 2)])
    margin = 0.6 if blocks is None else 1.0
    (left, bottom), (right, top) = drawn.min(axis=0) - margin, drawn.max(axis=0) + margin
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_title(title.strip(), fontsize="medium")
    return figure


def _bundles(topology: Topology, blocks: Blocks, times: Floats | None) -> str:
    """Say in a line what a box and a line stand for."""
    inner = " and ".join(item.label for item in topology.dimensions[: blocks.inner])
    text = f"a box is {blocks.size} devices joined by {inner}"
    used, count = blocks.busy_links(np.zeros(topology.link_count) if times is None else times)
    if count.max(initial=1) > 1:
        text += f", a line up to {count.max()} parallel links"
    if times is None:
        return text
    busy = used[used > 0]
    if busy.size and count.max() > 1:
        few, many = busy.min(), busy.max()
        text += f" ({few if few == many else f'{few} to {many}'} of them busy)"
    return f"{text}; both in the colour of their slowest link"


def _curves(topology: Topology, places: Floats, apart: float) -> Floats:
    """Return every link as a line of points, a little to the right of its direction.

    Links that would run through other devices (round a ring or torus, between the members
    of a row) are bent; float64[links, POINTS, 2].
    """
    start, end = places[topology.link_source], places[topology.link_target]
    along = end - start
    length = np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-9)[:, None]
    right = np.column_stack([along[:, 1], -along[:, 0]]) / length
    bend = np.where(_bent(topology)[:, None], np.minimum(BULGE * length, MOST_BULGE), 0.0)
    t = np.linspace(0.0, 1.0, POINTS)[:, None]
    straight = start[:, None, :] + along[:, None, :] * t
    aside = apart + bend[:, None, :] * (4 * t * (1 - t))[None, :, :]
    curves: Floats = straight + right[:, None, :] * aside
    return curves


def _bent(topology: Topology) -> NDArray[np.bool_]:
    """Return which links pass over other positions of their axis and are to be bent."""
    bent = np.zeros(topology.link_count, dtype=np.bool_)
    first = 0
    for index, axis in enumerate(topology.axes):
        part = slice(first, first + axis.links)
        first += axis.links
        if axis.kind not in (RING, FULL) or (index == 0 and on_circle(topology)):
            continue
        ends = (topology.link_source[part], topology.link_target[part])
        source, target = (vertices // axis.stride % axis.size for vertices in ends)
        bent[part] = np.abs(source - target) > 1
    return bent


def _draw_dimensions(axes: Axes, topology: Topology, curves: Floats) -> None:
    """Draw links in the colour of their dimension, with a legend."""
    from matplotlib.lines import Line2D

    handles = []
    for index, dimension in enumerate(topology.dimensions):
        chosen = topology.link_dimension == index
        if not np.any(chosen):
            continue
        colour = f"C{index % 10}"
        _add_lines(axes, curves[chosen], colors=colour, linewidths=0.9)
        bandwidths = np.unique(topology.link_bandwidth[chosen])
        rates = ", ".join(format_si(value, "B/s") for value in bandwidths)
        label = f"{dimension.label}: {dimension.kind}, links of {rates}"
        handles.append(Line2D([], [], color=colour, label=label))
    if handles:
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), fontsize="small"
        )


def _draw_times(axes: Axes, curves: Floats, times: Floats, longest: float, scale: float) -> None:
    """Draw links in the colour and the width of their time, the slowest on top."""
    idle = times <= 0.0
    _add_lines(axes, curves[idle], colors="0.82", linewidths=0.5)
    order = np.argsort(times, kind="stable")[int(idle.sum()) :]
    if not order.size:
        return
    colours = _shades(longest).to_rgba(times[order])
    thinner = min(1.0, math.sqrt(MANY_LINKS / order.size), max(LEAST_SHARE, scale))
    widths = thinner * _widths(times[order], longest)
    _add_lines(axes, curves[order], colors=colours, linewidths=widths, zorder=2)
    if order.size <= MOST_ARROWS:
        _draw_arrows(axes, curves[order], colours, widths)


def _add_scale(figure: Figure, axes: Axes, longest: float) -> None:
    """Put the bar beside the drawing that says which time a colour is."""
    from matplotlib.ticker import EngFormatter

    if longest > 0.0:
        figure.colorbar(
            _shades(longest),
            ax=axes,
            label="time of a link: bytes / bandwidth",
            format=EngFormatter("s"),
            shrink=0.75,
        )


def _shades(longest: float) -> ScalarMappable:
    """Return the colours of times from 0 to the longest."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    shades = colormaps[COLOURS](np.linspace(PALEST, 1.0, 256))
    return ScalarMappable(Normalize(0.0, longest), ListedColormap(shades))


def _widths(times: Floats, longest: float) -> Floats:
    return np.asarray(NARROWEST + (WIDEST - NARROWEST) * times / longest)


def _add_lines(axes: Axes, curves: Floats, **style: Any) -> None:
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(curves), **style))


def _draw_arrows(axes: Axes, curves: Floats, colours: Any, widths: Floats) -> None:
    """Mark the direction of links by a head at two thirds of their way."""
    at = int(POINTS * 0.66)
    for curve, colour, width in zip(curves, colours, widths, strict=True):
        axes.annotate(
            "",
            xy=tuple(curve[at + 1]),
            xytext=tuple(curve[at]),
            arrowprops={
                "arrowstyle": "-|>,head_length=0.55,head_width=0.3",
                "color": colour,
                "lw": 0.0,
                "mutation_scale": 7.0 + 2.4 * width,
                "shrinkA": 0.0,
                "shrinkB": 0.0,
            },
            zorder=3,
        )


def _area(scale: float) -> float:
    """Return the size of a device's circle [pt²]."""
    return float(np.clip((17.0 * scale) ** 2, 25.0, 300.0))


def _draw_devices(axes: Axes, places: Floats, scale: float) -> None:
    """Draw devices as circles with their ids."""
    labelled = len(places) <= LABELLED
    axes.scatter(
        places[:, 0],
        places[:, 1],
        s=_area(scale) if labelled else 12.0,
        facecolor="white",
        edgecolor="0.2",
        linewidths=0.9,
        zorder=4,
    )
    if not labelled:
        return
    for device, place in enumerate(places):
        axes.annotate(
            str(device),
            place,
            ha="center",
            va="center_baseline",
            fontsize=float(np.clip(8.0 * scale, 4.5, 8.0)),
            zorder=5,
        )


def _draw_blocks(
    axes: Axes,
    topology: Topology,
    blocks: Blocks,
    places: Floats,
    scale: float,
    times: Floats | None,
) -> None:
    """Draw blocks as boxes with their first and last device, framed by their slowest link."""
    count = blocks.outer.device_count
    frames: Any = ["C0"] * count
    widths = np.full(count, 0.9)
    if times is not None:
        slowest = blocks.slowest_within(times)
        longest = float(times.max(initial=0.0))
        if longest > 0.0:
            frames = _shades(longest).to_rgba(slowest)
            frames[slowest <= 0.0] = (0.82, 0.82, 0.82, 1.0)
            widths = _widths(slowest, longest)
    for block in range(count):
        first = block * blocks.size
        axes.annotate(
            f"{first}–{first + blocks.size - 1}",
            places[block],
            ha="center",
            va="center_baseline",
            fontsize=float(np.clip(10.0 * scale, 5.0, 9.0)),
            bbox={
                "boxstyle": "round,pad=0.45",
                "facecolor": "white",
                "edgecolor": frames[block],
                "lw": max(1.2, float(widths[block])),
            },
            zorder=4,
        )


def _draw_switches(axes: Axes, topology: Topology, places: Floats, scale: float) -> None:
    """Draw switches as squares, named where there are not too many."""
    count = topology.device_count
    if len(places) == count:
        return
    axes.scatter(
        places[count:, 0],
        places[count:, 1],
        s=0.8 * _area(scale),
        marker="s",
        facecolor="0.25",
        edgecolor="0.1",
        linewidths=0.6,
        zorder=4,
    )
    if len(places) - count <= LABELLED // 3:
        _name_switches(axes, topology, places, scale)


def _name_switches(axes: Axes, topology: Topology, places: Floats, scale: float) -> None:
    """Write the names of switches above them; below where they stand below the devices."""
    count = topology.device_count
    bottom = places[:count, 1].min()
    for vertex in range(count, len(places)):
        below = places[vertex, 1] < bottom
        axes.annotate(
            topology.vertex_name(vertex).replace(" ", "\n", 1),
            places[vertex],
            xytext=(0.0, -9.0 if below else 9.0),
            textcoords="offset points",
            ha="center",
            va="top" if below else "bottom",
            fontsize=float(np.clip(7.0 * scale, 4.0, 7.0)),
            color="0.25",
            bbox={"boxstyle": "square,pad=0.05", "color": "white", "alpha": 0.75, "lw": 0.0},
            zorder=3.5,
        )
