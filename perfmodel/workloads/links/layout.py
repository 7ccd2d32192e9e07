"""Where the vertices of a topology stand in a drawing; large networks by their blocks.

Every dimension arranges copies of what lies within it: on a circle where devices themselves
form a ring, are fully connected or share one switch, on a grid for meshes and tori (and for
rings of rings), in a row otherwise. Switches stand above the devices; where several dimensions have
switches, the innermost stand below, so that links do not cross.

A topology of 144 devices has 600 links, of which most run side by side. Its blocks, the copies
of what its innermost dimensions join, stand for their devices: what remains is the topology of
the outer dimensions, with as many positions as there are blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.workloads.links.axes import FAT_TREE, SWITCH
from perfmodel.workloads.links.dimensions import Dimension
from perfmodel.workloads.links.topology import Topology

GAP = 1.0  # between blocks, beside the distance of 1 between devices
WIDEST_ROW = 40.0
MOST_IN_ROW = 16  # more devices than these stand around the switch that they share
BETWEEN_ROWS = 2.5
DEPTH = np.array([0.8, 0.62])  # of one step along the third axis of a grid
RISE = 1.6  # between devices and a row of switches, at least


def vertex_positions(topology: Topology) -> Floats:
    """Return x and y of every vertex; float64[vertices, 2]."""
    places = np.zeros((1, 2))
    if is_grid(topology):
        return _grid(topology.shape, places)
    if _is_star(topology):
        return np.vstack([_circle(topology.device_count), [[0.0, 0.0]]])
    for dimension in topology.dimensions:
        places = _arranged(dimension, places)
    return np.vstack([places, *_switch_rows(topology, places)])


def is_grid(topology: Topology) -> bool:
    """Whether all devices stand on one grid of two or three axes."""
    kinds = {dimension.kind for dimension in topology.dimensions}
    return 2 <= len(topology.shape) <= 3 and kinds <= {"ring", "mesh", "torus"}


def on_circle(topology: Topology) -> bool:
    """Whether the devices of the first dimension stand on a circle."""
    first = topology.dimensions[0]
    return not is_grid(topology) and first.kind in ("ring", "fully-connected") and first.size > 2


def _is_star(topology: Topology) -> bool:
    """Whether so many devices share one switch that it stands in their middle."""
    kinds = [dimension.kind for dimension in topology.dimensions]
    return kinds in (["switch"], ["rail"]) and topology.device_count > MOST_IN_ROW


def _circle(count: int) -> Floats:
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    radius = max(1.0, count / (2 * np.pi) * 1.15)
    return np.asarray(radius * np.column_stack([np.cos(angle), np.sin(angle)]))


def _arranged(dimension: Dimension, block: Floats) -> Floats:
    """Return the positions of as many copies of a block as the dimension has positions."""
    count = dimension.size
    if dimension.kind in ("mesh", "torus"):
        return _grid(dimension.shape, block)
    if len(block) == 1 and dimension.kind in ("ring", "fully-connected") and count > 2:
        return _circle(count)
    width, height = np.ptp(block, axis=0)
    step = np.array([width + 1.0 + (GAP if len(block) > 1 else 0.0), height + BETWEEN_ROWS])
    columns = count
    if step[0] * (count - 1) + width > WIDEST_ROW:  # rows that fill about a square
        columns = max(1, math.isqrt(int(count * step[1] / step[0])))
    copies = np.arange(count)
    steps = np.column_stack([copies % columns, -(copies // columns)]) * step
    return (steps[:, None, :] + block[None, :, :]).reshape(-1, 2)


def _grid(shape: tuple[int, ...], block: Floats) -> Floats:
    """Return copies of a block on a grid: x to the right, y down, z into the depth."""
    cell = np.ptp(block, axis=0) + (1.0 + GAP if len(block) > 1 else 1.0)
    depth = DEPTH * cell
    if len(shape) == 3:  # all positions along z fit between two along x, and along y
        cell = np.maximum(cell, depth * (shape[2] - 1) + cell)
    axes = np.array([[cell[0], 0.0], [0.0, -cell[1]], depth])[: len(shape)]
    count = math.prod(shape)
    strides = np.cumprod([1, *shape[:-1]])
    coordinates = np.arange(count)[:, None] // strides % np.array(shape)
    return ((coordinates @ axes)[:, None, :] + block[None, :, :]).reshape(-1, 2)


def _switch_rows(topology: Topology, places: Floats) -> list[Floats]:
    """Return the positions of the switches, dimension by dimension."""
    switched = [axis for axis in topology.axes if axis.switches]
    top, bottom = places[:, 1].max(), places[:, 1].min()
    spread = np.ptp(places[:, 0])
    rise = max(RISE, 0.12 * spread)
    rows: list[Floats] = []
    for index, axis in enumerate(switched):
        if axis.kind == FAT_TREE:
            leaves = places.reshape(-1, axis.stride, 2)[:, :, 0].mean(axis=1)
            cores = leaves.reshape(-1, axis.size).mean(axis=1)
            heights = [top + rise, top + 1.7 * rise]
            top = heights[-1]
            rows += [
                np.column_stack([_apart(x, spread), np.full(x.size, y)])
                for x, y in zip((leaves, cores), heights, strict=True)
            ]
            continue
        lines = places.reshape(-1, axis.size, axis.stride, 2)[..., 0].mean(axis=1).ravel()
        if index == 0 and len(switched) > 1 and axis.stride == 1:
            height = bottom = bottom - rise
        else:
            height = top = top + rise
        rows.append(np.column_stack([_apart(lines, spread), np.full(lines.size, height)]))
    return rows


def _apart(x: Floats, spread: float) -> Floats:
    """Return places in a row, spread evenly where they would stand on one another."""
    if x.size < 2 or np.min(np.diff(np.sort(x))) >= 0.9:
        return x
    middle = (x.min() + x.max()) / 2
    width = max(float(np.ptp(x)), min(0.8 * spread, 1.4 * (x.size - 1)))
    order = np.argsort(x, kind="stable")
    placed = np.empty_like(x)
    placed[order] = np.linspace(middle - width / 2, middle + width / 2, x.size)
    return placed


MOST_BLOCKS = 36


@dataclass(frozen=True)
class Blocks:
    """The blocks of a topology.

    Parameters
    ----------
    outer : Topology
        Its devices are the blocks.
    size : int
        Devices of a block.
    inner : int
        Dimensions within a block.
    of_link : int64[links]
        Link of `outer` that stands for each link of the whole; -1 within a block.
    block : int64[links]
        Block in which a link lies; -1 between blocks.
    """

    outer: Topology
    size: int
    inner: int
    of_link: Integers
    block: Integers

    def slowest_between(self, times: Floats) -> Floats:
        """Return the longest time of the links that each link of `outer` stands for [s]."""
        return _slowest(times, self.of_link, self.outer.link_count)

    def slowest_within(self, times: Floats) -> Floats:
        """Return the longest time of the links within each block [s]."""
        return _slowest(times, self.block, self.outer.device_count)

    def busy_links(self, times: Floats) -> tuple[Integers, Integers]:
        """Return for each link of `outer` how many of its links carry something, of how many."""
        between = self.of_link >= 0
        count = self.outer.link_count
        used = np.bincount(self.of_link[between & (times > 0)], minlength=count)
        return used, np.bincount(self.of_link[between], minlength=count)


def blocks_of(topology: Topology, most: int = MOST_BLOCKS) -> Blocks | None:
    """Return a topology by its blocks: the smallest ones of which there are at most `most`.

    None where no innermost dimensions make such blocks, or where all devices lie on one grid.
    """
    if is_grid(topology):
        return None
    dimensions = topology.dimensions
    for inner in range(1, len(dimensions)):
        size = math.prod(dimension.size for dimension in dimensions[:inner])
        if size > 1 and 1 < topology.device_count // size <= most:
            return _blocks(topology, inner, size)
    return None


def _blocks(topology: Topology, inner: int, size: int) -> Blocks:
    outer = Topology(topology.dimensions[inner:])
    vertex = _outer_vertices(topology, inner, size)
    between = topology.link_dimension >= inner
    source, target = vertex[topology.link_source], vertex[topology.link_target]
    keys = _key(outer, outer.link_dimension, outer.link_source, outer.link_target)
    order = np.argsort(keys, kind="stable")
    wanted = _key(outer, topology.link_dimension - inner, source, target)[between]
    of_link = np.full(topology.link_count, -1, dtype=np.int64)
    of_link[between] = order[np.searchsorted(keys, wanted, sorter=order)]
    ends = np.where(  # one end of a link within a block is a device
        topology.link_source < topology.device_count, topology.link_source, topology.link_target
    )
    return Blocks(outer, size, inner, of_link, np.where(between, -1, ends // size))


def _outer_vertices(topology: Topology, inner: int, size: int) -> Integers:
    """Return the vertex of the outer topology for every vertex; -1 for switches of blocks."""
    found = [np.arange(topology.device_count) // size]
    first = topology.device_count // size
    for axis in topology.axes:
        index = np.arange(axis.switches)
        if axis.dimension < inner:
            found.append(np.full(index.size, -1))
            continue
        if axis.kind == SWITCH:  # one per position within the dimensions inside: so many as one
            index = index // size
        found.append(first + index)
        first += int(index[-1]) + 1 if index.size else 0
    return np.concatenate(found)


def _key(outer: Topology, dimension: Integers, source: Integers, target: Integers) -> Integers:
    """Return one number per (dimension, source, target)."""
    vertices = outer.vertex_count
    return np.asarray((dimension * vertices + source) * vertices + target)


def _slowest(times: Floats, owner: Integers, count: int) -> Floats:
    found = np.zeros(count)
    chosen = owner >= 0
    np.maximum.at(found, owner[chosen], times[chosen])
    return found
