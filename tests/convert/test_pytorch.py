"""PyTorch's traces as execution traces: timelines drawn by hand, run again in time.

Times in the drawings are microseconds.
"""

from __future__ import annotations

import json

import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.convert.pytorch import IDLE_NAME, pytorch_trace, pytorch_traces
from perfmodel.formats.chakra.files import read_traces, write_traces
from perfmodel.formats.pytorch.host import parse_host_trace, read_host_trace
from perfmodel.formats.pytorch.kineto import parse_kineto
from perfmodel.parity.astra.collective import AstraNetwork, simulate_collective, uniform_system
from perfmodel.parity.astra.costs import AstraCosts
from perfmodel.simulation.run import simulate
from perfmodel.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND
from tests.data import ASTRA

SAMPLES = ASTRA / "chakra_samples"
HOST_SAMPLE = SAMPLES / "pytorch_host_et_1.0.2-chakra.0.0.4.json"
SIZE = 2**23  # B
ELEMENTS = SIZE // 2  # of two bytes
TENSOR = [14, 15, 0, ELEMENTS, 2, "cuda:0"]


def event(category, name, start, end, thread=1, **keys):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "args": keys,
    }


def operator(name, start, end, thread=1, **keys):
    return event("cpu_op", name, start, end, thread, **keys)


def launch(start, end, correlation, thread=1):
    return event("cuda_runtime", "cudaLaunchKernel", start, end, thread, correlation=correlation)


def synchronise(start, end, name="cudaDeviceSynchronize"):
    return event("cuda_runtime", name, start, end, correlation=999)


def kernel(name, start, end, correlation, stream=7, **keys):
    return event("kernel", name, start, end, stream, stream=stream, correlation=correlation, **keys)


def collective_keys(name="allreduce", ranks="[0, 1]", size=2):
    return {
        "Collective name": name,
        "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS,
        "dtype": "BFloat16",
        "Group size": size,
        "Process Group Name": "0",
        "Process Group Ranks": ranks,
    }


def trace_of(events, devices=2, rank=0):
    info = {"rank": rank, "world_size": devices}
    return parse_kineto(json.dumps({"traceEvents": events, "distributedInfo": info}))


def node(identifier, name, parent=2, values=(), types=(), rf_id=None, thread=1):
    attributes = {"rf_id": identifier if rf_id is None else rf_id, "tid": thread}
    return {
        "id": identifier,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": list(values), "shapes": [], "types": list(types)},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "", "value": attributes[key]} for key in attributes],
    }


def host_of(*nodes):
    return parse_host_trace(json.dumps({"schema": "1.0.2-chakra.0.0.4", "nodes": list(nodes)}))


def comms(identifier, name, sequence, size=2, **other):
    values = [[TENSOR], sequence, 0, 0, name, [], [], size]
    types = ["GenericList[Tensor(c10::BFloat16)]"]
    return node(identifier, "record_param_comms", 2, values, types, **other)


def wait(identifier, sequence, **other):
    return node(identifier, "record_param_comms", 2, [sequence, 0, 0, "wait", [], [], 1], **other)


def ring(devices=2, bandwidth=50.0):
    network = AstraNetwork(("Ring",), (devices,), (bandwidth,), (500.0,))
    return network, uniform_system(["ring"])


def all_reduce_time(devices=2, bandwidth=50.0):
    """Time of the all-reduce [µs]."""
    time = simulate_collective(*ring(devices, bandwidth), "all_reduce", SIZE)
    return time.slowest_nanoseconds / 1000


def run(traces, bandwidth=50.0):
    return simulate(traces, AstraCosts(*ring(traces.devices, bandwidth)))


def wall(traces, bandwidth=50.0):
    """Wall time of rank 0 [µs]."""
    return run(traces, bandwidth).wall_time[0] * 1e6


def two_streams(duration, keys=None):
    """Computation on stream 7, an all-reduce of its first part beside it on stream 20.

    a      10 ....... 110                       (stream 7)
    sum               110 ............. 110 + D (stream 20; launched at 45)
    b                 110 ... 160               (stream 7; launched at 70)
    c                                   110 + D ... 140 + D (stream 7; launched at 90)
    """
    end = 110 + duration
    return [
        operator("aten::mm", 0, 20),
        launch(5, 10, 1),
        kernel("a", 10, 110, 1),
        operator("c10d::allreduce_", 30, 60),
        operator("record_param_comms", 35, 55, **{"Record function id": 77}),
        launch(40, 45, 2),
        kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            110,
            end,
            2,
            20,
            **(collective_keys() if keys is None else keys),
        ),
        operator("aten::mm", 60, 80),
        launch(65, 70, 3),
        kernel("b", 110, 160, 3),
        operator("aten::add_", 80, 100),
        launch(85, 90, 4),
        kernel("c", end, end + 30, 4),
        synchronise(100, end + 30.5),
        operator("step", end + 30.5, end + 40),
    ]


def test_a_timeline_with_two_streams_takes_its_recorded_time_again():
    duration = all_reduce_time()
    assert duration > 100  # longer than kernel b: c waits for it
    traces = pytorch_traces([(None, trace_of(two_streams(duration)))])
    assert traces.devices == 2
    result = run(traces)
    assert result.wall_time[0] * 1e6 == pytest.approx(110 + duration + 40, abs=1e-3)
    assert result.gpu_time[0] * 1e6 == pytest.approx(100 + 50 + 30, abs=1e-3)
    assert result.communication_time[0] * 1e6 == pytest.approx(duration, abs=1e-3)


@pytest.mark.parametrize("bandwidth", [5.0, 100.0, 20000.0])
def test_on_another_network_the_collective_takes_its_time_and_the_rest_follows(bandwidth):
    traces = pytorch_traces([(None, trace_of(two_streams(all_reduce_time())))])
    # Kernel c waits for the all-reduce and for b; what the host does after c is 0.5 + 9.5.
    expected = 110 + max(all_reduce_time(bandwidth=bandwidth), 50) + 30 + 10
    assert wall(traces, bandwidth) == pytest.approx(expected, abs=1e-3)


def test_a_single_trace_runs_on_any_number_of_devices():
    traces = pytorch_traces([(None, trace_of(two_streams(all_reduce_time())))], devices=8)
    assert wall(traces) == pytest.approx(110 + all_reduce_time(8) + 40, abs=1e-3)


def test_nodes_are_computation_and_collectives_with_what_was_recorded():
    trace = pytorch_trace(None, trace_of(two_streams(200)))
    names = list(trace.names)
    number = names.index("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    assert trace.kinds[number] == COLLECTIVE
    assert trace.collective[number] == TRACED.index("all_reduce")
    assert trace.communication_size[number] == SIZE
    assert trace.duration[number] == pytest.approx(200e-6)
    assert trace.group_names == ()
    parents = {names[i] for i in trace.data_parents[number]}
    assert parents == {"a", "cudaLaunchKernel"}
    assert {names[i] for i in trace.data_parents[names.index("c")]} == {
        "b",
        "cudaLaunchKernel",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    }
    for name, on_cpu in (("a", 0), ("aten::mm", 1), ("cudaLaunchKernel", 1)):
        assert (trace.kinds[names.index(name)], trace.on_cpu[names.index(name)]) == (
            COMPUTE,
            on_cpu,
        )
    assert sum(trace.duration[trace.on_cpu == 1]) == pytest.approx(110e-6)


def test_the_host_trace_states_the_collective_where_kineto_does_not():
    host = host_of(comms(9, "allreduce", 5, rf_id=77))
    silent = trace_of(two_streams(all_reduce_time(), keys={}))
    traces = pytorch_traces([(host, silent)])
    assert wall(traces) == pytest.approx(110 + all_reduce_time() + 40, abs=1e-3)
    with pytest.raises(FormatError, match="size of its all_reduce is not recorded"):
        pytorch_traces([(None, silent)])


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


def with_groups(rank, ranks):
    keys = collective_keys(ranks=str(list(ranks)))
    return trace_of(two_streams(200, keys), devices=4, rank=rank)


def test_groups_of_several_ranks_are_numbered_and_run_beside_each_other(tmp_path):
    pairs = [(None, with_groups(rank, (rank % 2, rank % 2 + 2))) for rank in range(4)]
    traces = pytorch_traces(pairs)
    assert traces.groups == {"1": (0, 2), "2": (1, 3)}
    collectives = [int((trace.kinds == COLLECTIVE).argmax()) for trace in traces.traces]
    assert [traces.members(r, collectives[r]) for r in range(4)] == [(0, 2), (1, 3)] * 2
    assert len(set(run(traces).ticks("wall_time"))) == 1
    write_traces(traces, tmp_path / "job")
    again = read_traces(tmp_path / "job")
    assert again.groups == traces.groups
    assert wall(again) == wall(traces)


def message(kind, peer):
    keys = collective_keys(kind, ranks="[0, 1]")
    return keys | {"Dst Rank" if kind == "send" else "Src Rank": peer}


def test_messages_join_the_two_ranks():
    def events(kind, peer):
        return [
            operator(f"c10d::{kind}", 0, 20),
            launch(5, 10, 1),
            kernel("ncclDevKernel_SendRecv", 10, 40, 1, 20, **message(kind, peer)),
        ]

    pairs = [
        (None, trace_of(events("send", 1), rank=0)),
        (None, trace_of(events("recv", 0), rank=1)),
    ]
    traces = pytorch_traces(pairs)
    sends, receives = traces.traces
    assert SEND in sends.kinds
    assert RECEIVE in receives.kinds
    result = run(traces)
    assert result.sent_bytes.tolist() == [SIZE, 0]
    assert result.ticks("wall_time")[0] == result.ticks("wall_time")[1] > 20_000


def record(name, start, end, elements=ELEMENTS, **keys):
    """A ``record_param_comms`` that starts nothing itself."""
    found = collective_keys(name) | {"In msg nelems": elements, "Out msg nelems": elements}
    return operator("record_param_comms", start, end, **(found | keys))


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


def test_a_host_trace_alone_runs_its_collectives_in_order():
    host = host_of(
        node(2, "[pytorch|profiler|execution_trace|thread]", 1),
        node(3, "aten::mm"),
        comms(4, "allreduce", 1),
        node(5, "aten::mm"),
        wait(6, 1),
        comms(7, "allreduce", 2),
    )
    traces = pytorch_traces([(host, None)])
    trace = traces.traces[0]
    assert trace.names == (
        "aten::mm",
        "record_param_comms",
        "all_reduce 0",
        "aten::mm",
        "record_param_comms",
        "record_param_comms",
        "all_reduce 0",
    )
    parents = [trace.data_parents[i].tolist() for i in range(7)]
    assert parents == [[], [0], [1], [1], [3, 2], [4], [5, 2]]
    assert wall(traces) == pytest.approx(2 * all_reduce_time(), abs=0.02)


def test_messages_of_host_traces_alone_do_not_wait_for_each_other():
    """Both ranks of a batch receive first: a chain would never end."""

    def host(peer):
        nodes = []
        for number, kind in ((4, "recv"), (5, "send")):
            values = [[TENSOR], number, ["0", ""], peer, kind, [], [], 0, 1, 2]
            types = ["GenericList[Tensor(c10::BFloat16)]"]
            nodes.append(node(number, "record_param_comms", 2, values, types))
        return host_of(*nodes)

    traces = pytorch_traces([(host(1), None), (host(0), None)])
    for trace in traces.traces:
        assert trace.kinds.tolist() == [COMPUTE, RECEIVE, COMPUTE, SEND]
        assert [trace.data_parents[i].tolist() for i in range(4)] == [[], [0], [0], [2]]
    assert run(traces).sent_bytes.tolist() == [SIZE, SIZE]


@pytest.mark.skipif(not HOST_SAMPLE.is_file(), reason="sample traces are not beside the repo")
def test_the_sample_host_trace_runs_ten_all_gathers_one_after_another():
    traces = pytorch_traces([(read_host_trace(HOST_SAMPLE), None)])
    one = simulate_collective(*ring(), "all_gather", 4).slowest_nanoseconds
    result = run(traces)
    assert traces.devices == 2
    assert result.ticks("communication_time") == (10 * one, 10 * one)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: pytorch_traces([]), "no trace is given"),
        (lambda: pytorch_trace(None), "neither a host trace nor a Kineto trace"),
        (lambda: pytorch_traces([(None, with_groups(0, (0, 2)))]), "cannot stand for 4 ranks"),
        (lambda: pytorch_traces([(None, with_groups(1, (0, 2)))] * 2), "trace 0 is that of rank 1"),
        (lambda: pytorch_traces([(None, None)] * 2, 3), "2 traces for 3 ranks"),
        (
            lambda: pytorch_traces([(None, with_groups(rank, (0, 7))) for rank in range(2)]),
            "a process group has rank 7 of 2 traces",
        ),
        (
            lambda: pytorch_trace(host_of(comms(4, "allreduce", 1, size=2)), None, devices=4),
            "ranks of process group '0' of 2 are not recorded",
        ),
        (
            lambda: pytorch_trace(
                None,
                trace_of([kernel("ncclDevKernel_SendRecv", 0, 1, 1, **collective_keys("send"))]),
            ),
            "the other rank of this send is not recorded",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(call, text):
    with pytest.raises(FormatError, match=text) as error:
        call()
    assert "\n" not in str(error.value)
