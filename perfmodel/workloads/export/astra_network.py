"""The network and the devices of a hardware profile as ASTRA-sim has them.

A level becomes a dimension, a torus one ring for each of its axes. ASTRA-sim knows the bandwidth
of a link and the latency of a hop; a profile has the bandwidth of a device into a level and the
latency from device to device.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from perfmodel.base.errors import HardwareError
from perfmodel.network.table import check_places
from perfmodel.workloads.formats.astra.records import (
    AstraNetwork,
    AstraSystem,
    mesh_shape,
    uniform_system,
)
from perfmodel.workloads.formats.astra.topology import astra_of_topology, digits
from perfmodel.workloads.links.dimensions import Dimension
from perfmodel.workloads.links.from_hardware import KIND_OF, NEAREST, near_cube
from perfmodel.workloads.links.topology import Topology

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.schema import Network

# What a collective over one dimension is made of. On a switch, direct messages would all have the
# whole port at once; in a full connection each has a link of its own.
ALGORITHM_OF = {"Ring": "ring", "FullyConnected": "direct", "Switch": "ring"}
ENDPOINT_DELAY = 10  # [ns]: of ASTRA-sim's examples; it stops at 0, and latencies hold the rest
USUAL_PRECISIONS = ("bf16", "fp16")  # whose matrix rate counts unless one is named
TERA, GIGA = 1e12, 1e9


def astra_network(hardware: Hardware, ranks: int) -> AstraNetwork:
    """Return the network that the ranks of a profile have, for ASTRA-sim.

    Ranks fill levels from the inside. Where they do not fill a level, it has the largest number
    of positions that divides them: 12 ranks of nodes of 8 are 6 x 2.

    Parameters
    ----------
    hardware : Hardware
    ranks : int
        >= 2.

    Returns
    -------
    AstraNetwork
        Links have the bandwidth that they have where the level is full. An oversubscribed level
        has what its uplinks leave each device.

    Raises
    ------
    HardwareError
        There are not so many devices, or they are no product of numbers that fit the levels.

    Examples
    --------
    >>> from perfmodel import load_hardware
    >>> astra_network(load_hardware("dgx-h100"), 32).npus_count
    (8, 4)
    """
    if ranks < 2:
        raise HardwareError(f"ASTRA-sim's networks have at least two devices, not {ranks}")
    check_places(hardware, ranks, f"{ranks} ranks")
    left = ranks
    dimensions: list[Dimension] = []
    for level in hardware.system.network:
        positions = _largest_divisor(left, level.size or left)
        if positions > 1:
            dimensions += _dimensions(level, positions)
        left //= positions
    if left > 1:
        sizes = " x ".join(str(level.size) for level in hardware.system.network)
        raise HardwareError(
            f"{ranks} ranks do not come out on levels of at most {sizes} positions of hardware "
            f"profile '{hardware.name}'; ASTRA-sim's dimensions multiply to the ranks"
        )
    return astra_of_topology(Topology(tuple(dimensions)))


def in_two_dimensions(network: AstraNetwork) -> AstraNetwork | None:
    """Return a network of one dimension as one of two whose devices meet over the same links.

    Between any two devices of a switch or a full connection lie as many hops, of the same latency
    and bandwidth, as before.

    Returns
    -------
    AstraNetwork or None
        None for a ring, and for a prime number of devices.
    """
    (name,), (count,) = network.topology, network.npus_count
    width, height = mesh_shape(count)
    if name == "Ring" or height == 1:
        return None
    return AstraNetwork(
        topology=(name, name),
        npus_count=(width, height),
        bandwidth_gib_per_second=network.bandwidth_gib_per_second * 2,
        latency_nanoseconds=network.latency_nanoseconds * 2,
    )


def astra_system(
    hardware: Hardware,
    network: AstraNetwork,
    *,
    precision: str | None = None,
    roofline: bool = False,
) -> AstraSystem:
    """Return ASTRA-sim's system layer for the devices of a profile.

    Parameters
    ----------
    hardware : Hardware
    network : AstraNetwork
        Decides on the algorithms: direct in full connections, rings elsewhere.
    precision : str, optional
        Whose matrix rate is the peak; by default bf16, or what the device has in its place.
    roofline : bool
        Whether operations and bytes are priced; else durations are replayed.

    Returns
    -------
    AstraSystem
        One chunk: several at once would each have the whole bandwidth, and several in turn can
        wait for each other on networks of several dimensions (astra-sim issue 370).

    Raises
    ------
    HardwareError
        The device has no such rate.
    """
    return uniform_system(
        (ALGORITHM_OF[name] for name in network.topology),
        preferred_dataset_splits=1,
        active_chunks_per_dimension=1,
        endpoint_delay_nanoseconds=ENDPOINT_DELAY,
        local_memory_bandwidth_gb_per_second=digits(hardware.device.memory.bandwidth / GIGA),
        peak_performance_teraflops=digits(peak_rate(hardware, precision) / TERA),
        roofline_enabled=roofline,
        other=MappingProxyType({"boost-mode": 0}),
    )


def peak_rate(hardware: Hardware, precision: str | None = None) -> float:
    """Return the matrix rate of a precision, or of the usual one [FLOP/s]."""
    rates = hardware.device.peak_flops
    usual = next((name for name in (*USUAL_PRECISIONS, *rates) if name in rates), "bf16")
    return hardware.device.peak(precision or usual)


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above `most`."""
    return next(size for size in range(min(number, most), 0, -1) if number % size == 0)


def _dimensions(level: Network, positions: int) -> list[Dimension]:
    """Return a level with so many of its positions, at least two."""
    if level.topology not in KIND_OF or level.topology == "mesh-2d":
        raise HardwareError(
            f"network level '{level.name}' is a {level.topology}; ASTRA-sim has Ring, "
            "FullyConnected and Switch"
        )
    kind, axes = KIND_OF[level.topology]
    usable = level.bandwidth / level.oversubscription
    whole = level.size in (0, positions)
    if kind in ("ring", "torus"):
        # Of a ring of more, only one of the links of two neighbours leads to the other.
        return [
            Dimension(
                "ring", (side,), usable / axes / (1 if side > 2 or whole else 2), level.latency
            )
            for side in near_cube(positions, axes)
            if side > 1
        ]
    if kind == "fully-connected":
        share = (positions - 1) / ((level.size or positions) - 1)
        return [Dimension(kind, (positions,), usable * share, level.latency)]
    return [Dimension("switch", (positions,), usable, level.latency / NEAREST["switch"])]
