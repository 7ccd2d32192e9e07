"""Where the real ASTRA-sim would stop, or lose its figures, on traces that are simulated here.

`find_stops` says what each state of it does: it reads columns and runs nothing.

An exception inside an event of a rank is caught and logged (``system/Sys.cc``, ``call_events``):
the rank never ends and the process exits with 0. An exception while files are read, when the
ranks begin (``Workload.cc``, ``fire``), or at the end of a message, whose callback comes from the
network, ends the process with SIGABRT. Asserts are compiled in, as its build script has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.columns import Flags, Integers
from perfmodel.base.units import counted
from perfmodel.workloads.formats.astra_machine import LARGEST_WHOLE, AstraNetwork, AstraSystem
from perfmodel.workloads.simulation.costs import node_text
from perfmodel.workloads.trace import Trace, TraceSet
from perfmodel.workloads.twins.astra.plan import WHOLE_SYSTEM
from perfmodel.workloads.twins.astra.stops_of_groups import group_stops
from perfmodel.workloads.twins.astra.stops_of_nodes import node_stops
from perfmodel.workloads.twins.astra.versions import (
    ABORTED,
    FAILED,
    LOADING,
    REFUSED,
    AstraVersion,
    Stop,
)


def find_stops(
    traces: TraceSet,
    network: AstraNetwork,
    system: AstraSystem,
    version: AstraVersion,
    engine: str = "congestion-unaware",
) -> tuple[Stop, ...]:
    """Return what keeps the real simulator from a good end, in the order in which it happens.

    Parameters
    ----------
    traces : TraceSet
    network : AstraNetwork
    system : AstraSystem
    version : AstraVersion
    engine : {"congestion-unaware", "congestion-aware"}

    Notes
    -----
    Of several nodes of one rank that it would stop at for one reason, the first is named. Not
    foreseen: that ranks wait for each other, which a simulation of them finds, and what memory
    tracking does with a tensor that is written twice.

    Examples
    --------
    >>> from perfmodel.workloads.convert.synthetic import chained_collectives
    >>> from perfmodel.workloads.formats.astra_machine import uniform_system
    >>> from perfmodel.workloads.twins.astra.versions import VERSIONS
    >>> network = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
    >>> system = uniform_system(["ring"], endpoint_delay_nanoseconds=0)
    >>> traces = chained_collectives(4, "all_reduce", 2**20, 1)
    >>> [stop.kind for stop in find_stops(traces, network, system, VERSIONS["main"])]
    ['aborts']
    """
    found = [
        *file_stops(traces, network, system, version, engine),
        *node_stops(traces, system, version),
        *group_stops(traces, network, system, version),
    ]
    return tuple(sorted(found, key=lambda stop: stop.stage))


NUMBER = re.compile(r"\s*([+-]?[0-9]+)")  # what C++'s stoi reads of a text


def file_stops(
    traces: TraceSet,
    network: AstraNetwork,
    system: AstraSystem,
    version: AstraVersion,
    engine: str,
) -> Iterator[Stop]:
    """Yield what stops the simulator before its time begins."""
    yield from _network_stops(traces, network, engine)
    yield from _system_stops(network, system)
    if version.numbered_groups:
        yield from _name_stops(traces)
    for rank, trace in each_order(traces):
        yield from _order_stops(rank, trace)


def each_order(traces: TraceSet) -> Iterator[tuple[int, Trace]]:
    """Yield the ranks and traces that differ in their nodes or what these wait for."""
    seen: set[tuple[int, ...]] = set()
    for rank, part in enumerate(traces.parts):
        trace = part if isinstance(part, Trace) else part.trace
        key = (id(trace.identifiers), id(trace.data_parents), id(trace.control_parents))
        if key not in seen:
            seen.add(key)
            yield rank, trace


def _network_stops(traces: TraceSet, network: AstraNetwork, engine: str) -> Iterator[Stop]:
    if "Mesh2D" in network.topology:  # NetworkParser.cpp, parse_topology_name
        yield _refused(
            "the network has a dimension of topology Mesh2D, which is not in its repository",
            "use Ring, FullyConnected or Switch",
            REFUSED,
        )
    if engine == "congestion-aware" and network.dimensions > 1:  # Helper.cpp:28
        yield _refused(
            f"its congestion-aware engine knows one dimension, and the network has "
            f"{network.dimensions}",
            "use the congestion-unaware engine, or a network of one dimension",
            REFUSED,
        )
    if traces.devices < network.devices:  # Workload.cc, Workload::Workload
        yield _refused(
            f"the network has {network.devices} devices, but there are files of "
            f"{counted(traces.devices, 'rank')}",
            "write a file for every device",
            FAILED,
        )


def _system_stops(network: AstraNetwork, system: AstraSystem) -> Iterator[Stop]:
    """GeneralComplexTopology.cc asserts that algorithms are not more than dimensions."""
    for collective in SIMULATED:
        names = system.implementation(collective)
        used = names[: network.dimensions]
        if len(names) > network.dimensions and not any(name in WHOLE_SYSTEM for name in used):
            yield _aborted(
                f"{collective.replace('_', '-')}-implementation has {len(names)} entries for "
                f"{counted(network.dimensions, 'dimension')}",
                "list one algorithm per dimension",
            )


def _name_stops(traces: TraceSet) -> Iterator[Stop]:
    """Workload.cc, initialize_comm_groups: stoi; CommunicatorGroup.cc, set_id: above 0."""
    for name in traces.groups:
        number = NUMBER.match(name)
        if number is None or not 0 < int(number[1]) <= LARGEST_WHOLE:
            yield _aborted(
                f"communicator group '{name}' has no number above 0 for a name",
                "number the groups, as 'perfmodel workload' does without --named-groups",
            )
            return


def _order_stops(rank: int, trace: Trace) -> Iterator[Stop]:
    """et_feeder.cpp, graph_sanity_check; dependancy_solver.cpp, resolve_dependancy_free_nodes."""
    if not trace.nodes:
        yield _aborted(f"the trace of rank {rank} has no node", "give every rank a node")
        return
    missing = missing_parent(trace)
    if missing is not None:
        position, parent = missing
        yield _aborted(
            f"{node_text(trace, position, rank)} waits for node {parent}, which is not in the file",
            "leave the dependency out",
        )
        return
    for parents in (trace.data_parents, trace.control_parents):
        if np.diff(parents.offsets).all():
            yield _aborted(
                f"every node of rank {rank} waits for another one", "let one begin by itself"
            )
            return


def missing_parent(trace: Trace) -> tuple[int, int] | None:
    """Return the position of a node whose parent is not in the trace, and that parent."""
    for parents in (trace.data_parents, trace.control_parents):
        wrong = np.flatnonzero(~_known(parents.values, trace.identifiers))
        if wrong.size:
            item = int(wrong[0])
            position = int(np.searchsorted(parents.offsets, item, side="right")) - 1
            return position, int(parents.values[item])
    return None


def _known(values: Integers, identifiers: Integers) -> Flags:
    """Tell which values are identifiers, which mostly have no gap."""
    if not values.size:
        return np.ones(0, np.bool_)
    least, most = int(identifiers.min()), int(identifiers.max())
    gapless = most - least + 1 == len(identifiers)
    known: Flags = (values >= least) & (values <= most) if gapless else np.isin(values, identifiers)
    return known


def _refused(what: str, remedy: str, code: int) -> Stop:
    return Stop(kind="refuses", what=what, remedy=remedy, stage=LOADING, exit_codes=(code,))


def _aborted(what: str, remedy: str) -> Stop:
    return Stop(kind="aborts", what=what, remedy=remedy, stage=LOADING, exit_codes=(ABORTED,))
