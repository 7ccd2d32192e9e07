"""Ranks that do the same share what is made of them."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.parity.astra.collective import (
    AstraNetwork,
    uniform_system,
)
from perfmodel.parity.astra.costs import AstraCosts
from perfmodel.simulation.run import simulate
from perfmodel.trace import TraceBuilder, TraceSet
from tests.simulation.made import micros, reduce_of


def test_identical_ranks_are_run_once_however_many_there_are():
    builder = TraceBuilder()
    reduce_of(builder, "sum", data=[micros(builder, "work", 3)])
    network = AstraNetwork(("Switch", "Switch"), (64, 64), (50.0, 25.0), (500.0, 700.0))
    costs = AstraCosts(network, uniform_system(["ring", "ring"]))
    trace = builder.build()
    result = simulate(TraceSet((trace,) * 4096), costs)
    assert (len(result.classes), result.nodes_run, result.nodes) == (1, 2, 8192)
    # Other identifiers and names change nothing.
    other = replace(trace, identifiers=trace.identifiers + 100, names=("a", "b"))
    shifted = replace(
        other, data_parents=replace(trace.data_parents, values=trace.data_parents.values + 100)
    )
    again = simulate(TraceSet((trace, shifted) * 2048), costs)
    assert len(again.classes) == 1
    assert again.ticks("wall_time")[1] == result.ticks("wall_time")[0]
