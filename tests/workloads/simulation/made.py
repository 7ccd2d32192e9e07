"""Networks and traces that the tests of runs share."""

from __future__ import annotations

import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts

ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = (
    TRACED.index(name)
    for name in ("all_reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter")
)
MIB = 2**20
SUM = {"collective": ALL_REDUCE, "communication_size": 1024}
NETWORK = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))


def ring(members=4, **settings):
    """Ring of 50 GiB/s and 500 ns, as most reference runs have."""
    network = AstraNetwork(("Ring",), (members,), (50.0,), (500.0,))
    return AstraCosts(network, uniform_system(["ring"], **settings))


def micros(builder, name, micro, **settings):
    return builder.add(name, COMPUTE, duration=micro * 1e-6, **settings)


def reduce_of(builder, name, size=MIB, kind=ALL_REDUCE, **settings):
    return builder.add(name, COLLECTIVE, collective=kind, communication_size=size, **settings)


def built(*nodes):
    """Return a trace of (name, kind, settings)."""
    builder = TraceBuilder()
    for name, kind, node in nodes:
        builder.add(name, kind, **node)
    return builder.build()


def of_kind(kind, size=MIB, **settings):
    """Return a trace of one collective."""
    return built(("c", COLLECTIVE, {"collective": kind, "communication_size": size} | settings))


def four(trace):
    return TraceSet((trace,) * 4)


def costs(members=2, **settings):
    return ring(members, **settings)


def refused(*traces, groups=None, error=FormatError, **settings):
    """Return the one line with which a workload is refused."""
    with pytest.raises(error) as caught:
        simulate(TraceSet(tuple(traces), groups or {}), costs(**settings))
    text = str(caught.value)
    assert "\n" not in text
    return text


def pipeline(ranks=4):
    """1 ms of work on each rank in turn, 3 MB handed on: the case 'pipe' of the reference."""
    traces = []
    for rank in range(ranks):
        builder = TraceBuilder()
        parents = []
        if rank > 0:
            ends = {"source": rank - 1, "destination": rank, "tag": 0}
            parents = [builder.add("R", RECEIVE, communication_size=3_000_000, **ends)]
        work = micros(builder, "F", 1000, data=parents)
        if rank < ranks - 1:
            ends = {"source": rank, "destination": rank + 1, "tag": 0}
            builder.add("S", SEND, communication_size=3_000_000, data=[work], **ends)
        traces.append(builder.build())
    return TraceSet(tuple(traces))
