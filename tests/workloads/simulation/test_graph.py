"""Parents of nodes: those that are there, and those that are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import (
    COMPUTE,
    RECEIVE,
    SEND,
    OtherPeers,
    RankTraces,
    TraceBuilder,
    TraceSet,
    with_columns_of,
)
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.workloads.simulation.made import built, costs, micros, reduce_of, refused


def test_parents_that_are_not_there():
    trace = built(("work", COMPUTE, {"control": [77]}))
    assert "node 0 (work) waits for node 77" in refused(trace, trace)
    # A recording alone: who called whom.
    alone = TraceSet((trace,))
    assert simulate(alone, costs()).ticks("wall_time") == (1,)
    with pytest.raises(FormatError, match="waits for node 77"):
        simulate(alone, costs(), control_parents="obey")
    data = built(("work", COMPUTE, {"data": [77]}))
    with pytest.raises(FormatError, match="waits for node 77"):
        simulate(TraceSet((data,)), costs())


def test_control_parents_of_recordings_are_ignored():
    trace = built(
        ("call", COMPUTE, {"control": [1], "on_cpu": 1, "duration": 2e-6}),
        ("kernel", COMPUTE, {"control": [0], "duration": 3e-6}),
    )
    recorded = replace(trace, metadata={"pid": 1, "start_ts": 0, "finish_ts": 9})
    assert simulate(TraceSet((recorded,) * 2), costs()).ticks("wall_time") == (3000, 3000)
    assert "wait for each other" in refused(trace, trace)


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


def test_ranks_that_share_all_but_their_peers_run_as_whole_traces_do():
    """A pipeline over four ranks, twice: rings of messages of one shape."""
    network = AstraNetwork(("Ring",), (8,), (50.0,), (500.0,))
    costs = AstraCosts(network, uniform_system(["ring"]))

    def rank_trace(rank):
        builder = TraceBuilder()
        work = micros(builder, "work", 3)
        ahead, behind = (rank + 1) % 4 + rank // 4 * 4, (rank - 1) % 4 + rank // 4 * 4
        size = {"communication_size": 2**20}
        builder.add("send", SEND, destination=ahead, data=[work], **size)
        got = builder.add("receive", RECEIVE, source=behind, **size)
        micros(builder, "more", 5, data=[got])
        return builder.build()

    whole = [rank_trace(rank) for rank in range(8)]
    parts = [whole[0], *(with_columns_of(trace, whole[0])[0] for trace in whole[1:])]
    assert sum(isinstance(part, OtherPeers) for part in parts) == 7
    result, expected = (
        simulate(TraceSet(traces), costs) for traces in (RankTraces(parts), tuple(whole))
    )
    assert result.ticks("wall_time") == expected.ticks("wall_time")
    assert len(result.classes) == len(expected.classes)
