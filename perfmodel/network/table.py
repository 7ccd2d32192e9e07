"""The network of a hardware profile as the table that the collective kernels read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import HardwareError, did_you_mean

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.hwprofiles.hardware import Network

# Keys of [calibration.network] that the kernel reads; docs/collectives.md defines them.
CONSTANTS = (
    "scale_up_efficiency",
    "scale_out_efficiency",
    "all_to_all_efficiency",
    "in_network_efficiency",
    "low_latency_fraction",
    "low_latency_128_fraction",
    "local_copy_fraction",
    "base_latency",
    "spread_latency",
    "low_latency_128_latency",
    "simple_latency",
    "in_network_latency",
    "pairwise_latency",
    "pairwise_spread_latency",
    "pairwise_simple_latency",
    "shot_latency",
    "shot_efficiency",
    "scale_up_hop_overhead",
    "scale_out_hop_overhead",
    "scale_out_hop_128_overhead",
    "scale_up_step_overhead",
    "scale_out_step_overhead",
    "scale_up_pipeline_latency",
    "scale_out_pipeline_latency",
    "in_network_pipeline_latency",
    "pairwise_pipeline_latency",
    "message_latency",
    "irregular_mesh_links",
    "scale_out_low_latency_limit",
    "tuned_low_latency_fraction",
    "tuned_in_network_fraction",
)
# What NCCL's topology search finds of a link's datasheet bandwidth: 20 of 25 GB/s per NVLink
# (src/graph/topo.h), the same share on later links.
TUNED_LINK_FRACTION = 0.8
BUS_NAMES = ("pcie", "pci")
# Data bytes over bytes sent where adapters are the bottleneck: 8 of 16 with a flag for every
# word, 120 of 128 with a flag per line (NCCL src/include/device.h).
ADAPTER_LOW_LATENCY_FRACTION = 0.5
ADAPTER_LOW_LATENCY_128_FRACTION = 120.0 / 128.0

DIMENSIONS = {"ring": 1, "torus-2d": 2, "torus-3d": 3, "mesh-2d": 2}


def is_scale_out(network: Network, level: int) -> bool:
    """Tell whether a level is reached through adapters (True) or device links (False).

    The innermost level and every level whose topology is made of the devices'
    own links (ring, torus, mesh, fully connected) is scale-up; a switch or fat
    tree above the innermost level is scale-out.
    """
    return level > 0 and network.topology in ("switch", "fat-tree")


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


def network_table(hardware: Hardware) -> NDArray[np.float64]:
    """Return the network of a profile in the form that the kernel reads.

    Parameters
    ----------
    hardware : Hardware
        A profile with ``[calibration.network]``.

    Returns
    -------
    float64[levels, COLUMNS]
        One row per level, innermost first; columns are defined in
        :mod:`perfmodel.kernels.collective.table`.

    Raises
    ------
    HardwareError
        The profile lacks a constant, or a topology is unknown.
    """
    constants = {key: hardware.calibrated("network", key) for key in CONSTANTS}
    return table_of(hardware.system.network, constants, f"hardware profile '{hardware.name}'")


def table_of(
    levels: tuple[Network, ...], constants: Mapping[str, float], where: str
) -> NDArray[np.float64]:
    """Build the kernel's network table from levels and the constants named in `CONSTANTS`.

    Raises
    ------
    HardwareError
        There is no level, or a topology is unknown.
    """
    from perfmodel.kernels.collective import table as column

    if not levels:
        raise HardwareError(f"{where} has no network level; [[system.network]] needs at least one")
    table = np.zeros((len(levels), column.COLUMNS))
    for level, network in enumerate(levels):
        link = "scale_out" if is_scale_out(network, level) else "scale_up"
        usable = network.bandwidth / network.oversubscription
        row = table[level]
        row[column.SIZE] = network.size
        row[column.BANDWIDTH] = usable * constants[f"{link}_efficiency"]
        row[column.DIMENSIONS] = 1.0
        if network.topology in DIMENSIONS:
            row[column.TOPOLOGY] = column.TORUS
            row[column.DIMENSIONS] = DIMENSIONS[network.topology]
            row[column.WRAPS] = 0.0 if network.topology == "mesh-2d" else 1.0
        elif network.topology == "fully-connected":
            row[column.TOPOLOGY] = column.FULLY_CONNECTED
        elif network.topology in ("switch", "fat-tree"):
            row[column.TOPOLOGY] = column.SWITCH
        else:
            known = ("switch", "fat-tree", "fully-connected", *DIMENSIONS)
            raise HardwareError(
                f"{where}: unknown topology '{network.topology}' of network level {level}"
                f"{did_you_mean(network.topology, known)}"
            )
        hop = network.latency + constants[f"{link}_hop_overhead"]
        row[column.LOW_LATENCY_HOP] = hop
        row[column.LOW_LATENCY_128_HOP] = hop
        if link == "scale_out":
            row[column.LOW_LATENCY_128_HOP] += constants["scale_out_hop_128_overhead"]
        row[column.HOP] = network.latency + constants[f"{link}_step_overhead"]
        row[column.PIPELINE_LATENCY] = constants[f"{link}_pipeline_latency"]
        row[column.TUNED_BANDWIDTH] = TUNED_LINK_FRACTION * usable
        row[column.PAIRWISE_FRACTION] = 1.0
        row[column.LINK_CLASS] = column.DEVICE_LINK
        row[column.LOW_LATENCY_FRACTION] = constants["low_latency_fraction"]
        row[column.LOW_LATENCY_128_FRACTION] = constants["low_latency_128_fraction"]
        row[column.SHOT_FRACTION] = constants["shot_efficiency"]
        if link == "scale_out":
            if constants["low_latency_fraction"] < 1.0:  # 1: there is one protocol only
                row[column.LOW_LATENCY_FRACTION] = ADAPTER_LOW_LATENCY_FRACTION
            row[column.LINK_CLASS] = column.ADAPTER
            row[column.TUNED_BANDWIDTH] = usable
            row[column.LOW_LATENCY_128_FRACTION] = ADAPTER_LOW_LATENCY_128_FRACTION
            row[column.LOW_LATENCY_LIMIT] = constants["scale_out_low_latency_limit"]
            row[column.PAIRWISE_PIPELINE_LATENCY] = constants["scale_out_pipeline_latency"]
        else:
            row[column.PAIRWISE_PIPELINE_LATENCY] = constants["pairwise_pipeline_latency"]
            row[column.PAIRWISE_FRACTION] = constants["all_to_all_efficiency"]
            if network.name in BUS_NAMES:
                row[column.LINK_CLASS] = column.BUS
        if network.in_network_reduction:
            key = "scale_out_efficiency" if link == "scale_out" else "in_network_efficiency"
            row[column.IN_NETWORK_BANDWIDTH] = usable * constants[key]
            row[column.IN_NETWORK_PIPELINE_LATENCY] = constants["in_network_pipeline_latency"]
        row[column.MESSAGE_LATENCY] = constants["message_latency"]
        row[column.IRREGULAR_LINKS] = constants["irregular_mesh_links"]
    _set_facts(table[0], levels[0], constants)
    return table


def _set_facts(
    facts: NDArray[np.float64], innermost: Network, constants: Mapping[str, float]
) -> None:
    """Fill the columns of row 0 that hold for the whole network."""
    from perfmodel.kernels.collective import table as column

    base = constants["base_latency"]
    if facts[column.LINK_CLASS] == column.BUS:  # a bus may reorder what it writes
        facts[column.LOW_LATENCY_128_FRACTION] = 0.0
    facts[column.BASE_LATENCY] = base
    facts[column.LOW_LATENCY_128_BASE] = base + constants["low_latency_128_latency"]
    facts[column.SIMPLE_BASE] = base + constants["simple_latency"]
    facts[column.IN_NETWORK_BASE] = base + constants["in_network_latency"]
    facts[column.PAIRWISE_BASE] = base + constants["pairwise_latency"]
    facts[column.PAIRWISE_SIMPLE_BASE] = base + constants["pairwise_simple_latency"]
    facts[column.SHOT_BASE] = constants["shot_latency"]
    facts[column.SPREAD_LATENCY] = constants["spread_latency"]
    facts[column.PAIRWISE_SPREAD_LATENCY] = constants["pairwise_spread_latency"]
    facts[column.LOCAL_COPY_FRACTION] = constants["local_copy_fraction"]
    tuned = constants["tuned_low_latency_fraction"] * facts[column.TUNED_BANDWIDTH]
    facts[column.TUNED_LOW_LATENCY_BANDWIDTH] = tuned
    if innermost.in_network_reduction:
        facts[column.TUNED_IN_NETWORK_FRACTION] = constants["tuned_in_network_fraction"]
