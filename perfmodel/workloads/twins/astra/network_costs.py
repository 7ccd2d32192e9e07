"""ASTRA-sim's network and system files priced by our own model, for comparing the two.

Dimensions become network levels with links at full rate and no software. Unlike in
ASTRA-sim a device's links of a dimension are shared, groups that cross dimensions pay for
all of them, and every collective takes the fastest algorithm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perfmodel.base.columns import Flags, Integers
from perfmodel.workloads.formats.astra.records import AstraNetwork, AstraSystem
from perfmodel.workloads.simulation.checks import check_devices, check_involved, check_roofline
from perfmodel.workloads.simulation.costs import coordinates_slices
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.trace import Trace

IDEAL = "astra-sanity"  # a profile of the family of ideal machines, whose facts are replaced
TOPOLOGY = {
    "Ring": "ring",
    "FullyConnected": "fully-connected",
    "Switch": "switch",
    "Mesh2D": "mesh-2d",
}
SWITCH_HOPS = 2  # Switch.cpp:28
PRECISION = "bf16"


class NetworkCosts(HardwareCosts):
    """Times [s] on a network of ASTRA-sim's files as our model has them.

    Parameters
    ----------
    network : AstraNetwork
    system : AstraSystem
        Peak performance and memory bandwidth; with its roofline off durations are replayed.
        Algorithms, chunks and delays are not used.
    communication_streams : {"per-group", "one"}
        As for `HardwareCosts`.
    """

    def __init__(
        self, network: AstraNetwork, system: AstraSystem, communication_streams: str = "per-group"
    ) -> None:
        super().__init__(
            network_hardware(network, system),
            PRECISION,
            communication_streams,
            compute="roofline" if system.roofline_enabled else "recorded",
        )
        self.network = network
        self.knows_rates = system.roofline_enabled

    def check(self, ranks: int) -> None:
        """Raise unless the network has a device for every rank."""
        check_devices(ranks, self.network)

    def synchronised(self, trace: Trace) -> Flags:
        """Tell which nodes are collectives of a stated kind; others last as recorded."""
        flags = super().synchronised(trace)
        check_involved(trace, flags, self.network.dimensions)
        return flags

    def slices(self, involved: tuple[bool, ...], ranks: int) -> Integers:
        """Return the groups that keep to the involved dimensions; the first is innermost."""
        return coordinates_slices(involved[: self.network.dimensions], self.network.npus_count)


def network_hardware(network: AstraNetwork, system: AstraSystem) -> Hardware:
    """Return an ideal machine with the network and the rates of ASTRA-sim's files.

    Parameters
    ----------
    network : AstraNetwork
    system : AstraSystem

    Returns
    -------
    Hardware
        Bandwidth of a device into a dimension is that of all its links there: two in a ring of
        more than two, n - 1 in a fully connected group, one into a switch, four in a mesh.

    Raises
    ------
    HardwareError
        The roofline is on without a peak performance.
    """
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.hwprofiles.schema import Network, System

    check_roofline(system)
    levels = []
    for dimension, (kind, members, bandwidth, latency) in enumerate(
        zip(
            network.topology,
            network.npus_count,
            network.bandwidth_gib_per_second,
            network.latency_nanoseconds,
            strict=True,
        )
    ):
        links = {"Ring": min(members - 1, 2), "FullyConnected": members - 1, "Mesh2D": 4}
        levels.append(
            Network(
                name=f"dimension-{dimension}",
                topology=TOPOLOGY[kind],
                size=members,
                bandwidth=bandwidth * 2**30 * links.get(kind, 1),
                latency=latency * 1e-9 * (SWITCH_HOPS if kind == "Switch" else 1),
            )
        )
    base = load_hardware(IDEAL)
    peak = system.peak_performance_teraflops * 1e12 or 1.0  # not used without a roofline
    memory = replace(
        base.device.memory, bandwidth=system.local_memory_bandwidth_gb_per_second * 1e9
    )
    device = replace(
        base.device, name="device of a system file", peak_flops={PRECISION: peak}, memory=memory
    )
    return replace(
        base,
        name="network file",
        title="Network and system files of ASTRA-sim, priced as ideal hardware",
        device=device,
        system=System(devices_per_node=network.npus_count[0], network=tuple(levels)),
        aliases=(),
        notes=(),
    )
