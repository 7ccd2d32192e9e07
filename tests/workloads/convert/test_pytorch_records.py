"""Collectives of kernels: which record belongs to which."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.convert.pytorch import pytorch_trace, pytorch_traces
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND
from tests.workloads.convert.timelines import (
    ELEMENTS,
    SIZE,
    collective_keys,
    kernel,
    launch,
    operator,
    record,
    run,
    trace_of,
    two_streams,
    wall,
)


def test_one_kernel_does_coalesced_collectives():
    """Calls between _start_coalescing and _end_coalescing: one kernel, of none of them."""
    events = [
        record("_allgather_base", 0, 5, 100),
        record("_allgather_base", 6, 9, 28),
        operator("c10d::other", 9, 10),
        launch(10, 12, 1),
        kernel("ncclDevKernel_AllGather_RING_LL", 20, 60, 1, 20),
        record("_allgather_base", 70, 75, 7),
        launch(80, 82, 2),
        kernel("ncclDevKernel_AllGather_RING_LL", 90, 95, 2, 20),
    ]
    trace = pytorch_trace(None, trace_of(events))
    found = (trace.kinds == COLLECTIVE).nonzero()[0]
    assert trace.communication_size[found].tolist() == [2 * 128, 2 * 7]
    assert trace.duration[found].tolist() == pytest.approx([40e-6, 5e-6])
    assert wall(pytorch_traces([(None, trace_of(events))])) > 0


@pytest.mark.parametrize(
    "events",
    [
        [record("allreduce", 0, 5, 100)],  # of another kind
        [record("_allgather_base", 0, 5, 100, thread=2)],
        [record("_allgather_base", 15, 18, 100)],  # later
        [record("_allgather_base", 0, 5, None)],  # without a size
    ],
)
def test_a_kernel_takes_no_records_but_its_own(events):
    events = [
        *events,
        launch(10, 12, 1),
        kernel("ncclDevKernel_AllGather_RING_LL", 20, 60, 1, 20),
    ]
    with pytest.raises(FormatError, match="size of its all_gather is not recorded"):
        pytorch_trace(None, trace_of(events))


def test_one_kernel_sends_and_receives_what_batch_isend_irecv_asked_for():
    """Rank r of 3 sends to the next and receives from the one before (a pipeline, a ring)."""

    def events(rank):
        following, before = (rank + 1) % 3, (rank - 1) % 3
        ring = {"Process Group Ranks": "[0, 1, 2]", "Group size": 3}
        send = collective_keys("send") | ring | {"Dst Rank": following}
        receive = collective_keys("recv") | ring | {"Src Rank": before}
        return [
            operator("record_param_comms", 0, 5, **send),
            operator("record_param_comms", 5, 9, **receive),
            launch(10, 12, 1),
            kernel("ncclDevKernel_SendRecv", 20, 60, 1, 20),
            kernel("gemm", 60, 70, 1, 20),
        ]

    traces = pytorch_traces([(None, trace_of(events(rank), 3, rank)) for rank in range(3)])
    for rank, trace in enumerate(traces.traces):
        place = list(trace.names).index("ncclDevKernel_SendRecv")
        assert trace.kinds[place : place + 3].tolist() == [SEND, RECEIVE, COMPUTE]
        assert trace.destination[place] == (rank + 1) % 3
        assert trace.source[place + 1] == (rank - 1) % 3
        assert set(trace.data_parents[place + 2]) >= {place, place + 1}  # waits for both
        assert trace.duration[place : place + 2].sum() == pytest.approx(40e-6)
    result = run(traces)
    assert result.sent_bytes.tolist() == [SIZE] * 3


def test_an_all_to_all_with_split_sizes_takes_that_of_its_largest_rank():
    """Experts get different numbers of tokens; a simulation knows one size per collective."""
    pairs = []
    for rank in range(4):
        keys = collective_keys("all_to_allv", "[0, 1, 2, 3]", 4)
        keys["In msg nelems"] = ELEMENTS // (rank + 1)
        events = two_streams(200, keys)
        pairs.append((None, trace_of(events, devices=4, rank=rank)))
    traces = pytorch_traces(pairs)
    for trace in traces.traces:
        assert trace.communication_size.max() == SIZE
    assert len(set(run(traces).ticks("wall_time"))) == 1


def test_an_all_reduce_whose_sizes_differ_is_not_evened_out():
    pairs = []
    for rank in range(2):
        keys = collective_keys() | {"In msg nelems": ELEMENTS + rank}
        pairs.append((None, trace_of(two_streams(200, keys), rank=rank)))
    traces = pytorch_traces(pairs)
    with pytest.raises(FormatError, match="differs between its members"):
        run(traces)


def test_ranks_that_start_different_numbers_of_all_to_alls_are_left_alone():
    keys = collective_keys("all_to_all")
    pairs = [
        (None, trace_of(two_streams(200, keys), rank=0)),
        (None, trace_of([operator("aten::mm", 0, 20)], rank=1)),
    ]
    with pytest.raises(FormatError, match="rank 1 has no such collective"):
        run(pytorch_traces(pairs))


def test_a_barrier_is_an_all_reduce_of_one_element():
    keys = {"Collective name": "barrier", "Group size": 2}
    trace = pytorch_trace(None, trace_of(two_streams(200, keys)))
    number = int((trace.kinds == COLLECTIVE).argmax())
    assert (trace.collective[number], trace.communication_size[number]) == (0, 4)
