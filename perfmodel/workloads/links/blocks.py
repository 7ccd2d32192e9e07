"""A large network drawn by its blocks: devices of a node as one, parallel links as one.

A topology of 144 devices has 600 links, of which most run side by side. Its blocks, the copies
of what its innermost dimensions join, stand for their devices: what remains is the topology of
the outer dimensions, with as many positions as there are blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.workloads.links.axes import SWITCH
from perfmodel.workloads.links.layout import is_grid
from perfmodel.workloads.links.topology import Topology

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
