"""Collectives that the tests of prices share."""

from __future__ import annotations

from perfmodel.base.collectives import TRACED
from perfmodel.workloads.trace import COLLECTIVE, TraceBuilder

MIB = 2**20

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = (
    TRACED.index(name) for name in ("all_reduce", "all_gather", "reduce_scatter")
)


def of_kind(kind, size=MIB, **settings):
    builder = TraceBuilder()
    builder.add("c", COLLECTIVE, collective=kind, communication_size=size, **settings)
    return builder.build()
