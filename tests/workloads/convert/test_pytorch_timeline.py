"""Who waits for whom on the timeline of a trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.workloads.convert.pytorch import pytorch_trace, pytorch_traces
from tests.workloads.convert.timelines import (
    all_reduce_time,
    awaited,
    comms,
    event,
    host_of,
    kernel,
    launch,
    operator,
    synchronise,
    timeline,
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
        return awaited(trace, names.index("c"))

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
    assert awaited(trace, names.index("y")) == {
        "x",
        "cudaLaunchKernel",
    }  # x, not z, which ended last before y


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


def test_threads_work_and_pause_side_by_side():
    events = [
        operator("a", 0, 10, 1),
        operator("b", 5, 20, 2),
        operator("c", 90, 100, 1),
        operator("d", 90, 200, 2),
        operator("e", 150, 160, 1),
    ]
    trace = pytorch_trace(None, trace_of(events))
    begins = {name: begin for name, begin, _ in timeline(trace)}
    assert begins == pytest.approx({"a": 0, "b": 5, "c": 90, "d": 90, "e": 150})
    assert trace.lane[list(trace.names).index("a")] != trace.lane[list(trace.names).index("b")]
    assert awaited(trace, list(trace.names).index("e")) == {"c"}  # not d, which goes on


def test_two_threads_that_work_at_once_take_their_time_once():
    events = [operator("aten::mm", 0, 1000, 1), operator("aten::mm", 0, 1000, 2)]
    assert wall(pytorch_traces([(None, trace_of(events))])) == pytest.approx(1000, abs=1e-3)


def test_a_backward_pass_waits_for_the_forward_pass_by_the_arrows():
    """Thread 1 goes on while thread 2 works backward: only the arrow says that 2 waits for 1."""
    events = [
        operator("input", 0, 20),
        operator("forward", 20, 100),
        operator("print", 105, 400),
        operator("backward", 110, 300, 2),
    ]
    arrow = [
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1, "tid": 1, "ts": 20},
        {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1, "tid": 2, "ts": 110},
    ]

    def parents(events):
        trace = pytorch_trace(None, trace_of(events))
        return awaited(trace, list(trace.names).index("backward"))

    assert parents(events) == set()
    assert parents(events + arrow) == {"forward"}
    assert parents(events + arrow[:1]) == set()  # cut off by the end of the recording


def test_a_copy_within_its_call_counts_once():
    """From pageable memory: the call returns when the copy is done."""
    events = [
        operator("aten::copy_", 0, 1000),
        event("cuda_runtime", "cudaMemcpyAsync", 10, 990, correlation=7),
        kernel("Memcpy HtoD (Pageable -> Device)", 20, 980, 7),
    ]
    trace = pytorch_trace(None, trace_of(events))
    assert timeline(trace) == [
        ("aten::copy_", 0, 10),
        ("Memcpy HtoD (Pageable -> Device)", 20, 980),
        ("cudaMemcpyAsync", 980, 990),
        ("aten::copy_", 990, 1000),
    ]
    assert "Memcpy HtoD (Pageable -> Device)" in awaited(
        trace, list(trace.names).index("cudaMemcpyAsync")
    )
    events[2] = kernel("Memcpy HtoD (Pinned -> Device)", 20, 1500, 7)  # goes on behind its call
    assert timeline(pytorch_trace(None, trace_of(events)))[1:3] == [
        ("cudaMemcpyAsync", 10, 990),
        ("Memcpy HtoD (Pinned -> Device)", 20, 1500),
    ]


def test_pauses_between_kernels_of_a_stream_stay():
    events = [operator("aten::mm", 0, 5)]
    for i in range(10):
        events += [
            launch(5 + i, 6 + i, i + 1),
            kernel(f"k{i}", 20 + 10.9 * i, 30 + 10.9 * i, i + 1),
        ]
    trace = pytorch_trace(None, trace_of(events))
    assert wall(pytorch_traces([(None, trace_of(events))])) == pytest.approx(128.1, abs=0.02)
    assert sum(trace.duration[trace.on_cpu == 0]) == pytest.approx(100e-6)  # kernels' own time


@given(st.data())
def test_what_ran_alone_begins_and_ends_as_recorded(data):
    """Any threads, operators, launches, copies, streams: the replay is the recording."""
    whole = st.integers
    events, correlation = [], 0
    for thread in range(1, data.draw(whole(1, 3)) + 1):
        now = data.draw(whole(0, 50))
        for _ in range(data.draw(whole(0, 6))):
            now += data.draw(st.sampled_from([0, 1, 5, 30]))
            length = data.draw(st.sampled_from([1, 5, 40, 100]))
            events.append(operator(f"operator {len(events)}", now, now + length, thread))
            if length >= 5 and data.draw(st.booleans()):
                correlation += 1
                begin = now + data.draw(whole(0, 2))
                name = data.draw(
                    st.sampled_from(["LaunchKernel", "MemcpyAsync", "StreamSynchronize"])
                )
                end = begin + data.draw(whole(1, length - 2))
                keys = {"correlation": correlation}
                events.append(event("cuda_runtime", f"cuda{name}", begin, end, thread, **keys))
                for _ in range(0 if name == "StreamSynchronize" else data.draw(whole(1, 2))):
                    start = begin + data.draw(st.sampled_from([0, 1, 3, 50]))
                    end, stream = start + data.draw(whole(1, 60)), data.draw(whole(7, 8))
                    events.append(kernel(f"kernel {len(events)}", start, end, correlation, stream))
            now += length
    if not events:
        return
    origin = min(item["ts"] for item in events)
    ran = [row for row in timeline(pytorch_trace(None, trace_of(events))) if "kernel" in row[0]]
    recorded = [
        (item["name"], item["ts"] - origin, item["ts"] + item["dur"] - origin)
        for item in events
        if item["cat"] == "kernel"
    ]
    assert sorted(ran) == sorted(recorded)
    assert max(end for *_, end in timeline(pytorch_trace(None, trace_of(events)))) == max(
        item["ts"] + item["dur"] - origin for item in events
    )


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
    assert "long" in awaited(trace, number)
    assert wall(pytorch_traces([(None, trace_of(events))])) == pytest.approx(510, abs=1e-3)
