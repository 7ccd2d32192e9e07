"""PyTorch's traces as execution traces: timelines drawn by hand, run again in time.

Times in the drawings are microseconds.
"""

from __future__ import annotations

import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.workloads.convert.pytorch import pytorch_trace, pytorch_traces
from perfmodel.workloads.formats.chakra.files import read_traces, write_traces
from perfmodel.workloads.formats.pytorch_host import read_host_trace
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, REMARKS, SEND
from tests.data import ASTRA, MISSING
from tests.workloads.convert.timelines import (
    ELEMENTS,
    SIZE,
    all_reduce_time,
    awaited,
    collective_keys,
    comms,
    host_of,
    kernel,
    launch,
    message,
    node,
    operator,
    ring,
    run,
    trace_of,
    two_streams,
    wait,
    wall,
    with_groups,
)
from tests.workloads.twins.astra.networks import simulate_collective

SAMPLES = ASTRA / "chakra_samples"
HOST_SAMPLE = SAMPLES / "pytorch_host_et_1.0.2-chakra.0.0.4.json"
TENSOR = [14, 15, 0, ELEMENTS, 2, "cuda:0"]


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
    assert awaited(trace, number) == {"a", "cudaLaunchKernel"}
    assert awaited(trace, names.index("c")) == {
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
    # ASTRA-sim sees whole microseconds of a file, and only of a file.
    assert wall(again) == pytest.approx(wall(traces), abs=0.5 * traces.traces[0].nodes)


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


def test_a_host_trace_alone_says_which_collectives_it_does_not_describe():
    """gloo's: only NCCL's process groups write record_param_comms."""
    described = comms(9, "allreduce", 1) | {"ctrl_deps": 8}
    host = host_of(node(4, "c10d::allreduce_"), node(6, "c10d::send"), node(8, "c10d::allreduce_"))
    whole = host_of(node(8, "c10d::allreduce_"), described)
    remarks = pytorch_trace(host).metadata[REMARKS].splitlines()
    assert [line.split(": no")[0] for line in remarks] == [
        "2 × c10d::allreduce_",
        "1 × c10d::send",
    ]
    assert REMARKS not in pytorch_trace(whole).metadata


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


@pytest.mark.skipif(not HOST_SAMPLE.is_file(), reason=MISSING)
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
