"""Traces with all that the real ASTRA-sim needs to run them on the network of a profile.

A version of it decides which form they have; what it cannot say is left out, and noted.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import atomic_path
from perfmodel.base.units import format_time
from perfmodel.workloads.export.astra_network import (
    astra_network,
    astra_system,
    in_two_dimensions,
    peak_rate,
)
from perfmodel.workloads.export.astra_traces import (
    Accepted,
    accepted,
    distinct,
    states_durations,
    uses_groups_of_some,
)
from perfmodel.workloads.formats.astra.network import write_network, write_system
from perfmodel.workloads.formats.astra.records import AstraNetwork, AstraSystem
from perfmodel.workloads.formats.chakra.files import groups_file, write_traces
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


@dataclass(frozen=True, slots=True)
class AstraPaths:
    """Files of an export; each is beside the traces.

    Attributes
    ----------
    prefix, network, system, memory : str
    groups : str
        Empty where there are none.
    """

    prefix: str
    network: str
    system: str
    memory: str
    groups: str

    @classmethod
    def of(cls, prefix: str | Path, traces: TraceSet) -> AstraPaths:
        """Return the files of a prefix."""
        return cls(
            prefix=str(prefix),
            network=f"{prefix}.network.yml",
            system=f"{prefix}.system.json",
            memory=f"{prefix}.memory.json",
            groups=str(groups_file(prefix)) if traces.groups else "",
        )


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
    >>> from perfmodel.workloads.convert.synthetic import chained_collectives
    >>> traces = chained_collectives(16, "all_reduce", 2**20, 2)
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
    paths = AstraPaths.of(prefix, export.traces)
    beside: dict[str, Callable[[Path], None]] = {
        paths.network: lambda path: write_network(export.network, path),
        paths.system: lambda path: write_system(export.system, path),
        paths.memory: _write_memory,
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
    paths = AstraPaths.of(prefix, export.traces)
    given = {
        "workload": paths.prefix,
        "comm-group": paths.groups,
        "system": paths.system,
        "network": paths.network,
        "remote-memory": paths.memory,
    }
    real = [f"--{name}-configuration={path}" for name, path in given.items() if path]
    ours = [*("--network", paths.network), *("--system", paths.system)]
    ours += ["--simulator", str(export.version)]
    return shlex.join([BINARY, *real]), shlex.join(["perfmodel", "simulate", paths.prefix, *ours])


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
