"""The axes of a topology: their links and switches, distances and cuts.

The numbering of links is that of :mod:`perfmodel.kernels.workloads.routes`. Distances: Dally &
Towles 2004, "Principles and Practices of Interconnection Networks", chapter 5 (tori and meshes);
the others by counting, see ``docs/topologies.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.workloads.links.dimensions import Dimension

MOST_LINKS = 50_000_000  # 2 GB of arrays; a fully connected dimension of 7,000 devices

# Codes of kernels.topology; test_topology compares the two.
RING, LINE, FULL, SWITCH, FAT_TREE = range(5)
KIND, SIZE, STRIDE, FIRST_LINK = range(4)  # columns of the table of axes
COLUMNS = 4
CODES = {
    "ring": RING,
    "torus": RING,
    "mesh": LINE,
    "fully-connected": FULL,
    "switch": SWITCH,
    "rail": SWITCH,
    "fat-tree": FAT_TREE,
}


@dataclass(frozen=True)
class Axis:
    """One axis of one dimension of a topology.

    Parameters
    ----------
    kind : int
        `RING` ... `FAT_TREE`.
    size, stride : int
        Positions, and the distance of neighbours in device ids.
    devices : int
        Of the whole topology.
    dimension : int
        Index of the dimension.
    bandwidth : float
        Of a link; of a fat tree, of the link of a device [B/s].
    core_bandwidth : float
        Of the link between leaf and core of a fat tree [B/s]; else 0.
    latency : float
        Of a link [s].
    label : str
        Name of the dimension.
    """

    kind: int
    size: int
    stride: int
    devices: int
    dimension: int
    bandwidth: float
    core_bandwidth: float
    latency: float
    label: str

    @property
    def links(self) -> int:
        """Number of directed links."""
        if self.size == 1:
            return 0
        if self.kind == RING:
            return self.devices * min(2, self.size - 1)
        if self.kind == LINE:
            return 2 * (self.devices // self.size) * (self.size - 1)
        if self.kind == FULL:
            return self.devices * (self.size - 1)
        leaves = self.devices // self.stride if self.kind == FAT_TREE else 0
        return 2 * self.devices + 2 * leaves

    @property
    def switches(self) -> int:
        """Number of switch vertices: leaves, then cores, of a fat tree."""
        if self.size == 1 or self.kind not in (SWITCH, FAT_TREE):
            return 0
        if self.kind == SWITCH:
            return self.devices // self.size
        return self.devices // self.stride + self.devices // (self.stride * self.size)

    def switch_name(self, index: int) -> str:
        """Return dimension, part and number of a switch of this axis."""
        if self.kind == SWITCH:
            return f"{self.label} switch {index}"
        leaves = self.devices // self.stride
        if index < leaves:
            return f"{self.label} leaf {index}"
        return f"{self.label} core {index - leaves}"

    def ends(self, first_switch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return sources and targets of all links, switches numbered from `first_switch`."""
        device = np.arange(self.devices)
        if self.size == 1:
            return device[:0], device[:0]
        place = device // self.stride % self.size
        if self.kind == RING:
            clockwise = device + ((place + 1) % self.size - place) * self.stride
            if self.size == 2:
                return device, clockwise
            back = device + ((place - 1) % self.size - place) * self.stride
            return np.concatenate([device, device]), np.concatenate([clockwise, back])
        if self.kind == LINE:
            lower = device[place < self.size - 1]
            upper = lower + self.stride
            return np.concatenate([lower, upper]), np.concatenate([upper, lower])
        if self.kind == FULL:
            reached = (place[:, None] + np.arange(1, self.size)) % self.size
            target = device[:, None] + (reached - place[:, None]) * self.stride
            return np.repeat(device, self.size - 1), target.ravel()
        if self.kind == SWITCH:
            switch = first_switch + device % self.stride
            switch += device // (self.stride * self.size) * self.stride
            return np.concatenate([device, switch]), np.concatenate([switch, device])
        leaves = self.devices // self.stride
        leaf = first_switch + device // self.stride
        each = first_switch + np.arange(leaves)
        core = first_switch + leaves + np.arange(leaves) // self.size
        return (
            np.concatenate([device, leaf, each, core]),
            np.concatenate([leaf, device, core, each]),
        )

    def bandwidths(self) -> NDArray[np.float64]:
        """Return the bandwidth of every link [B/s]."""
        values = np.full(self.links, self.bandwidth)
        if self.kind == FAT_TREE:
            values[2 * self.devices :] = self.core_bandwidth
        return values


def axes_of(dimensions: tuple[Dimension, ...]) -> tuple[Axis, ...]:
    """Return the axes of all dimensions, the fastest first."""
    devices = 1
    for dimension in dimensions:
        devices *= dimension.size
    axes = []
    stride = 1
    for index, dimension in enumerate(dimensions):
        core = dimension.bandwidth * stride / dimension.oversubscription
        for side, bandwidth in zip(dimension.shape, dimension.link_bandwidths, strict=True):
            axes.append(
                Axis(
                    kind=CODES[dimension.kind],
                    size=side,
                    stride=stride,
                    devices=devices,
                    dimension=index,
                    bandwidth=bandwidth,
                    core_bandwidth=core if dimension.kind == "fat-tree" else 0.0,
                    latency=dimension.latency,
                    label=dimension.label,
                )
            )
            stride *= side
    return tuple(axes)


def axis_table(axes: tuple[Axis, ...]) -> NDArray[np.int64]:
    """Return the table of axes that the kernels read."""
    table = np.zeros((len(axes), COLUMNS), dtype=np.int64)
    first = 0
    for row, axis in zip(table, axes, strict=True):
        row[KIND] = axis.kind
        row[SIZE] = axis.size
        row[STRIDE] = axis.stride
        row[FIRST_LINK] = first
        first += axis.links
    return table


@dataclass(frozen=True, eq=False)
class Links:
    """All directed links: arrays of shape (links,).

    Parameters
    ----------
    source, target, dimension : int64[links]
        Vertices at the ends, and the index of the dimension.
    bandwidth, latency : float64[links]
        [B/s], [s].
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    dimension: NDArray[np.int64]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]


def build_links(axes: tuple[Axis, ...]) -> Links:
    """Return the links of all axes, in the order of their numbers; the arrays are read-only."""
    sources, targets = [], []
    first_switch = axes[0].devices
    for axis in axes:
        source, target = axis.ends(first_switch)
        sources.append(source)
        targets.append(target)
        first_switch += axis.switches
    counts = [axis.links for axis in axes]
    links = Links(
        source=np.concatenate(sources),
        target=np.concatenate(targets),
        dimension=np.repeat([axis.dimension for axis in axes], counts),
        bandwidth=np.concatenate([axis.bandwidths() for axis in axes]),
        latency=np.repeat([axis.latency for axis in axes], counts),
    )
    for array in vars(links).values():
        array.setflags(write=False)
    return links


FAT_TREE_HOPS = 4  # device, leaf, core, leaf, device
SWITCH_HOPS = 2


def diameter(axes: tuple[Axis, ...]) -> int:
    """Return the links of the longest route.

    Along axes the longest distances add up; a fat tree is passed in place of what lies
    within it.
    """
    longest = 0
    for axis in axes:
        if axis.size == 1:
            continue
        if axis.kind == FAT_TREE:
            longest = max(longest, FAT_TREE_HOPS)
        else:
            longest += _longest(axis)
    return longest


def average_hops(axes: tuple[Axis, ...]) -> float:
    """Return the mean links of a route over all ordered pairs of two devices."""
    mean = 0.0  # over all pairs, a device and itself included
    for axis in axes:
        if axis.kind == FAT_TREE:
            mean = mean / axis.size + FAT_TREE_HOPS * (1.0 - 1.0 / axis.size)
        else:
            mean += _mean(axis)
    devices = axes[0].devices
    return mean * devices / (devices - 1) if devices > 1 else 0.0


def _longest(axis: Axis) -> int:
    if axis.kind == RING:
        return axis.size // 2
    if axis.kind == LINE:
        return axis.size - 1
    return 1 if axis.kind == FULL else SWITCH_HOPS


def _mean(axis: Axis) -> float:
    """Return the mean distance along an axis over all pairs of positions, equal ones too."""
    n = axis.size
    if axis.kind == RING:
        return n / 4.0 if n % 2 == 0 else (n * n - 1) / (4.0 * n)
    if axis.kind == LINE:
        return (n * n - 1) / (3.0 * n)
    return (1 if axis.kind == FULL else SWITCH_HOPS) * (n - 1) / n


def smallest_halving(axes: tuple[Axis, ...]) -> float:
    """Return the smallest cut along the axes into ``floor(N / 2)`` devices and the rest.

    Notes
    -----
    Halving along an axis cuts all its lines in the middle. Where its number of positions is
    odd the middle slab is halved along another axis. For meshes and tori this is the
    bisection (Aroca & Fernández Anta 2014, "Bisection (Band)Width of Product Networks with
    Application to Data Centers"); for other products it is a cut that exists, and the
    tests compare it with all halvings of small networks.
    """
    used = tuple(axis for axis in axes if axis.size > 1)
    trees = tuple(axis for axis in used if axis.kind == FAT_TREE)
    return _halve(used, trees, axes[0].devices)


def _halve(axes: tuple[Axis, ...], trees: tuple[Axis, ...], devices: int) -> float:
    """Halve the slab of `devices` devices that spans these axes in a network with fat trees."""
    if not axes:
        return 0.0
    best = math.inf
    for chosen, axis in enumerate(axes):
        rest = axes[:chosen] + axes[chosen + 1 :]
        lines = devices // axis.size
        half = axis.size // 2
        if axis.kind == FAT_TREE:
            inner = math.prod(item.size for item in axes[:chosen])
            # Whole leaves change sides by their uplink; parts of leaves by their devices.
            leaf = axis.core_bandwidth if inner == axis.stride else axis.bandwidth * inner
            cost = lines // inner * half * min(leaf, axis.bandwidth * inner)
        else:
            cost = lines * _line_cut(axis, half)
        # Every device of the smaller half leaves the fat trees further out by its adapter.
        outer = [tree for tree in trees if tree.stride > axis.stride]
        cost += sum(tree.bandwidth * lines * half for tree in outer)
        if axis.size % 2:
            cost += _halve(rest, trees, lines)
        best = min(best, cost)
    return best


def _line_cut(axis: Axis, half: int) -> float:
    """Return the cut through one line of an axis with so many positions on one side."""
    if axis.kind == RING:
        return axis.bandwidth * (1 if axis.size == 2 else 2)
    if axis.kind == FULL:
        return axis.bandwidth * half * (axis.size - half)
    return axis.bandwidth * (half if axis.kind == SWITCH else 1)
