"""The network of a hardware profile as the collective kernels read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.compute.library import collective_library
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.schema import BUS_NAMES

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.schema import Network
    from perfmodel.kernels.collective.table import Network as KernelNetwork
    from perfmodel.kernels.stream import StreamDevice


class StepTables(NamedTuple):
    """What the kernels of a whole step read of a device: its streams and its network."""

    device: StreamDevice
    network: KernelNetwork


CONSTANTS = tuple(key for key in known("network") if not key.startswith(("exchange_", "overlap_")))
"""Keys of ``[calibration.network]`` that the kernel reads; docs/collectives.md defines them."""
DIMENSIONS = {"ring": 1, "torus-2d": 2, "torus-3d": 3, "mesh-2d": 2}


def is_scale_out(network: Network, level: int) -> bool:
    """Tell whether a level is reached through adapters (True) or device links (False).

    The innermost level and every level whose topology is made of the devices'
    own links (ring, torus, mesh, fully connected) is scale-up; a switch or fat
    tree above the innermost level is scale-out.
    """
    return level > 0 and network.topology in ("switch", "fat-tree")


def bridge_share(level: Network) -> float:
    """Return the part of a link to a processor that reaches a peer as data.

    A processor that cuts what passes its bridge into small packets sends more heads. That is a
    fact of the bus, of which constants fitted to other links say nothing.
    """
    overhead = collective_library().host_bridge_overhead
    return 1.0 / overhead if level.peer_path == "host-bridge" else 1.0


def check_places(hardware: Hardware, devices: int, what: str) -> None:
    """Raise unless a profile's network has a place for every device.

    Parameters
    ----------
    hardware : Hardware
    devices : int
    what : str
        Who needs them, in words: the beginning of the message.

    Raises
    ------
    HardwareError
    """
    sizes = [level.size for level in hardware.system.network]
    if 0 in sizes:  # a level without limit
        return
    most = math.prod(sizes)
    if devices > most:
        raise HardwareError(f"{what}, but hardware profile '{hardware.name}' has {most} devices")


def network_table(hardware: Hardware) -> KernelNetwork:
    """Return the network of a profile in the form that kernels read.

    Parameters
    ----------
    hardware : Hardware
        A profile with ``[calibration.network]``.

    Returns
    -------
    perfmodel.kernels.collective.table.Network
        One record per level, innermost first, and the facts of the whole network.

    Raises
    ------
    HardwareError
        The profile lacks a constant, or a topology is unknown.
    """
    constant = hardware.lookup("network")
    constants = {key: constant(key) for key in CONSTANTS}
    return table_of(hardware.system.network, constants, f"hardware profile '{hardware.name}'")


def table_of(
    levels: tuple[Network, ...], constants: Mapping[str, float], where: str
) -> KernelNetwork:
    """Build the kernels' network from levels and the constants named in `CONSTANTS`.

    Raises
    ------
    HardwareError
        There is no level, or a topology is unknown.
    """
    from perfmodel.kernels.collective import table as kernel

    if not levels:
        raise HardwareError(f"{where} has no network level; [[system.network]] needs at least one")
    network = kernel.blank_network(len(levels))
    set_library(network)
    for number, level in enumerate(levels):
        _set_level(network.levels[number], level, number, constants, where)
    _set_bus(network, levels)
    _set_facts(network, levels[0], constants)
    return network


def set_library(network: KernelNetwork) -> None:
    """Fill what the library of collectives carries: NCCL's, which RCCL's is made of."""
    from perfmodel.kernels.collective import table as kernel

    library = collective_library()
    for name in kernel.LIBRARY.fields or ():
        network.library[name] = getattr(library, name)


def _set_level(
    row: Any, level: Network, number: int, constants: Mapping[str, float], where: str
) -> None:
    """Fill the record of one level."""
    from perfmodel.kernels.collective import table as kernel

    library = collective_library()
    link = "scale_out" if is_scale_out(level, number) else "scale_up"
    usable = level.bandwidth / level.oversubscription
    row.domains = level.size
    row.bandwidth = usable * constants[f"{link}_efficiency"]
    bus = level.name in BUS_NAMES
    if bus:
        # Behind a switch with an uplink, neighbours do not meet at the processor.
        usable *= 1.0 if level.uplink_devices else bridge_share(level)
        row.bandwidth = usable
        _set_shared_links(row, level)
    row.dimensions = 1.0
    if level.topology in DIMENSIONS:
        row.topology = kernel.TORUS
        row.dimensions = DIMENSIONS[level.topology]
        row.wraps = 0.0 if level.topology == "mesh-2d" else 1.0
        row.closing_side = level.closing_side
    elif level.topology == "fully-connected":
        row.topology = kernel.FULLY_CONNECTED
    elif level.topology in ("switch", "fat-tree"):
        row.topology = kernel.SWITCH
    else:
        known = ("switch", "fat-tree", "fully-connected", *DIMENSIONS)
        raise HardwareError(
            f"{where}: unknown topology '{level.topology}' of network level {number}"
            f"{did_you_mean(level.topology, known)}"
        )
    # Through the host's memory a message is written over one link, then read over another.
    latency = level.latency * (2.0 if level.peer_path == "memory" else 1.0)
    row.low_latency_hop = row.low_latency_128_hop = latency + constants[f"{link}_hop_overhead"]
    row.simple_hop = latency + constants[f"{link}_step_overhead"]
    row.pipeline_latency = constants[f"{link}_pipeline_latency"]
    row.low_latency_fraction = constants["low_latency_fraction"]
    row.shot_fraction = constants["shot_efficiency"]
    if link == "scale_out":
        row.link_class = kernel.ADAPTER
        row.low_latency_128_hop += constants["scale_out_hop_128_overhead"]
        if constants["low_latency_fraction"] < 1.0:  # 1: there is one protocol only
            row.low_latency_fraction = library.low_latency_payload
        row.low_latency_128_fraction = library.low_latency_128_payload
        row.low_latency_limit = constants["scale_out_low_latency_limit"]
        row.tuned_bandwidth = usable
        row.pairwise_pipeline_latency = constants["scale_out_pipeline_latency"]
        row.pairwise_fraction = 1.0
    else:
        row.link_class = kernel.BUS if bus else kernel.DEVICE_LINK
        row.low_latency_128_fraction = constants["low_latency_128_fraction"]
        row.tuned_bandwidth = usable if bus else library.tuned_link_fraction * usable
        row.pairwise_pipeline_latency = constants["pairwise_pipeline_latency"]
        # Over a bus and where each pair has its own link, an exchange meets what a ring meets.
        own_links = row.topology == kernel.FULLY_CONNECTED
        row.pairwise_fraction = 1.0 if bus or own_links else constants["all_to_all_efficiency"]
        if bus:
            # A bus is what limits exchanges, flags and reads from peers; what devices lose
            # beside that on links of ten times its rate, they do not lose here.
            row.shot_fraction = 1.0
            if constants["low_latency_fraction"] < 1.0:
                row.low_latency_fraction = library.low_latency_payload
    if level.in_network_reduction:
        key = "scale_out_efficiency" if link == "scale_out" else "in_network_efficiency"
        row.in_network_bandwidth = usable * constants[key]
        row.in_network_pipeline_latency = constants["in_network_pipeline_latency"]
    row.message_latency = constants["message_latency"]
    row.irregular_links = constants["irregular_mesh_links"]


def _set_shared_links(row: Any, level: Network) -> None:
    """Fill what several devices of a bus share: a switch's uplink, the link between sockets.

    Without peer access also what goes to a neighbour behind the same switch passes the uplink,
    on its way to the host's memory and back.
    """
    if level.uplink_devices:
        through_memory = level.peer_path == "memory"
        row.shared_devices[0] = 1 if through_memory else level.uplink_devices
        uplink = level.uplink_bandwidth * bridge_share(level)
        row.shared_bandwidth[0] = uplink / level.uplink_devices
    if level.socket_devices:
        row.shared_devices[1] = level.socket_devices
        row.shared_bandwidth[1] = level.socket_bandwidth / level.socket_devices


def _set_bus(network: KernelNetwork, levels: tuple[Network, ...]) -> None:
    """Let the bytes of a bus and of all levels beyond it pass the device's link into the bus.

    Adapters sit on the same bus as the devices, so one link of each device carries both.
    """
    found = [number for number, level in enumerate(levels) if level.name in BUS_NAMES]
    if found:
        network.levels["bus"][found[0] :] = found[0] + 1


def _set_facts(network: KernelNetwork, innermost: Network, constants: Mapping[str, float]) -> None:
    """Fill what holds for the whole network."""
    from perfmodel.kernels.collective import table as kernel

    inner, facts = network.levels[0], network.facts
    base = constants["base_latency"]
    facts.local_copy_time = constants["local_copy_time"]
    if inner.link_class == kernel.BUS:
        inner.low_latency_128_fraction = 0.0  # a bus may reorder what it writes
        facts.local_copy_time = 0.0  # many times as fast as a bus sends, and meanwhile
    facts.low_latency_base = base
    facts.low_latency_128_base = base + constants["low_latency_128_latency"]
    facts.simple_base = base + constants["simple_latency"]
    facts.in_network_base = base + constants["in_network_latency"]
    facts.pairwise_base = base + constants["pairwise_latency"]
    facts.pairwise_simple_base = base + constants["pairwise_simple_latency"]
    facts.shot_base = constants["shot_latency"]
    if inner.link_class == kernel.BUS:
        # Beside the hop that every algorithm pays, a read from a peer is a request and a reply;
        # the constant holds those of NVLink.
        link, bus = (float(hops[0]) for hops in collective_library().ring_hop[:2])
        facts.shot_base += 2.0 * (bus - link)
    facts.spread_latency = constants["spread_latency"]
    facts.pairwise_spread_latency = constants["pairwise_spread_latency"]
    tuned = constants["tuned_low_latency_fraction"] * inner.tuned_bandwidth
    if inner.link_class == kernel.BUS and tuned > 0.0:
        tuned = inner.tuned_bandwidth  # NCCL's limits are those of NVLink, above any bus
    facts.tuned_low_latency_bandwidth = tuned
    if innermost.in_network_reduction:
        facts.tuned_in_network_fraction = constants["tuned_in_network_fraction"]
        facts.in_network_pair_bandwidth = constants["in_network_pair_bandwidth"]
        facts.in_network_tree_bandwidth = constants["in_network_tree_bandwidth"]
