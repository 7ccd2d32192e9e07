"""A network link by link: its routes, the loads of its links, its distances and cuts.

A `Topology` is a tuple of `Dimension`, innermost first. Devices count in mixed radix, the
first axis of the first dimension fastest. Vertices are the devices, then the switches,
dimension by dimension. Links are directed and numbered by arithmetic (see
:mod:`perfmodel.kernels.workloads.routes`), so that nothing quadratic is stored. Conventions,
formulas and sources: ``docs/topologies.md``.

Numba is imported inside the functions that need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.columns import Floats, Integers, broadcast
from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.workloads.links.axes import (
    FIRST_LINK,
    MOST_LINKS,
    Axis,
    Links,
    average_hops,
    axes_of,
    axis_table,
    build_links,
    diameter,
    smallest_halving,
)
from perfmodel.workloads.links.dimensions import KINDS, Dimension, dimensions_of_hardware

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

__all__ = ["KINDS", "Dimension", "Topology"]


@dataclass(frozen=True)
class Topology:
    """Devices joined in one or more dimensions.

    Parameters
    ----------
    dimensions : tuple of Dimension
        Innermost first.

    Raises
    ------
    HardwareError
        There is no dimension, or the network is too large to list its links.

    Examples
    --------
    >>> mesh = Topology((Dimension("mesh", (4, 4), 200e9, 1e-6),))
    >>> mesh.route(1, 7).tolist()
    [1, 2, 3, 7]
    """

    dimensions: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        dimensions = tuple(self.dimensions)
        object.__setattr__(self, "dimensions", dimensions)
        if not dimensions or not all(isinstance(item, Dimension) for item in dimensions):
            raise HardwareError("a topology is made of one or more dimensions")
        if self.device_count > 10**18:  # the links of so many may be more than a float holds
            raise HardwareError(f"a topology of more than 10^18 devices; {MOST_LINKS:,} at most")
        if self.link_count > MOST_LINKS:
            raise HardwareError(
                f"a topology of {self.device_count:,} devices and {self.link_count:,} links; at "
                f"most {MOST_LINKS:,} links can be listed"
            )

    @classmethod
    def from_hardware(
        cls,
        hardware: Hardware,
        devices: int,
        sides: Mapping[int, Sequence[int]] | None = None,
    ) -> Topology:
        """Return the network of a profile for a number of devices.

        Parameters
        ----------
        hardware : Hardware
        devices : int
            As many as fill one or more levels; an unbounded outermost level takes the rest.
        sides : mapping of int to sequence of int, optional
            Side lengths of the torus or mesh on a network level, x first; by default as
            equal as its size allows, ascending.

        Raises
        ------
        HardwareError
            The devices do not fill the levels, or sides do not suit a level.
        """
        return cls(dimensions_of_hardware(hardware, devices, sides or {}))

    # Shape -------------------------------------------------------------------------

    @property
    def device_count(self) -> int:
        """Number of devices; their ids are 0 ... device_count - 1."""
        return math.prod(dimension.size for dimension in self.dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        """Positions along every axis of every dimension, the fastest first."""
        return tuple(side for dimension in self.dimensions for side in dimension.shape)

    @property
    def vertex_count(self) -> int:
        """Devices and switches together."""
        return self.device_count + sum(axis.switches for axis in self.axes)

    @property
    def link_count(self) -> int:
        """Number of directed links."""
        return sum(axis.links for axis in self.axes)

    def coordinates(self, devices: ArrayLike) -> Integers:
        """Return the position of devices along every axis.

        Parameters
        ----------
        devices : int or array of int

        Returns
        -------
        int64[..., axes]
        """
        ids = self._devices(devices, "device")
        strides = np.cumprod([1, *self.shape[:-1]])
        return ids[..., None] // strides % np.array(self.shape)

    def device(self, coordinates: ArrayLike) -> Integers:
        """Return the device at a position along every axis; undoes `coordinates`.

        Raises
        ------
        StrategyError
            Another number of axes, or a coordinate outside its axis.
        """
        places = np.asarray(coordinates)
        shape = np.array(self.shape)
        if places.dtype.kind not in "iu" or places.shape[-1:] != shape.shape:
            raise StrategyError(f"coordinates {coordinates!r}; {len(shape)} whole numbers are due")
        if np.any((places < 0) | (places >= shape)):
            raise StrategyError(f"coordinates {coordinates!r} lie outside the shape {self.shape}")
        strides = np.cumprod([1, *self.shape[:-1]])
        return np.asarray(places.astype(np.int64) @ strides)

    # Links -------------------------------------------------------------------------

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of all dimensions, the fastest first."""
        return axes_of(self.dimensions)

    @cached_property
    def _links(self) -> Links:
        return build_links(self.axes)

    @cached_property
    def _table(self) -> Integers:
        return axis_table(self.axes)

    @property
    def link_source(self) -> Integers:
        """Vertex at which each link begins; int64[links]."""
        return self._links.source

    @property
    def link_target(self) -> Integers:
        """Vertex at which each link ends; int64[links]."""
        return self._links.target

    @property
    def link_bandwidth(self) -> Floats:
        """Bandwidth of each link [B/s]; float64[links]."""
        return self._links.bandwidth

    @property
    def link_latency(self) -> Floats:
        """Latency of each link [s]; float64[links]."""
        return self._links.latency

    @property
    def link_dimension(self) -> Integers:
        """Index of the dimension of each link; int64[links]."""
        return self._links.dimension

    def vertex_name(self, vertex: int) -> str:
        """Return the id of a device, or kind, dimension and number of a switch."""
        first = self.device_count
        if 0 <= vertex < first:
            return str(vertex)
        for axis in self.axes:
            if first <= vertex < first + axis.switches:
                return axis.switch_name(vertex - first)
            first += axis.switches
        raise StrategyError(f"vertex {vertex}; there are 0 to {self.vertex_count - 1}")

    # Routes ------------------------------------------------------------------------

    def route(self, source: int, target: int) -> Integers:
        """Return the vertices of a route, source and target included."""
        links = self.route_links(source, target)
        return np.concatenate([[np.int64(source)], self.link_target[links]])

    def route_links(self, source: int, target: int) -> Integers:
        """Return the links of a route, in order; empty from a device to itself."""
        return self.routes(source, target)[1]

    def routes(self, sources: ArrayLike, targets: ArrayLike) -> tuple[Integers, Integers]:
        """Return the links of many routes.

        Parameters
        ----------
        sources, targets : int or array of int
            Devices; broadcast together and flattened.

        Returns
        -------
        offsets : int64[messages + 1]
        links : int64[offsets[-1]]
            Message m passes ``links[offsets[m]:offsets[m + 1]]``, in this order.

        Raises
        ------
        StrategyError
            A device that does not exist, or shapes that do not broadcast.
        """
        from perfmodel.kernels.work import kernel_work
        from perfmodel.kernels.workloads import routes as kernel

        starts, ends = self._messages(sources, targets)
        offsets = np.zeros(starts.size + 1, dtype=np.int64)
        with kernel_work(routes=2 * starts.size):
            np.cumsum(kernel.hop_counts(self._table, starts, ends), out=offsets[1:])
            links = kernel.write_routes(self._table, self.device_count, starts, ends, offsets)
        return offsets, links

    def switch_links(self, devices: ArrayLike, dimension: int) -> tuple[Integers, Integers]:
        """Return the links from devices to the switch of a dimension, and back from it.

        Parameters
        ----------
        devices : int or array of int
        dimension : int
            Index of a switch or rail of more than one position; of a fat tree, the links
            are those to the leaf.

        Raises
        ------
        StrategyError
            A device that does not exist, or a dimension without a switch.
        """
        ids = self._devices(devices, "device")
        for row, axis in zip(self._table, self.axes, strict=True):
            if axis.dimension == dimension and axis.switches:
                first = int(row[FIRST_LINK])
                return ids + first, ids + first + self.device_count
        raise StrategyError(f"dimension {dimension} of this topology has no switch")

    # Loads -------------------------------------------------------------------------

    def link_loads(
        self, sources: ArrayLike, targets: ArrayLike, bytes: ArrayLike
    ) -> NDArray[np.float64]:
        """Return the bytes that messages bring over every link.

        Loads of groups that run at the same time are the sum of their loads.

        Parameters
        ----------
        sources, targets : int or array of int
        bytes : float or array of float
            Size of each message [B]; broadcast together.

        Returns
        -------
        float64[links]
            [B].

        Raises
        ------
        StrategyError
            A device that does not exist, a size that is negative or not finite, or shapes
            that do not broadcast.
        """
        from perfmodel.kernels.work import kernel_work
        from perfmodel.kernels.workloads import routes as kernel

        starts, ends, sizes = self._sized_messages(sources, targets, bytes)
        loads = np.zeros(self.link_count)
        table = self._table, self.device_count, self.diameter
        with kernel_work(routes=starts.size):
            kernel.add_loads(*table, starts, ends, sizes, loads)
        return loads

    def load_time(self, loads: ArrayLike) -> float:
        """Return the time of the busiest link, load over bandwidth [s].

        No schedule of messages with these loads takes less; 0 where there is no link.

        Raises
        ------
        StrategyError
            Not one load per link.
        """
        return float(np.max(self.link_times(loads), initial=0.0))

    def link_times(self, loads: ArrayLike) -> Floats:
        """Return load over bandwidth of every link [s]; see `load_time`."""
        given = checked_sizes(loads)
        if given.shape != (self.link_count,):
            raise StrategyError(f"loads of shape {given.shape}; one per link, {self.link_count}")
        return np.asarray(given / self.link_bandwidth)

    # Distances, times, cuts --------------------------------------------------------

    def hops(self, source: ArrayLike, target: ArrayLike) -> Integers:
        """Return the links between devices; int64 of the broadcast shape."""
        from perfmodel.kernels.work import kernel_work
        from perfmodel.kernels.workloads import routes as kernel

        starts, ends = self._messages(source, target)
        shape = np.broadcast_shapes(np.shape(source), np.shape(target))
        with kernel_work(routes=starts.size):
            counts: Integers = kernel.hop_counts(self._table, starts, ends)
        return counts.reshape(shape)

    @cached_property
    def diameter(self) -> int:
        """Links of the longest route."""
        return diameter(self.axes)

    @cached_property
    def average_hops(self) -> float:
        """Mean links of a route, over all ordered pairs of two devices; 0 for one device."""
        return average_hops(self.axes)

    def bisection_bandwidth(self) -> float:
        """Return the smallest bandwidth, one direction, between two halves [B/s].

        The halves are ``floor(N / 2)`` devices and the rest, the switches on the side that
        costs less; the smallest of the cuts along the axes (see ``docs/topologies.md``).
        """
        return smallest_halving(self.axes)

    def _devices(self, values: ArrayLike, what: str) -> Integers:
        return checked_devices(values, self.device_count, what)

    def _messages(self, sources: ArrayLike, targets: ArrayLike) -> tuple[Integers, Integers]:
        starts, ends, _ = self._sized_messages(sources, targets, 0.0)
        return starts, ends

    def _sized_messages(
        self, sources: ArrayLike, targets: ArrayLike, sizes: ArrayLike
    ) -> tuple[Integers, Integers, Floats]:
        columns = {
            "sources": self._devices(sources, "source"),
            "targets": self._devices(targets, "target"),
            "sizes": checked_sizes(sizes),
        }
        alike = broadcast("messages", columns, dtype=None, error=StrategyError)
        return alike["sources"], alike["targets"], alike["sizes"]


def checked_devices(values: ArrayLike, count: int, what: str) -> NDArray[np.int64]:
    """Return ids of devices as int64.

    Raises
    ------
    StrategyError
        An id that is no whole number from 0 to ``count - 1``; `what` names its part.
    """
    ids = np.asarray(values)
    if ids.size == 0:
        return ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        raise StrategyError(
            f"{what} {values!r}; ids of devices are whole numbers from 0 to {count - 1}"
        )
    bad = (ids < 0) | (ids >= count)
    if np.any(bad):
        raise StrategyError(f"{what} {ids[bad].flat[0]} does not exist; ids are 0 to {count - 1}")
    return ids.astype(np.int64)


def checked_sizes(values: ArrayLike) -> NDArray[np.float64]:
    """Return bytes as float64.

    Raises
    ------
    StrategyError
        A value that is no number, negative or not finite.
    """
    try:
        sizes = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise StrategyError(f"bytes {values!r}; sizes of messages are numbers") from None
    bad = ~(np.isfinite(sizes) & (sizes >= 0.0))
    if np.any(bad):
        raise StrategyError(f"a message of {sizes[bad].flat[0]} B; a size is finite and >= 0")
    return sizes
