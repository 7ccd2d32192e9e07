"""Networks, systems and traces that the tests of stops share."""

from __future__ import annotations

from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.trace import TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.stops import find_stops
from perfmodel.workloads.twins.astra.versions import VERSIONS, expected_end
from tests.workloads.simulation.made import micros, reduce_of

RING = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
ROOFLINE = {"roofline_enabled": True, "peak_performance_teraflops": 900.0}


def everywhere(build, ranks=4, groups=None):
    """Return ranks that each do what `build(builder, rank)` adds."""
    traces = []
    for rank in range(ranks):
        builder = TraceBuilder()
        build(builder, rank)
        traces.append(builder.build())
    return TraceSet(tuple(traces), groups or {})


def good(builder, rank=0):
    """Add a computation, and an all-reduce after it."""
    work = micros(builder, "work", 5, num_ops=1000, tensor_size=8000)
    reduce_of(builder, "sum", data=[work])


def stops(
    traces,
    version="main",
    network=RING,
    engine="congestion-unaware",
    algorithm=("ring",),
    **settings,
):
    system = uniform_system(algorithm, **settings)
    return find_stops(traces, network, system, VERSIONS[version], engine)


def end(found, traces):
    """Return exit codes, and what is printed of the ranks."""
    ending = expected_end(found, traces.devices)
    return ending.exit_codes, ending.printed


def only(found):
    """Return the only stop."""
    (stop,) = found
    return stop
