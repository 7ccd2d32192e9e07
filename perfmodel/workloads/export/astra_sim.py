"""Traces with all that the real ASTRA-sim needs to run them on the network of a profile.

A version of it decides which form they have; what it cannot say is left out, and noted.

A level of the profile becomes a dimension, a torus one ring for each of its axes. ASTRA-sim knows
the bandwidth of a link and the latency of a hop; a profile has the bandwidth of a device into a
level and the latency from device to device.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.errors import DataError, FormatError, HardwareError
from perfmodel.base.files import atomic_path
from perfmodel.base.units import format_time
from perfmodel.compute.network import check_places
from perfmodel.workloads.export.astra_traces import (
    Accepted,
    accepted,
    distinct,
    states_durations,
    uses_groups_of_some,
)
from perfmodel.workloads.formats.astra_files import write_network, write_system
from perfmodel.workloads.formats.astra_machine import (
    AstraNetwork,
    AstraSystem,
    astra_of_topology,
    digits,
    mesh_shape,
    uniform_system,
)
from perfmodel.workloads.formats.chakra.files import groups_file, write_traces
from perfmodel.workloads.links.dimensions import KIND_OF, NEAREST, Dimension, near_cube
from perfmodel.workloads.links.topology import Topology
from perfmodel.workloads.simulation.costs import node_text
from perfmodel.workloads.trace import COMPUTE, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.astra.versions import (
    ASSUMED_DIMENSIONS,
    SIMULATOR,
    AstraVersion,
    astra_version,
)

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


BINARY = "AstraSim_Analytical_Congestion_Unaware"
MEMORY = {"memory-type": "NO_MEMORY_EXPANSION"}
NO_GROUPS = "empty"  # in a path, it means to ASTRA-sim that there is no file of groups


@dataclass(frozen=True, slots=True)
class AstraExport:
    """What one version of ASTRA-sim runs.

    Attributes
    ----------
    version : AstraVersion
    traces : TraceSet
    network : AstraNetwork
    system : AstraSystem
    notes : tuple of str
        What was left out or put in another form, and what this version does with the rest.
    """

    version: AstraVersion
    traces: TraceSet
    network: AstraNetwork
    system: AstraSystem
    notes: tuple[str, ...]


def astra_export(
    traces: TraceSet,
    hardware: Hardware,
    simulator: str | AstraVersion = SIMULATOR,
    *,
    precision: str | None = None,
    roofline: bool | None = None,
) -> AstraExport:
    """Return traces, network and system as the real ASTRA-sim takes them.

    Parameters
    ----------
    traces : TraceSet
        Of `projected_traces`, with ``serial_communication``: ASTRA-sim runs one communication of
        a rank at a time, and ranks that begin with different ones wait for each other for ever.
    hardware : Hardware
        Whose network connects the ranks, and whose rates its devices have.
    simulator : str or AstraVersion
        ``astra-sim``, that is what is cloned today, or ``astra-sim@VERSION``.
    precision : str, optional
        Whose matrix rate is the peak; by default bf16, or what the device has in its place.
    roofline : bool, optional
        Price operations and bytes; by default where a computation states no duration. Else
        durations are replayed, in whole microseconds.

    Returns
    -------
    AstraExport

    Raises
    ------
    FormatError
        ASTRA-sim would stop at a node or a group.
    HardwareError
        No such version; the profile has no such network, or ASTRA-sim has none like it.

    Examples
    --------
    >>> from perfmodel import load_hardware
    >>> from perfmodel.workloads.convert.synthetic import repeated_collectives
    >>> traces = repeated_collectives(16, "all_reduce", 2**20, 2)
    >>> astra_export(traces, load_hardware("dgx-h100"), "astra-sim@af2492b").network.npus_count
    (8, 2)
    """
    version = astra_version(simulator)
    network = astra_network(hardware, traces.devices)
    if network.dimensions > ASSUMED_DIMENSIONS and not version.dimensions_override_group:
        raise FormatError(
            f"the network has {network.dimensions} dimensions; collectives of {version} use "
            f"{ASSUMED_DIMENSIONS}"
        )
    _check_groups(traces, version)
    notes = [_fewer_positions(hardware, network)]
    if version.group_keeps_algorithm and network.dimensions == 1 and uses_groups_of_some(traces):
        network, note = _without_double_free(network, version)
        notes.append(note)
    if roofline is None:
        roofline = not states_durations(traces)
    found = accepted(traces, peak=peak_rate(hardware, precision), host=version.counts_host)
    system = astra_system(hardware, network, precision=precision, roofline=roofline)
    if roofline:
        _check_first(found.traces, network, system)
    notes += [_host_note(found, version), *_rates_notes(found, system), _aware_note(network)]
    return AstraExport(version, found.traces, network, system, tuple(filter(None, notes)))


def write_astra_export(
    export: AstraExport,
    prefix: str | Path,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write the traces and groups of `write_traces` with network, system and memory.

    Nothing is put in place before everything is written.

    Parameters
    ----------
    export : AstraExport
    prefix : str or Path
        Files are PREFIX.RANK.et, PREFIX.groups.json, PREFIX.network.yml, PREFIX.system.json and
        PREFIX.memory.json.
    progress : callable, optional
        As of `write_traces`.

    Returns
    -------
    list of Path
        Of the ranks, of the groups where there are any, of network, system and memory.

    Raises
    ------
    DataError
        A file cannot be written, or ASTRA-sim would not read the groups there.
    """
    check_prefix(prefix, export.traces)
    paths = _paths(prefix, export.traces)
    beside: dict[str, Callable[[Path], None]] = {
        paths["network"]: lambda path: write_network(export.network, path),
        paths["system"]: lambda path: write_system(export.system, path),
        paths["remote-memory"]: _write_memory,
    }
    return write_traces(export.traces, prefix, progress=progress, beside=beside)


def check_prefix(prefix: str | Path, traces: TraceSet) -> None:
    """Raise where ASTRA-sim would take the path of the groups' file for none.

    Raises
    ------
    DataError
    """
    if traces.groups and NO_GROUPS in str(groups_file(prefix)):
        raise DataError(
            f"'{prefix}': ASTRA-sim reads no communicator groups from a path with '{NO_GROUPS}' "
            "in it (Workload.cc); name another"
        )


def command_lines(export: AstraExport, prefix: str | Path) -> tuple[str, str]:
    """Return the command that runs written files on the real ASTRA-sim, and ours that equals it."""
    paths = _paths(prefix, export.traces)
    real = [f"--{name}-configuration={path}" for name, path in paths.items()]
    ours = ["perfmodel", "simulate", paths["workload"]]
    ours += [*("--network", paths["network"]), *("--system", paths["system"])]
    return shlex.join([BINARY, *real]), shlex.join([*ours, "--simulator", str(export.version)])


def _paths(prefix: str | Path, traces: TraceSet) -> dict[str, str]:
    """Return the files of an export, each beside the traces, by ASTRA-sim's names of them."""
    groups = {"comm-group": str(groups_file(prefix))} if traces.groups else {}
    return {
        "workload": str(prefix),
        **groups,
        "system": f"{prefix}.system.json",
        "network": f"{prefix}.network.yml",
        "remote-memory": f"{prefix}.memory.json",
    }


def _write_memory(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(MEMORY) + "\n", encoding="utf-8")


def _check_groups(traces: TraceSet, version: AstraVersion) -> None:
    """Raise for names of groups that a version does not read."""
    for name in traces.groups if version.numbered_groups else ():
        if not name.isdecimal() or int(name) == 0:
            raise FormatError(
                f"communicator group '{name}': {version} reads names of groups as numbers from 1 "
                "on (Workload.cc, stoi)"
            )


def _check_first(traces: TraceSet, network: AstraNetwork, system: AstraSystem) -> None:
    """Raise where a rank begins with computation of 0 ns, at which the event queue stops."""
    costs = AstraCosts(network, system)
    for trace in distinct(traces).values():
        waits = np.diff(trace.data_parents.offsets) + np.diff(trace.control_parents.offsets)
        first = np.flatnonzero((waits == 0) & (trace.kinds == COMPUTE) & (trace.tensor_size != 0))
        if not first.size:
            continue
        nothing = first[costs.local(trace).times[first] == 0]
        if nothing.size:
            raise FormatError(
                f"{node_text(trace, int(nothing[0]))} comes first and takes less than a nanosecond "
                "on this hardware, at which ASTRA-sim stops (EventQueue.cpp, proceed); it should "
                "have more operations or bytes"
            )


def _fewer_positions(hardware: Hardware, network: AstraNetwork) -> str:
    """Say how ranks lie that do not fill the innermost level."""
    size = hardware.system.network[0].size
    if not size or network.devices <= size or network.devices % size == 0:
        return ""
    shape = " x ".join(map(str, network.npus_count))
    return f"network: {shape}, since ASTRA-sim's dimensions multiply to the ranks"


def _without_double_free(network: AstraNetwork, version: AstraVersion) -> tuple[AstraNetwork, str]:
    """Return a network on which groups do not make main crash at its end, and say so."""
    two = in_two_dimensions(network)
    crash = (
        f"{version} frees algorithms of groups twice on one dimension (CommunicatorGroup.cc), "
        "and may end with 134 or 139"
    )
    if two is None:
        return network, f"note: {crash} when all is printed"
    shape = " x ".join(map(str, two.npus_count))
    return two, (
        f"network: {network.topology[0]} of {network.devices} written as {shape}, with the same "
        f"links between any two ranks: {crash}"
    )


def _host_note(found: Accepted, version: AstraVersion) -> str:
    """Say how much time of the host there is, and what becomes of it."""
    least, most = float(found.host_time.min()), float(found.host_time.max())
    if most == 0:
        return ""
    time = format_time(most) if least == most else f"{format_time(least)} to {format_time(most)}"
    if version.counts_host:
        return f"host: {time} of each rank; ASTRA-sim counts it as exposed communication too"
    return (
        f"host: {time} of each rank left out, since {version} loses its statistics where a trace "
        "has nodes of the host"
    )


def _rates_notes(found: Accepted, system: AstraSystem) -> list[str]:
    """Say how computation is timed."""
    notes = []
    computes = any((trace.kinds == COMPUTE).any() for trace in distinct(found.traces).values())
    if computes and not system.roofline_enabled:
        notes.append(
            'computation: durations, in whole microseconds; with "roofline-enabled": 1 in the '
            "system file, the roofline of peak-perf and local-mem-bw"
        )
    if found.given_rates:
        notes.append("computation: nodes state as many operations as the peak does in their time")
    return notes


def _aware_note(network: AstraNetwork) -> str:
    """Say where the other backend does not take the network."""
    if network.dimensions == 1:
        return ""
    return (
        f"AstraSim_Analytical_Congestion_Aware takes one dimension, not the {network.dimensions} "
        "of this network"
    )
