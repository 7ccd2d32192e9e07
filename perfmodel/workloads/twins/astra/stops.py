"""Where the real ASTRA-sim would stop, or lose its figures, on traces that are simulated here.

`find_stops` says what each state of it does: it reads columns and runs nothing.

An exception inside an event of a rank is caught and logged (``system/Sys.cc``, ``call_events``):
the rank never ends and the process exits with 0. An exception while files are read, when the
ranks begin (``Workload.cc``, ``fire``), or at the end of a message, whose callback comes from the
network, ends the process with SIGABRT. Asserts are compiled in, as its build script has it.
"""

from __future__ import annotations

from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.trace import TraceSet
from perfmodel.workloads.twins.astra.endings import Stop
from perfmodel.workloads.twins.astra.stops_of_files import file_stops
from perfmodel.workloads.twins.astra.stops_of_groups import group_stops
from perfmodel.workloads.twins.astra.stops_of_nodes import node_stops
from perfmodel.workloads.twins.astra.versions import AstraVersion


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
    >>> from perfmodel.workloads.convert.synthetic import repeated_collectives
    >>> from perfmodel.workloads.formats.astra_machine import uniform_system
    >>> from perfmodel.workloads.twins.astra.versions import VERSIONS
    >>> network = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
    >>> system = uniform_system(["ring"], endpoint_delay_nanoseconds=0)
    >>> traces = repeated_collectives(4, "all_reduce", 2**20, 1)
    >>> [stop.kind for stop in find_stops(traces, network, system, VERSIONS["main"])]
    ['aborts']
    """
    found = [
        *file_stops(traces, network, system, version, engine),
        *node_stops(traces, system, version),
        *group_stops(traces, network, system, version),
    ]
    return tuple(sorted(found, key=lambda stop: stop.stage))
