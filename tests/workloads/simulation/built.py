"""Runs small enough to add up by hand."""

from __future__ import annotations

from perfmodel.workloads.trace import TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.collective import AstraNetwork

NETWORK = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))


def built(*nodes):
    """Return a trace of (name, kind, settings)."""
    builder = TraceBuilder()
    for name, kind, node in nodes:
        builder.add(name, kind, **node)
    return builder.build()


def four(trace):
    return TraceSet((trace,) * 4)
