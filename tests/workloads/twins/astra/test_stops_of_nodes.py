"""At which nodes the real ASTRA-sim stops, and how the process then ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.workloads.formats.astra_machine import AstraNetwork
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    MEM_LOAD,
    METADATA,
    RECEIVE,
    SEND,
    OtherPeers,
    RankTraces,
    TraceSet,
)
from perfmodel.workloads.twins.astra.versions import ALL_FIGURES, NO_FIGURES, WALL_TIME
from tests.workloads.simulation.made import ALL_GATHER, micros, pipeline, reduce_of
from tests.workloads.twins.astra.stop_cases import ROOFLINE, end, everywhere, good, only, stops

SOME = 8000  # B: takes a time
PAIR = AstraNetwork(("Ring",), (2,), (50.0,), (500.0,))
VERSIONS = ("main", "af2492b")
NOBODY = (NO_FIGURES,) * 4


@pytest.mark.parametrize("version", VERSIONS)
def test_exceptions_abort_at_the_start_and_after_messages_and_are_swallowed_else(version):
    """Sys.cc, call_events catches; Workload.cc, fire and the network's callbacks do not."""
    alone = everywhere(lambda builder, rank: micros(builder, "work", 5))
    stop = only(stops(alone, version, **ROOFLINE))
    assert (stop.kind, *end([stop], alone)) == ("aborts", (-6,), NOBODY)
    assert "rank 0, node 0 (work) does not state num_ops" in stop.what
    assert "likewise on 3 other ranks" in stop.what

    def later(builder, rank):
        first = micros(builder, "first", 5, num_ops=1, tensor_size=SOME)
        micros(builder, "second", 5, data=[first])

    traces = everywhere(later)
    stop = only(stops(traces, version, **ROOFLINE))
    assert (stop.kind, *end([stop], traces)) == ("never ends", (0,), NOBODY)

    def received(builder, rank):
        if rank == 0:
            builder.add("S", SEND, communication_size=8, destination=1, tag=0)
        elif rank == 1:
            come = builder.add("R", RECEIVE, communication_size=8, source=0, tag=0)
            micros(builder, "work", 5, data=[come])
        else:
            micros(builder, "work", 5, num_ops=1, tensor_size=SOME)

    traces = everywhere(received)
    assert end(stops(traces, version, **ROOFLINE), traces) == ((-6,), NOBODY)
    assert stops(traces, version) == ()  # replayed


def test_what_does_not_wait_for_a_stuck_rank_ends():
    def one_stuck(builder, rank):
        first = micros(builder, "first", 5, num_ops=1, tensor_size=SOME)
        settings = {} if rank == 1 else {"num_ops": 1, "tensor_size": SOME}
        second = micros(builder, "second", 5, data=[first], **settings)
        if rank in (1, 2):
            reduce_of(builder, "sum", data=[second], group="1")

    traces = everywhere(one_stuck, groups={"1": (1, 2)})
    codes, printed = end(stops(traces, **ROOFLINE), traces)
    assert codes == (0,)
    assert printed == (ALL_FIGURES, NO_FIGURES, NO_FIGURES, ALL_FIGURES)


@pytest.mark.parametrize(
    ("node", "words", "codes"),
    [
        ({"kind": COLLECTIVE, "collective": 0, "communication_size": 8, "on_cpu": 1}, "CPU'", -6),
        ({"kind": COLLECTIVE, "collective": 1, "communication_size": 8}, "Unsupported", -6),
        ({"kind": COLLECTIVE, "collective": 0}, "states no comm_size", -6),
        ({"kind": SEND, "destination": 1, "communication_size": 8}, "states no comm_tag", -6),
        ({"kind": SEND, "tag": 0, "communication_size": 8}, "names no rank", -6),
        ({"kind": SEND, "destination": 1, "tag": 0, "communication_size": 0}, "no message is", -6),
        ({"kind": SEND, "destination": 9, "tag": 0, "communication_size": 8}, "not there", -6),
        ({"kind": MEM_LOAD, "tensor_size": 8}, "NO_MEMORY_EXPANSION", 1),
        ({"kind": COLLECTIVE, "collective": ALL_GATHER, "communication_size": 0}, "0 B in no", 0),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_that_stop_it(node, words, codes, version):
    settings = {name: value for name, value in node.items() if name != "kind"}

    def build(builder, rank):
        if rank == 0 or node["kind"] == COLLECTIVE:
            builder.add("it", node["kind"], **settings)
        else:
            micros(builder, "work", 1)

    traces = everywhere(build)
    found = stops(traces, version)
    assert words in found[0].what
    assert "(it)" in found[0].what
    assert end(found, traces)[0] == (codes,)
    if codes:
        assert end(found, traces)[1] == NOBODY


def test_chunks_of_no_bytes_never_end():
    traces = everywhere(lambda b, rank: reduce_of(b, "g", 3, ALL_GATHER))
    stop = only(stops(traces, preferred_dataset_splits=4))
    assert (stop.kind, stop.exit_codes) == ("never ends", ())
    assert not stops(traces, preferred_dataset_splits=3)


def test_no_operations_are_counted_as_nonsense():
    traces = everywhere(lambda b, rank: micros(b, "move", 1, num_ops=0, tensor_size=8))
    stop = only(stops(traces, **ROOFLINE))
    assert (stop.kind, *end([stop], traces)) == ("counts nonsense", (0,), (ALL_FIGURES,) * 4)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("size", "aborts"), [(1599, True), (1600, False)])  # at 1600 GB/s
def test_time_has_to_move_on_at_the_start(version, size, aborts):
    def build(builder, rank):
        first = micros(builder, "first", 1, num_ops=1, tensor_size=size)
        micros(builder, "second", 1, num_ops=1, tensor_size=1, data=[first])

    found = stops(everywhere(build), version, **ROOFLINE)
    assert [stop.exit_codes for stop in found] == [(-6,)] * aborts


def test_main_loses_statistics_of_ranks_with_host_nodes():
    def build(builder, rank):
        good(builder)
        if rank < 2:
            micros(builder, "host", 1, on_cpu=1)

    traces = everywhere(build)
    stop = only(stops(traces))
    assert "rank 0, node 2 (host) is a node of the host" in stop.what
    assert end([stop], traces) == ((0,), (WALL_TIME, WALL_TIME, ALL_FIGURES, ALL_FIGURES))
    assert not stops(traces, "af2492b")


def test_metadata_aborts_main():
    traces = everywhere(lambda b, rank: (b.add("groups", METADATA), good(b)))
    assert end(stops(traces), traces) == ((-6,), NOBODY)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("first", "code"), [(COMPUTE, 0), (SEND, -6)])
def test_memory_is_tracked_by_attributes_of_every_node(version, first, code):
    def build(builder, rank):
        if first == COMPUTE or rank > 1:
            good(builder)
        elif rank == 0:
            builder.add("S", SEND, communication_size=8, destination=1, tag=0)
        else:
            builder.add("R", RECEIVE, communication_size=8, source=0, tag=0)

    traces = everywhere(build)
    assert not stops(traces, version, track_local_memory=True)  # not from a file
    bare = TraceSet(tuple(replace(trace, unlisted=(0, 0)) for trace in traces.traces))
    assert not stops(bare, version)
    found = stops(bare, version, track_local_memory=True)
    assert "has no attribute 'inputs'" in found[0].what
    assert end(found, bare)[0][0] == code


def test_messages_without_a_sender_keep_their_rank_waiting():
    traces = pipeline()
    assert not stops(traces)
    other = everywhere(
        lambda b, rank: (
            b.add("R", RECEIVE, communication_size=8, source=3, tag=0)
            if rank == 1
            else micros(b, "work", 1)
        )
    )
    stop = only(stops(other))
    assert "rank 1, node 0 (R) waits for 8 B with tag 0 from rank 3" in stop.what
    assert end([stop], other)[1] == (ALL_FIGURES, NO_FIGURES, ALL_FIGURES, ALL_FIGURES)


def test_messages_that_nobody_receives_stop_nobody():
    traces = everywhere(
        lambda b, rank: (
            b.add("S", SEND, communication_size=8, destination=3, tag=0)
            if rank == 1
            else micros(b, "work", 1)
        )
    )
    assert not stops(traces)


def test_peers_of_ranks_that_share_columns_are_their_own():
    def sends(builder, rank):
        builder.add("S", SEND, communication_size=8, source=0, destination=1, tag=0)
        builder.add("R", RECEIVE, communication_size=8, source=1, destination=0, tag=0)

    first = everywhere(sends, 1).traces[0]
    swap = OtherPeers(first, np.arange(2), first.destination, first.source)
    traces = TraceSet(RankTraces((first, swap)))
    assert not stops(traces, network=PAIR)
    wrong = TraceSet(RankTraces((first, replace(swap, source=first.source))))
    assert "rank 1, node 0 (S) moves data of another rank" in stops(wrong, network=PAIR)[0].what
