"""Costs on ASTRA-sim's files: as its analytical backend has them, and by our own model.

Costs to the nanosecond as ASTRA-sim's analytical backend has them.

Sources: astra-sim af2492b, `workload/Workload.cc` (W) and `system/Sys.cc`; collectives are
those of :mod:`perfmodel.workloads.twins.astra.collective`, and what other states of the simulator
do differently stands in :mod:`perfmodel.workloads.twins.astra.versions`.

ASTRA-sim's network and system files priced by our own model, for comparing the two.

Dimensions become network levels with links at full rate and no software. Unlike in
ASTRA-sim a device's links of a dimension are shared, groups that cross dimensions pay for
all of them, and every collective takes the fastest algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.collectives import SIMULATED, TRACED
from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import FormatError, PerfModelError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.formats.chakra.writing import whole_microseconds
from perfmodel.workloads.simulation.costs import (
    LocalCosts,
    Ports,
    Ring,
    check_devices,
    check_involved,
    check_roofline,
    check_sizes,
    coordinates_slices,
    empty_local,
    node_text,
    on_host,
    states_collective,
)
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.trace import ABSENT, COMPUTE, EVERYBODY, MEM_LOAD, MEM_STORE
from perfmodel.workloads.twins.astra.collective import pair_links, simulate_collectives
from perfmodel.workloads.twins.astra.machine import Machine
from perfmodel.workloads.twins.astra.plan import (
    GROUP_DELAY,
    group_algorithm,
    logical_dimensions,
    network_table,
)
from perfmodel.workloads.twins.astra.versions import (
    ASSUMED_DIMENSIONS,
    DEFAULT_VERSION,
    AstraVersion,
    astra_version,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.trace import Trace

# The collectives that ASTRA-sim runs, in the order of traces: W issue_comm.
RUN = tuple(name for name in TRACED if name in SIMULATED)
MOST_CROSSINGS_APART = 20_000_000  # some seconds
BROADCAST = TRACED.index("broadcast")


class AstraCosts:
    """ASTRA-sim's times: whole nanoseconds.

    Parameters
    ----------
    network : AstraNetwork
    system : AstraSystem
    engine : {"congestion-unaware", "congestion-aware"}
        Backend. With congestion whole traces run message by message (`machine`), on a network
        of one dimension.
    version : str or AstraVersion
        State of the simulator: ``astra-sim``, ``astra-sim@af2492b`` ….

    Raises
    ------
    HardwareError
        The roofline is on without a peak performance, there is no such version, or the backend
        does not know the network.
    """

    tick = 1e-9
    whole = True
    streams = "one"
    ports: Ports | None = None

    def __init__(
        self,
        network: AstraNetwork,
        system: AstraSystem,
        engine: str = "congestion-unaware",
        version: str | AstraVersion = DEFAULT_VERSION,
    ) -> None:
        check_roofline(system)
        self.version = astra_version(version)
        self.network = network
        self.system = system
        self.engine = engine
        aware = engine == "congestion-aware"
        self.machine = Machine(network, system, self.version) if aware else None

    def check(self, ranks: int) -> None:
        """Raise unless the network has a device for every rank."""
        check_devices(ranks, self.network)

    def synchronised(self, trace: Trace) -> Flags:
        """Tell which collectives run; broadcasts replay their duration (W issue_comm)."""
        states = states_collective(trace)
        known = np.isin(trace.collective, [TRACED.index(name) for name in RUN])
        wrong = np.flatnonzero(states & ~known & (trace.collective != BROADCAST))
        if wrong.size:
            position = int(wrong[0])
            raise FormatError(
                f"{node_text(trace, position)} is a {TRACED[trace.collective[position]]}: "
                "unsupported collective of ASTRA-sim; it runs " + ", ".join((*RUN, "broadcast"))
            )
        check_sizes(trace, states & known)
        check_involved(trace, states & known & self._reads_involved(trace), self.network.dimensions)
        flags: Flags = states & known
        return flags

    def local(self, trace: Trace) -> LocalCosts:
        """Return roofline times, and durations where there is nothing to price.

        Notes
        -----
        W issue_replay: the duration, of Chakra files in whole microseconds, and 1 ns where it
        is 0. W issue_comp with
        ``roofline-enabled``: ``floor(num_ops / min(bandwidth · num_ops / tensor_size, peak))``;
        nodes of 0 bytes are skipped. Nodes that state no operations or bytes, at which
        ASTRA-sim stops, replay their duration.
        """
        remote = np.flatnonzero((trace.kinds == MEM_LOAD) | (trace.kinds == MEM_STORE))
        if remote.size:
            raise FormatError(
                f"{node_text(trace, int(remote[0]))} loads or stores remote memory, which "
                "ASTRA-sim refuses with NO_MEMORY_EXPANSION; price it on a hardware profile"
            )
        costs = empty_local(trace.nodes)
        if trace.whole_microseconds:
            nanoseconds = whole_microseconds(trace.duration)[0] * 1000.0
        else:
            nanoseconds = np.rint(trace.duration * 1e9)
        costs.times[:] = np.maximum(nanoseconds, 1.0)
        if not self.system.roofline_enabled:
            return costs
        stated = (
            (trace.kinds == COMPUTE)
            & ~on_host(trace)
            & (trace.num_ops >= 0)
            & (trace.tensor_size >= 0)
        )
        costs.skipped[:] = stated & (trace.tensor_size == 0)
        rows = np.flatnonzero(stated & (trace.tensor_size > 0))
        operations = trace.num_ops[rows].astype(np.float64)
        size = trace.tensor_size[rows].astype(np.float64)
        bandwidth = self.system.local_memory_bandwidth_gb_per_second * 1e9
        peak = self.system.peak_performance_teraflops * 1e12
        intensity = operations / size
        performance = np.minimum(bandwidth * intensity, peak)
        some = operations > 0  # 0 / 0 in ASTRA-sim; here the bytes alone count
        seconds = np.divide(operations, performance, out=size / bandwidth, where=some)
        costs.times[rows] = np.floor(seconds * 1e9)
        costs.priced[rows] = True
        costs.compute_bound[rows] = performance >= peak
        costs.compute_utilization[rows] = performance / peak
        costs.memory_utilization[rows] = (
            np.divide(performance, intensity, out=np.full(len(rows), bandwidth), where=some)
            / bandwidth
        )
        costs.operation_intensity[rows] = intensity
        return costs

    def _reads_involved(self, trace: Trace) -> Flags:
        """Tell where a collective's own dimensions count, if it states any."""
        if not self.version.reads(trace.involved_attributes):
            return np.zeros(trace.nodes, np.bool_)
        flags: Flags = (trace.group == EVERYBODY) | self.version.dimensions_override_group
        return flags

    def restriction(
        self, flags: tuple[bool, ...] | None, attributes: tuple[str, ...], in_group: bool
    ) -> tuple[bool, ...] | None:
        """Return the dimensions that a collective keeps to; None: its group decides.

        A state of the simulator reads one attribute, and no other. Where groups come first, a
        collective of all ranks that states nothing has four dimensions, whatever the network.
        """
        if not self.version.reads(attributes):
            flags = None
        if self.version.dimensions_override_group:
            return flags
        if in_group:
            return None
        further = self.network.dimensions - ASSUMED_DIMENSIONS
        if flags is None and further > 0:
            return (True,) * ASSUMED_DIMENSIONS + (False,) * further
        return flags

    def collective_times(
        self,
        kind: int,
        sizes: Integers,
        members: tuple[int, ...],
        involved: tuple[bool, ...] | None,
    ) -> Floats:
        """Return times of the slowest member [ns]; a group of one device needs none.

        The machine needs none either: it is asked whether it can run them.
        """
        if len(members) < 2:
            return np.zeros(len(sizes))
        name = TRACED[kind]
        everybody = len(members) == self.network.devices
        if self.machine is not None:
            for size in sizes.tolist():
                self.machine.collective(name, size, None if everybody else members)
            return np.zeros(len(sizes))
        times = simulate_collectives(
            self.network,
            self.system,
            name,
            sizes,
            self._flags(involved),
            "congestion-unaware",
            None if everybody or involved is not None else members,
            least_size=0,
            group_algorithm=self._group_algorithm(name),
        )
        return times[:, 0].astype(np.float64)

    def run_apart(
        self,
        plan: Any,
        graphs: Sequence[Any],
        ranks: Sequence[Any],
        groups: Sequence[Any],
        of_rank: Sequence[Sequence[int]],
        messages: Any,
    ) -> tuple[Floats, Floats, Integers] | None:
        """Run traces message by message without congestion; None where that is too long.

        Algorithms that the machine does not follow, and ranks that would wait for each other for
        their tags alone, are left to meetings as well.
        """
        machine = Machine(self.network, self.system, self.version, shared=False)
        machine.most_crossings = MOST_CROSSINGS_APART
        try:
            start, end, order = machine.run(plan, graphs, ranks, groups, of_rank, messages)
        except PerfModelError:
            return None
        return None if order[-1] < 0 else (start, end, order)

    def ring(
        self,
        kind: int,
        sizes: Integers,
        members: tuple[int, ...],
        involved: tuple[bool, ...] | None,
    ) -> Ring | None:
        """Return how members end that are all the members of one ring.

        Of what goes over several dimensions, and of other algorithms, nothing is said here.
        """
        from perfmodel.kernels.work import kernel_work
        from perfmodel.kernels.workloads.astra import ranks

        everybody = len(members) == self.network.devices
        order = np.argsort(members) if everybody else np.arange(len(members))
        if len(members) < 2 or involved is not None or self.machine is not None:
            return None
        system, table = self.system, network_table(self.network)
        rows = np.full((len(sizes), ranks.RING_COLUMNS), ABSENT, np.int64)
        times = np.full((len(sizes), len(members)), ABSENT, np.int64)
        algorithm = self._algorithm(kind, everybody)
        if algorithm != "ring":
            even = algorithm != "doubleBinaryTree" or len(members) == 2
            if even and not everybody:
                latency, bandwidth = pair_links(members, table)
                even = bool((latency == latency[0]).all() and (bandwidth == bandwidth[0]).all())
            return None if even else Ring(np.zeros(len(sizes), np.bool_), rows, times, order)
        with kernel_work(chunks=times.size):
            ranks.ring_rows(
                SIMULATED.index(TRACED[kind]),
                sizes,
                np.array(members, np.int64)[order],
                system.preferred_dataset_splits,
                system.active_chunks_per_dimension,
                int(self.collective_tail(members)),
                float(system.local_memory_bandwidth_gb_per_second),
                self.network.devices,
                table,
                rows,
                times,
            )
        return Ring((times == times[:, :1]).all(axis=1), rows, times, order)

    def _algorithm(self, kind: int, everybody: bool) -> str:
        """Return the algorithm of a collective that has one phase; "" if it has several."""
        name = TRACED[kind]
        if not everybody:
            return self._group_algorithm(name)
        dimensions = logical_dimensions(self.network, self.system.implementation(name))
        return dimensions[0].algorithm if len(dimensions) == 1 else ""

    def _group_algorithm(self, name: str) -> str:
        """Return the algorithm of groups that leave devices out."""
        return group_algorithm(self.system.implementation(name), self.version.group_keeps_algorithm)

    def collective_tail(self, members: tuple[int, ...]) -> float:
        """Return D, after which what has arrived is handled; 10 ns in groups (MemBus.cc:54)."""
        everybody = len(members) == self.network.devices
        return float(self.system.endpoint_delay_nanoseconds if everybody else GROUP_DELAY)

    def slices(self, involved: tuple[bool, ...], ranks: int) -> Integers:
        """Return the groups that keep to the involved dimensions; the first is innermost."""
        return coordinates_slices(self._flags(involved) or (), self.network.npus_count)

    def message_times(self, sources: Integers, destinations: Integers, sizes: Integers) -> Floats:
        """Return times of messages [ns]: latency of each hop, transfer once; not the machine's."""
        if self.machine is not None:
            return np.zeros(sizes.size)
        from perfmodel.kernels.work import kernel_work
        from perfmodel.kernels.workloads.astra import ranks as kernel

        table = network_table(self.network)
        with kernel_work(routes=sources.size):
            times = kernel.message_times(sources, destinations, sizes, table)
        wrong = np.flatnonzero(times < 0)
        if wrong.size:
            row = int(wrong[0])
            raise FormatError(
                f"message of {sizes[row]} B from rank {sources[row]} to rank "
                f"{destinations[row]}: ASTRA-sim asserts that none is empty"
            )
        return times.astype(np.float64)

    def _flags(self, involved: tuple[bool, ...] | None) -> tuple[bool, ...] | None:
        """Return one flag per dimension; more than there are do no harm (Sys.cc)."""
        return None if involved is None else involved[: self.network.dimensions]


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
