"""Traces that cannot run, and how they are refused."""

from __future__ import annotations

import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import (
    COLLECTIVE,
    TraceBuilder,
    TraceSet,
)
from perfmodel.workloads.twins.astra.collective import AstraNetwork, uniform_system
from perfmodel.workloads.twins.astra.costs import AstraCosts

ALL_REDUCE, ALL_GATHER, BARRIER = (
    TRACED.index(name) for name in ("all_reduce", "all_gather", "barrier")
)


def costs(members=2, **settings):
    network = AstraNetwork(("Ring",), (members,), (50.0,), (500.0,))
    return AstraCosts(network, uniform_system(["ring"], **settings))


def reduce_of(builder, name, size=1024, kind=ALL_REDUCE, **settings):
    return builder.add(name, COLLECTIVE, collective=kind, communication_size=size, **settings)


def built(*nodes):
    """Return a trace of (name, kind, settings)."""
    builder = TraceBuilder()
    for name, kind, node in nodes:
        builder.add(name, kind, **node)
    return builder.build()


SUM = {"collective": ALL_REDUCE, "communication_size": 1024}


def refused(*traces, groups=None, error=FormatError, **settings):
    """Return the one line with which a workload is refused."""
    with pytest.raises(error) as caught:
        simulate(TraceSet(tuple(traces), groups or {}), costs(**settings))
    text = str(caught.value)
    assert "\n" not in text
    return text
