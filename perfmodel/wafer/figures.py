"""What an operation brings over a wafer's links and does on its cores, and the picture of it.

A picture needs matplotlib (the extra ``plot``), which is imported when a figure is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.figures import check_plot, figure_metadata
from perfmodel.base.files import atomic_path, shortened
from perfmodel.base.units import format_size
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.cores.instructions import (
    ADD,
    COPY,
    CORE,
    GEMM,
    MULTICAST,
    OPCODE,
    READ,
    WRITE,
    Instructions,
)
from perfmodel.wafer.system import WaferSystem, core_places, mesh_sides

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

# What instructions of cores bring over the wafer, and what each core does.

ALONE = -1
"""Tree of a flow that shares its links with none, as in `perfmodel.kernels.wafer.routes`."""


class Traffic(NamedTuple):
    """Flows between cores (and the banks beside them), and the work of each core.

    Attributes
    ----------
    sources, targets : array of int, shape (flows,)
        Cores, counted over the wafer.
    sizes : array of float, shape (flows,)
        [B]
    trees : array of int, shape (flows,)
        Flows of one multicast have its number and stand one after the other; else `ALONE`.
    macs, additions : array of float, shape (cores,)
        Multiply-adds and additions of each core.
    local : array of float, shape (cores,)
        Bytes that each core moves to and from its own bank [B].
    """

    sources: Integers
    targets: Integers
    sizes: Floats
    trees: Integers
    macs: Floats
    additions: Floats
    local: Floats


class LinkLoads(NamedTuple):
    """What flows come to on the links of the wafer's mesh.

    Attributes
    ----------
    loads : array of float, shape (6, cores)
        Bytes that leave each place (see `core_places`) east, west, south, north, up and down [B].
    hops : float
        Bytes times links [B].
    longest : int
        Links of the longest way.
    """

    loads: Floats
    hops: float
    longest: int

    @property
    def busiest(self) -> float:
        """Bytes over the busiest link between two cores [B]."""
        return float(self.loads[:4].max(initial=0.0))


def traffic_of(parts: Iterable[Instructions], cores: int) -> Traffic:
    """Sum what instructions move and compute.

    A READ goes from a bank to the core that asks, a WRITE from the core to a bank, a COPY from
    bank to bank, a MULTICAST from one bank to several; bank and core of a number stand together.

    Parameters
    ----------
    parts : iterable of Instructions
        Cores and banks counted over the wafer.
    cores : int
        Of the wafer.

    Raises
    ------
    DataError
        A core or bank that the wafer does not have.
    """
    pairs: dict[int, float] = {}
    cast: list[tuple[Integers, Integers, Floats, Integers]] = []
    macs, additions, local = (np.zeros(cores) for _ in range(3))
    trees = 0
    for part in parts:
        opcode, core = part.lines[:, OPCODE], part.lines[:, CORE]
        first, second, third = (part.arguments[:, place] for place in range(3))
        _check_cores(core, cores, "core")
        product, addition = opcode == GEMM, opcode == ADD
        work = part.arguments[product, :3].prod(axis=1, dtype=np.float64)
        macs += np.bincount(core[product], work, minlength=cores)
        sides = np.maximum(part.arguments[addition], 1).prod(axis=1, dtype=np.float64)
        additions += np.bincount(core[addition], sides, minlength=cores)
        for code, source, target, size in (
            (READ, first, core, second),
            (WRITE, core, first, second),
            (COPY, first, second, third),
        ):
            chosen = opcode == code
            begin, end = source[chosen], target[chosen]
            _check_cores(begin, cores, "bank")
            _check_cores(end, cores, "bank")
            key, place = np.unique(begin * cores + end, return_inverse=True)
            total = np.bincount(place, size[chosen].astype(np.float64), minlength=key.size)
            for one, moved in zip(key.tolist(), total.tolist(), strict=True):
                pairs[one] = pairs.get(one, 0.0) + moved
        multicast = part.arguments[opcode == MULTICAST]
        if len(multicast):
            counts = multicast[:, 3]
            ends = np.cumsum(counts)
            row = np.repeat(np.arange(len(multicast)), counts)
            within = np.arange(row.size) - np.repeat(ends - counts, counts)
            banks = part.destinations[multicast[row, 2] + within]
            _check_cores(banks, cores, "bank")
            sizes = multicast[row, 1].astype(np.float64)
            cast.append((multicast[row, 0], banks, sizes, row + trees))
            trees += len(multicast)
    keys = np.array(sorted(pairs), dtype=np.int64)
    sizes = np.array([pairs[key] for key in keys.tolist()])
    sources, targets = np.divmod(keys, cores)
    own = sources == targets
    local += np.bincount(sources[own], sizes[own], minlength=cores)
    alone = np.full(int((~own).sum()), ALONE)
    several = [(sources[~own], targets[~own], sizes[~own], alone), *cast]
    return Traffic(
        sources=np.concatenate([one[0] for one in several]),
        targets=np.concatenate([one[1] for one in several]),
        sizes=np.concatenate([one[2] for one in several]),
        trees=np.concatenate([one[3] for one in several]),
        macs=macs,
        additions=additions,
        local=local,
    )


def link_loads(traffic: Traffic, system: WaferSystem) -> LinkLoads:
    """Route all flows along rows, then along columns, and sum what the links carry."""
    rows, columns = mesh_sides(system)
    places = core_places(system)
    with kernel_work(mesh_flows=traffic.sources.size):
        from perfmodel.kernels.wafer.routes import flow_loads

        loads, _, hops, longest = flow_loads(
            rows,
            columns,
            places[traffic.sources],
            places[traffic.targets],
            traffic.sizes,
            traffic.trees,
        )
    return LinkLoads(loads, float(hops), int(longest))


def between_nodes(traffic: Traffic, system: WaferSystem) -> Floats:
    """Return the bytes that nodes bring to nodes, shape (nodes, nodes): source, destination."""
    table = np.zeros((system.nodes, system.nodes))
    where = (traffic.sources // system.cores, traffic.targets // system.cores)
    np.add.at(table, where, traffic.sizes)
    own = np.add.reduceat(traffic.local, np.arange(0, traffic.local.size, system.cores))
    table[np.diag_indices(system.nodes)] += own
    return table


def _check_cores(cores: Integers, count: int, noun: str) -> None:
    if cores.size and not 0 <= cores.min() <= cores.max() < count:
        wrong = cores.max() if cores.max() >= count else cores.min()
        raise DataError(f"instructions: {noun} {wrong} is none of the wafer's 0 to {count - 1}")


# The picture: nodes and cores, what links carry, and who sends to whom.

MOST_CORES = 20_000
"""Cores that a picture can show: a core is then three pixels wide."""
GAP = 1.3  # between nodes, in cores; their numbers stand where no link passes
ASIDE, WIDEST = 0.12, 0.2  # of a link's two directions from the middle, and their width, in cores
CORE_SIDE = 0.56  # of a core's square, in cores
DECADES = 4.0  # of the colours of links and of the matrix; less is palest
LINKS, WORK, MATRIX = "plasma_r", "Greys", "viridis_r"
SHADES = 64  # of each scale of colours in a PNG: its size falls threefold, and nobody sees it
PIXELS_PER_INCH = 150
NUMBERS = "navy"
LEAST_NUMBER_SIZE, NUMBER_SIZE = 5.0, 9.0  # of nodes' numbers [pt]


class Drawn(NamedTuple):
    """What a picture shows.

    Attributes
    ----------
    system : WaferSystem
    traffic : Traffic
    title : str
    """

    system: WaferSystem
    traffic: Traffic
    title: str


def save_wafer(drawn: Drawn, path: str | os.PathLike[str]) -> None:
    """Draw a wafer into a file, completely or not at all.

    Parameters
    ----------
    drawn : Drawn
    path : str or path
        Ends in one of `perfmodel.base.figures.FORMATS`.

    Raises
    ------
    DataError
        Too many cores to be seen, no traffic, another format, no matplotlib, or the file
        cannot be written.
    """
    target = Path(path)
    check_plot(target)
    figure = wafer_figure(drawn)
    suffix = target.suffix.lower()
    with atomic_path(target) as temporary:
        figure.savefig(temporary, dpi=PIXELS_PER_INCH, metadata=figure_metadata(suffix))
        if suffix == ".png":
            _fewer_colours(temporary)


def wafer_figure(drawn: Drawn) -> Figure:
    """Return the figure of `save_wafer`: the wafer, and a matrix of bytes between nodes.

    Raises
    ------
    DataError
        Too many cores to be seen, or nothing that moves or computes.
    """
    from matplotlib.figure import Figure

    system, traffic = drawn.system, drawn.traffic
    rows, columns = mesh_sides(system)
    if rows * columns > MOST_CORES:
        raise DataError(
            f"a picture of {rows} x {columns} cores could not be read; it shows {MOST_CORES:,} "
            "at most: draw a smaller system of the same kind"
        )
    loads = link_loads(traffic, system)
    if not (loads.loads.any() or traffic.macs.any() or traffic.local.any()):
        raise DataError("nothing moves or computes in what was chosen: there is nothing to draw")
    down, across = system.node_grid
    high, wide = rows + down * GAP, columns + across * GAP
    scale = 8.2 / max(high, wide)  # inches a core
    both = system.nodes > 1
    size = (wide * scale + (6.0 if both else 1.0), max(high * scale + 1.9, 5.0))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(shortened(drawn.title), fontsize=11, parse_math=False)
    if both:
        left, right = figure.subplots(1, 2, width_ratios=(wide * scale, 4.8), squeeze=True)
        _draw_matrix(figure, right, between_nodes(traffic, system))
    else:
        left = figure.subplots()
    _draw_wafer(figure, left, drawn, loads, scale)
    return figure


def _draw_wafer(figure: Figure, axes: Axes, drawn: Drawn, loads: LinkLoads, scale: float) -> None:
    """Draw nodes, cores by their work, and links by what they carry."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    x, y = _positions(drawn.system)
    _draw_nodes(axes, drawn.system, scale)
    _draw_cores(figure, axes, drawn, x, y)
    _draw_links(figure, axes, drawn.system, loads, x, y, scale)
    axes.set_xlim(-0.5 - GAP, float(x.max()) + 0.6)
    axes.set_ylim(float(y.max()) + 0.6, -0.5 - GAP)
    shares = f"busiest link {format_size(loads.busiest)}" if loads.busiest else "no link is used"
    cores = drawn.traffic.macs
    if cores.any():
        shares += f"; busiest core {cores.max() / cores.mean():.2f} times the mean's multiply-adds"
    axes.set_title(shares, fontsize=9)


def _positions(system: WaferSystem) -> tuple[Floats, Floats]:
    """Return where each place of the mesh stands in the picture, with gaps between nodes."""
    rows, columns = mesh_sides(system)
    row, column = np.divmod(np.arange(rows * columns), columns)
    return (
        column + column // system.core_grid[1] * GAP,
        row + row // system.core_grid[0] * GAP,
    )


def _draw_nodes(axes: Axes, system: WaferSystem, scale: float) -> None:
    """Draw a border around each node, its number in the gap above it."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    high, wide = system.core_grid
    points = float(np.clip(0.6 * GAP * scale * 72.0, LEAST_NUMBER_SIZE, NUMBER_SIZE))
    boxes = []
    for node in range(system.nodes):
        row, column = divmod(node, system.node_grid[1])
        left, top = column * (wide + GAP) - 0.5, row * (high + GAP) - 0.5
        boxes.append(Rectangle((left, top), wide, high))
        if system.nodes > 1:
            corner = (left - 0.15, top - 0.1)
            axes.text(*corner, str(node), fontsize=points, color=NUMBERS, va="bottom", ha="right")
    axes.add_collection(PatchCollection(boxes, facecolor="none", edgecolor="0.6", linewidth=0.8))


def _draw_cores(figure: Figure, axes: Axes, drawn: Drawn, x: Floats, y: Floats) -> None:
    """Draw cores as squares, darker the more they compute (or move, where nothing computes)."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import Normalize
    from matplotlib.ticker import EngFormatter

    traffic = drawn.traffic
    amount, label = traffic.macs, "multiply-adds of a core"
    if not amount.any():
        amount, label = traffic.additions, "additions of a core"
    if not amount.any():
        amount, label = traffic.local, "bytes of a core and its own bank"
    places = core_places(drawn.system)
    half = CORE_SIDE / 2
    corners = np.array([(-half, -half), (half, -half), (half, half), (-half, half)])
    squares = np.stack((x[places], y[places]), axis=1)[:, None, :] + corners
    top = float(amount.max(initial=0.0)) or 1.0
    cores = PolyCollection(
        squares, array=amount, cmap=WORK, norm=Normalize(-0.05 * top, top * 1.15)
    )
    cores.set_edgecolor("0.75")
    cores.set_linewidth(0.2)
    axes.add_collection(cores)
    if amount.any():
        bar = figure.colorbar(
            cores,
            ax=axes,
            location="bottom",
            shrink=0.6,
            aspect=40,
            pad=0.01,
            format=EngFormatter(sep=""),
        )
        bar.ax.set_xlim(0.0, top)
        bar.set_label(label, fontsize=8)
        bar.ax.tick_params(labelsize=7)


def _draw_links(
    figure: Figure,
    axes: Axes,
    system: WaferSystem,
    loads: LinkLoads,
    x: Floats,
    y: Floats,
    scale: float,
) -> None:
    """Draw each link that carries anything, its two directions side by side."""
    from matplotlib.collections import LineCollection

    columns = mesh_sides(system)[1]
    half = CORE_SIDE / 2
    # Core beyond the link; where a line begins beside its core, and ends beside the other.
    ways = (
        (1, (half, -ASIDE), (-half, -ASIDE)),
        (-1, (-half, ASIDE), (half, ASIDE)),
        (columns, (ASIDE, half), (ASIDE, -half)),
        (-columns, (-ASIDE, -half), (-ASIDE, half)),
    )
    at = np.stack((x, y), axis=1)
    lines, sizes = [], []
    for way, (step, begin, end) in enumerate(ways):
        places = np.flatnonzero(loads.loads[way] > 0.0)
        lines.append(np.stack((at[places] + begin, at[places + step] + end), axis=1))
        sizes.append(loads.loads[way, places])
    carried = np.concatenate(sizes)
    if not carried.size:
        return
    order = np.argsort(carried)  # the busiest on top
    share = _share(carried, loads.busiest)
    width = max(WIDEST * scale * 72.0, 0.5)
    drawn = LineCollection(
        list(np.concatenate(lines)[order]),
        array=carried[order],
        cmap=LINKS,
        norm=_logarithmic(loads.busiest),
        linewidths=(width * (0.35 + 0.65 * share))[order],
        capstyle="butt",
    )
    axes.add_collection(drawn)
    _add_bytes(figure, axes, drawn, "bytes over a link, each direction on its own side", "bottom")


def _draw_matrix(figure: Figure, axes: Axes, table: Floats) -> None:
    """Draw the bytes between nodes, sources down, destinations across."""
    nodes = len(table)
    top = float(table.max(initial=0.0))
    axes.set_title("bytes from node to node", fontsize=9)
    axes.set_xlabel("to node", fontsize=8)
    axes.set_ylabel("from node", fontsize=8)
    step = max(1, int(np.ceil(nodes / 14)))
    axes.set_xticks(range(0, nodes, step))
    axes.set_yticks(range(0, nodes, step))
    axes.tick_params(labelsize=7)
    if top <= 0.0:
        axes.set_xlim(-0.5, nodes - 0.5)
        axes.set_ylim(nodes - 0.5, -0.5)
        axes.set_aspect("equal")
        return
    image = axes.imshow(
        np.ma.masked_less_equal(table, 0.0),
        cmap=MATRIX,
        norm=_logarithmic(top),
        interpolation="nearest",
    )
    _add_bytes(figure, axes, image, "bytes (on the diagonal: within the node)", "bottom")


def _share(amounts: Floats, top: float) -> Floats:
    """Return where amounts lie on the logarithmic scale, 0 to 1."""
    return np.clip(1.0 + np.log10(amounts / top) / DECADES, 0.0, 1.0)


def _logarithmic(top: float) -> Any:
    from matplotlib.colors import LogNorm

    return LogNorm(top * 10.0**-DECADES, top, clip=True)


def _add_bytes(
    figure: Figure, axes: Axes, drawn: ScalarMappable, label: str, location: str
) -> None:
    from matplotlib.ticker import EngFormatter

    bar = figure.colorbar(
        drawn, ax=axes, location=location, shrink=0.6, aspect=40, pad=0.02, format=EngFormatter("B")
    )
    bar.ax.minorticks_off()
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _fewer_colours(path: Path) -> None:
    """Write a PNG again with a table of the colours that it is drawn with."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb
    from PIL import Image

    steps = np.linspace(0.0, 1.0, SHADES)
    scales = [colormaps[name](steps)[:, :3] for name in (LINKS, MATRIX)]
    grey = np.linspace(0.0, 1.0, 2 * SHADES - 8)[:, None] * np.ones(3)
    blue = np.linspace(to_rgb(NUMBERS), 1.0, 8)  # the edges of numbers
    table = np.rint(255 * np.concatenate((grey[::-1], *scales, blue))).astype(np.uint8)
    palette = Image.new("P", (1, 1))
    palette.putpalette(table.tobytes())
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    small.save(path, format="PNG", optimize=True)


def read_drawn(
    workload: str | os.PathLike[str],
    step: str,
    operation: str,
    layer: str = "",
    system: str | os.PathLike[str] | None = None,
) -> Drawn:
    """Read what `save_wafer` draws.

    Parameters
    ----------
    workload : str or path
        A folder with ``cores.nc`` or ``traces/`` in it, or such a netCDF file.
    step, operation, layer : str
        As of `perfmodel.wafer.core_columns.read_operation`.
    system : str or path, optional
        ``system.json`` of traces that are text; they do not say it.

    Raises
    ------
    DataError, FormatError, StrategyError
        Files that are not there or broken, a step or an operation that there is not.
    """
    place = Path(workload)
    words = " · ".join(word for word in (step, layer, operation) if word)
    if system is None and (place.suffix == ".nc" or (place / "cores.nc").is_file()):
        return _read_columns(place, step, operation, layer, words)
    from perfmodel.wafer.core_columns import read_operation
    from perfmodel.wafer.generator_files import read_systems

    if system is None:
        raise DataError(
            f"'{workload}': has no cores.nc, and traces of text do not say how nodes and cores "
            "stand; name their system.json (--system)"
        )
    systems = read_systems(system)
    phase = "prefill" if step.startswith("prefill") else "decode"
    if phase not in systems:
        raise DataError(f"'{system}': no block '{phase}'")
    chosen = systems[phase]
    parts = read_operation(workload, step, operation, chosen.cores, layer)
    return Drawn(chosen, traffic_of(parts, chosen.nodes * chosen.cores), words)


def _read_columns(path: Path, step: str, operation: str, layer: str, words: str) -> Drawn:
    """Read what the columnar file holds of an operation."""
    from perfmodel.wafer.core_columns import plain, read_cores

    number = step.removeprefix("decode").removeprefix("prefill") or "0"
    if not (number.isascii() and number.isdigit()):
        raise DataError(f"step '{step}': should be as decode0 or prefill")
    system, instructions = read_cores(path, int(number[:9]))
    wanted, layers, parts, known = plain(operation), set(), [], set()
    for _, _, name, part in instructions:
        first, _, rest = name.partition("_")
        known.add(rest)
        if wanted in plain(rest) and (not layer or first == layer):
            layers.add(first)
            parts.append(part)
    if not parts:
        raise DataError(
            f"'{path}', step '{step}': no instruction of '{operation}'"
            f"{did_you_mean(operation, sorted(known))}"
        )
    if len(layers) > 1 and operation:
        raise DataError(
            f"'{operation}' is in several layers ({', '.join(sorted(layers)[:9])}, …): name one of "
            "them (--layer)"
        )
    return Drawn(system, traffic_of(parts, system.nodes * system.cores), words)
