"""The axes of a topology, and the links and switches that belong to each.

The numbering of links is that of :mod:`perfmodel.kernels.workloads.links.routes`.
"""

from __future__ import annotations

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
