"""Collectives on a network of ASTRA-sim 1.0 as our own network model times them.

What the file says of a dimension becomes a level of an ideal machine: links at full rate,
and no software beyond the delays that network and system state.

bandwidth of a device into a dimension
    All links that can be used at once: of a ring an even number, half of them in either
    direction; of a full connection the same number to every peer; of a switch all. Where
    memory takes time, at most its bandwidth / accesses.
latency of a hop
    Link (a switch: up and down, and its router), a network interface at either end, the
    endpoint delay; on a way of several hops all of it on each of them. Not the memory's: it
    takes a message in while the rest of it is on its way.

Devices of different dimensions are joined only through devices that share all other
coordinates, so direct exchange between all members serves groups on one level. Across
several there are the algorithms of the network model that go from level to level, and

dimension_by_dimension
    in k equal pieces, a collective of its own on each dimension: an all-reduce scatters on
    the way out and gathers on the way back, as in ASTRA-sim. A dimension has one piece at a
    time, first come first served, and different ones are on different dimensions. The best
    of k = 1, 2, 4 ... 64, from the inner dimensions to the outer ones or the other way.

Neighbouring rings of equal length are also looked at as a torus, whose dimensions work at
once, at the bandwidth and latency of its slowest. Of all algorithms and both views, the
fastest counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.base.errors import HardwareError
from perfmodel.workloads.formats.astra_text_machine import NativeNetwork, NativeSystem

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.schema import Network


IDEAL = "astra-sanity"  # a profile of the family of ideal machines, whose network is replaced
TOPOLOGY = {"Ring": "ring", "FullyConnected": "fully-connected", "Switch": "switch"}
TORUS = {2: "torus-2d", 3: "torus-3d"}
SWITCH_HOPS = 2  # up and down
MOST_DEVICES = 2**31
# Left out: kernels of serving engines, which `direct` stands for, reducing switches, which the
# files cannot state, and NCCL's trees, which stand for recursive doubling of any number.
OTHER_MACHINES = ("one_shot", "two_shot", "in_network", "in_network_tree", "aggregated_trees")
ONE_LEVEL = ("direct",)
DIMENSION_BY_DIMENSION = "dimension_by_dimension"
PIECES = 2.0 ** np.arange(7)
FINEST = 2.0**40  # units of the longest step of a piece, as pieces are scheduled in whole numbers
ALL_TO_ALL = "all_to_all"
POWERS_OF_TWO = ("halving_doubling", "recursive_doubling")


@dataclass(frozen=True, slots=True)
class PhysicalCollectives:
    """Times of collectives, each alone in the network; one entry per collective.

    Attributes
    ----------
    time : float64[collectives]
        [s]; 0 where there is nothing to send.
    algorithm : tuple of str
        The fastest, as in `perfmodel.base.collectives.ALGORITHMS` or `DIMENSION_BY_DIMENSION`;
        "" where nothing is sent.
    """

    time: Floats
    algorithm: tuple[str, ...]


class PhysicalNetwork:
    """A network of ASTRA-sim 1.0 as our model has it.

    Parameters
    ----------
    network : NativeNetwork
    system : NativeSystem
        Only its endpoint delay counts; algorithms, chunks and schedules are ASTRA-sim's.

    Raises
    ------
    HardwareError
        The network is beyond what can be counted.

    Examples
    --------
    Two links at 25 GiB/s, 2 · 3/4 of 1 GiB, 2 · 3 hops of 510 ns; a ring turns both ways.

    >>> ring = NativeNetwork(("Ring",), (4,), (2,), (25,), (500,), (0,), (0,), (500,), (370,), (0,))
    >>> system = NativeSystem(("ring",), ("ring",), ("ring",), ("ring",))
    >>> found = PhysicalNetwork(ring, system).times("all_reduce", np.array([2.0**30]), [(4, 1)])
    >>> round(float(found.time[0]) * 1e6, 2), found.algorithm
    (30003.06, ('bidirectional_ring',))
    """

    def __init__(self, network: NativeNetwork, system: NativeSystem) -> None:
        if network.devices > MOST_DEVICES:
            raise HardwareError(f"{network.devices} devices; it should be {MOST_DEVICES} at most")
        self._views = views(network, system)

    def times(
        self, kind: str, sizes: Floats, dimensions: Sequence[tuple[int, int]]
    ) -> PhysicalCollectives:
        """Return times of a collective among groups of one shape, at several sizes.

        Parameters
        ----------
        kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
        sizes : float64[collectives]
            As `perfmodel.compute.collectives` counts them (all-gather: the whole output) [B].
        dimensions : sequence of (int, int)
            On each dimension of a group, innermost first: members > 1, and the difference of
            neighbours' numbers. The members of all together are evenly spaced.

        Raises
        ------
        HardwareError
            A collective would last for ever.
        """
        members = math.prod(count for count, _ in dimensions)
        sizes, where = np.unique(sizes, return_inverse=True)
        best, names = self._fastest(kind, sizes, members, dimensions[0][1])
        if len(dimensions) > 1:
            orders = (dimensions, dimensions[::-1])
            time = np.minimum(*(self._by_dimension(kind, sizes, order) for order in orders))
            names[time < best] = DIMENSION_BY_DIMENSION
            best = np.minimum(best, time)
        if not np.isfinite(best).all():
            raise HardwareError(
                f"{kind} among {members} devices lasts for ever; bandwidth or latency of the "
                "network is out of range"
            )
        names[best == 0.0] = ""
        return PhysicalCollectives(best[where], tuple(map(str, names[where])))

    def _fastest(
        self, kind: str, sizes: Floats, members: int, stride: int
    ) -> tuple[Floats, NDArray[np.str_]]:
        """Return the fastest of the network model's algorithms, and their names."""
        from perfmodel.compute.collectives import collective_times

        best = np.full(sizes.shape, np.inf)
        names = np.full(sizes.shape, "", dtype="U32")
        for hardware in self._views:
            for priced, algorithm in _algorithms(hardware, kind, members, stride):
                times = collective_times(hardware, priced, sizes, members, stride, algorithm)
                better = times.reshape(sizes.shape) < best
                best[better] = times.reshape(sizes.shape)[better]
                names[better] = algorithm
        return best, names

    def _by_dimension(
        self, kind: str, sizes: Floats, dimensions: Sequence[tuple[int, int]]
    ) -> Floats:
        """Return times of collectives on one dimension after another, in pieces."""
        from perfmodel.kernels.work import kernel_work
        from perfmodel.kernels.workloads.astra import phase as kernel

        steps = _steps(kind, len(dimensions))
        parts = sizes / PIECES[:, None]
        before = np.cumprod([1.0, *(members for members, _ in dimensions)])
        times = np.empty((len(steps), *parts.shape))
        for place, (step, dimension) in enumerate(steps):
            amount = parts if kind == ALL_TO_ALL else parts / before[dimension]
            times[place] = self._fastest(step, amount, *dimensions[dimension])[0]
        queue = np.array([dimension for _, dimension in steps])
        best = np.full(sizes.shape, np.inf)
        for row, pieces in enumerate(PIECES.astype(np.int64)):
            for column in range(len(sizes)):
                longest = times[:, row, column].max()
                if not 0.0 < longest < np.inf:
                    continue
                units = np.round(times[:, row, column] / longest * FINEST).astype(np.int64)
                with kernel_work(chunks=int(pieces) * len(steps)):
                    time = kernel.pipeline_time(units, queue, int(pieces), 1) / FINEST * longest
                best[column] = min(best[column], time)
        return best


def _steps(kind: str, dimensions: int) -> list[tuple[str, int]]:
    """Return what a piece does on which dimension, in order."""
    outwards = range(dimensions)
    if kind == "all_reduce":
        out = [("reduce_scatter", dimension) for dimension in outwards[:-1]]
        back = [("all_gather", dimension) for dimension in outwards[-2::-1]]
        return [*out, (kind, dimensions - 1), *back]
    order = reversed(outwards) if kind == "all_gather" else outwards
    return [(kind, dimension) for dimension in order]


def views(network: NativeNetwork, system: NativeSystem) -> list[Hardware]:
    """Return a network as ideal machines: dimension by dimension, and with rings as tori."""
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.hwprofiles.schema import System

    used = [d for d in range(network.dimensions) if network.npus_count[d] > 1] or [0]
    levels = [_level(network, system, dimension) for dimension in used]
    found = [levels]
    tori = _with_tori(network, levels, used)
    if len(tori) < len(levels):
        found.append(tori)
    base = load_hardware(IDEAL)
    return [
        replace(
            base,
            name="network file",
            title="Network file of ASTRA-sim 1.0 as ideal hardware",
            system=System(devices_per_node=view[0].size, network=tuple(view)),
            aliases=(),
            notes=(),
        )
        for view in found
    ]


def _level(network: NativeNetwork, system: NativeSystem, dimension: int) -> Network:
    """Return a dimension as a network level."""
    from perfmodel.hwprofiles.schema import Network

    kind, members = network.topology[dimension], network.npus_count[dimension]
    links = max(network.links(dimension), 1)
    if kind == "FullyConnected":
        links *= members - 1
    bandwidth = network.link_bandwidth_gib_per_second[dimension] * 2.0**30 * links
    latency = network.link_latency_nanoseconds[dimension]
    if kind == "Switch":
        latency = SWITCH_HOPS * latency + network.router_latency_nanoseconds[dimension]
    latency += 2 * network.nic_latency_nanoseconds[dimension]
    accesses = network.memory_scale[dimension]
    if accesses > 0:
        memory = network.memory_bandwidth_gb_per_second[dimension] * 1e9
        bandwidth = min(bandwidth, memory / accesses)
    latency += system.endpoint_delay_nanoseconds
    return Network(f"dimension-{dimension}", TOPOLOGY[kind], members, bandwidth, latency * 1e-9)


def _with_tori(network: NativeNetwork, levels: list[Network], used: list[int]) -> list[Network]:
    """Return levels with up to three neighbouring rings of equal length as one torus."""

    def alike(place: int) -> tuple[int, int]:
        dimension = used[place]
        is_ring = network.topology[dimension] == "Ring"
        return (network.npus_count[dimension], -1) if is_ring else (0, place)

    merged = []
    for _, run in itertools.groupby(range(len(used)), key=alike):
        places = list(run)
        for first in range(0, len(places), max(TORUS)):
            rings = [levels[place] for place in places[first : first + max(TORUS)]]
            merged.append(rings[0] if len(rings) == 1 else _torus(rings))
    return merged


def _torus(rings: list[Network]) -> Network:
    """Return rings as a torus at the bandwidth and latency of the slowest."""
    return replace(
        rings[0],
        topology=TORUS[len(rings)],
        size=rings[0].size ** len(rings),
        bandwidth=len(rings) * min(ring.bandwidth for ring in rings),
        latency=max(ring.latency for ring in rings),
    )


def _algorithms(
    hardware: Hardware, kind: str, members: int, stride: int
) -> Iterator[tuple[str, str]]:
    """Yield the algorithms that groups of a shape can use, each with what prices it."""
    from perfmodel.compute.collectives import algorithms_of, members_per_domain

    inside = [1, *members_per_domain(hardware, members, stride)[:, 0].tolist()]
    levels = sum(above > below for below, above in itertools.pairwise(inside))
    for algorithm in algorithms_of(kind):
        if algorithm in OTHER_MACHINES or (algorithm in ONE_LEVEL and levels > 1):
            continue
        if algorithm in POWERS_OF_TWO and members & (members - 1):
            continue
        yield kind, algorithm
    if kind == ALL_TO_ALL and levels == 1:
        # The same messages, but all at once: our exchanges have latencies as libraries do.
        yield "reduce_scatter", "direct"
