"""Who waits for whom on the timeline of a trace."""

from __future__ import annotations

import pytest

from perfmodel.convert.pytorch import IDLE_NAME, pytorch_trace, pytorch_traces
from tests.convert.timelines import (
    all_reduce_time,
    comms,
    event,
    host_of,
    kernel,
    launch,
    operator,
    synchronise,
    trace_of,
    two_streams,
    wait,
    wall,
)


def test_a_wait_lets_the_next_kernel_wait_though_it_was_late_anyway():
    duration = all_reduce_time()
    events = two_streams(duration)
    late = 110 + duration + 20  # kernel c began later than the all-reduce ended
    for item in events:
        if item["name"] == "c":
            item["ts"] = late
        if item.get("args", {}).get("correlation") == 4 and item["cat"] == "cuda_runtime":
            item["ts"], item["dur"] = late - 5, 5
        if item["name"] == "aten::add_":
            item["ts"], item["dur"] = late - 10, 20
    events = [item for item in events if item["name"] not in ("cudaDeviceSynchronize", "step")]
    events.append(operator("record_param_comms", 100, 105, **{"Record function id": 88}))
    host = host_of(comms(9, "allreduce", 5, rf_id=77), wait(12, 5, rf_id=88))

    def parents(host):
        trace = pytorch_trace(host, trace_of(events))
        names = list(trace.names)
        return {names[i] for i in trace.data_parents[names.index("c")]}

    assert parents(None) == {"b", "cudaLaunchKernel"}
    assert parents(host) == {"b", "cudaLaunchKernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"}


def test_recorded_waits_between_streams_count_where_there_are_any():
    # y waits for x by an event recorded at 12, and began long after it could have.
    events = [
        operator("aten::x", 0, 60),
        launch(0, 5, 1),
        kernel("x", 5, 50, 1, 7),
        event("cuda_runtime", "cudaEventRecord", 10, 12, correlation=2),
        launch(12, 14, 3),
        kernel("z", 50, 52, 3, 7),
        event("cuda_runtime", "cudaStreamWaitEvent", 20, 22, correlation=4),
        event(
            "cuda_sync",
            "Stream Wait Event",
            20,
            20,
            20,
            stream=20,
            wait_on_stream=7,
            wait_on_cuda_event_record_corr_id=2,
            correlation=4,
        ),
        launch(30, 35, 5),
        kernel("y", 55, 60, 5, 20),
    ]
    trace = pytorch_trace(None, trace_of(events))
    names = list(trace.names)
    parents = {names[i] for i in trace.data_parents[names.index("y")]}
    assert parents == {"x", "cudaLaunchKernel"}  # x, not z, which ended last before y


def test_threads_that_wait_for_each_other_take_their_time_once():
    # Thread 1 sets thread 2 to work and goes on when that is done.
    events = [
        operator("forward", 0, 100, 1),
        operator("backward", 110, 300, 2),
        operator("step", 320, 350, 1),
    ]
    trace = pytorch_trace(None, trace_of(events))
    host = sum(trace.duration)
    assert host == pytest.approx(350e-6)
    assert wall(pytorch_traces([(None, trace_of(events))])) == pytest.approx(350, abs=1e-3)


def test_threads_that_work_at_once_and_pause_at_once_pause_once():
    # Nobody works from 20 to 90; thread 2 works while thread 1 pauses; both begin again together.
    events = [
        operator("a", 0, 10, 1),
        operator("b", 5, 20, 2),
        operator("c", 90, 100, 1),
        operator("d", 90, 200, 2),
        operator("e", 150, 160, 1),
    ]
    trace = pytorch_trace(None, trace_of(events))
    assert sum(trace.duration) == pytest.approx((10 + 15 + 70 + 10 + 110 + 10) * 1e-6)
    assert list(trace.names).count(IDLE_NAME) == 1


def test_nested_operators_share_their_time():
    events = [operator("a", 0, 100), operator("b", 10, 40), operator("c", 20, 30)]
    trace = pytorch_trace(None, trace_of(events))
    spans = [
        (name, round(span * 1e6)) for name, span in zip(trace.names, trace.duration, strict=True)
    ]
    assert spans == [("a", 10), ("b", 10), ("c", 10), ("b", 10), ("a", 60)]


def test_a_call_that_waits_for_a_stream_ends_after_its_kernel():
    events = [
        operator("a", 0, 10),
        launch(0, 5, 1),
        kernel("long", 5, 500, 1),
        operator("item", 20, 510),
        synchronise(30, 502, "cudaStreamSynchronize"),
    ]
    trace = pytorch_trace(None, trace_of(events))
    names = list(trace.names)
    number = names.index("cudaStreamSynchronize")
    assert trace.duration[number] == pytest.approx(2e-6)
    assert "long" in {names[i] for i in trace.data_parents[number]}
    assert wall(pytorch_traces([(None, trace_of(events))])) == pytest.approx(510, abs=1e-3)
