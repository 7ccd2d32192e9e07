"""PyTorch's timelines, drawn by hand."""

from __future__ import annotations

from perfmodel.workloads.convert.pytorch import PAUSE_NAME
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import PAUSE, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.workloads.formats import made_pytorch
from tests.workloads.formats.made_pytorch import parse_host_trace, parse_kineto
from tests.workloads.twins.astra.networks import simulate_collective

SIZE = 2**23  # B
ELEMENTS = SIZE // 2  # of two bytes
TENSOR = [14, 15, 0, ELEMENTS, 2, "cuda:0"]


def event(category, name, start, end, thread=1, **keys):
    return made_pytorch.event(category, name, start, end - start, thread, **keys)


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
    return parse_kineto({"traceEvents": events, "distributedInfo": info})


def node(identifier, name, parent=2, values=(), types=(), rf_id=None, thread=1):
    named = {"rf_id": identifier if rf_id is None else rf_id, "tid": thread}
    return made_pytorch.node(identifier, name, parent, values, types, **named)


def host_of(*nodes):
    return parse_host_trace({"schema": "1.0.2-chakra.0.0.4", "nodes": list(nodes)})


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


def awaited(trace, number):
    """Names of the nodes for which one waits, pauses looked through."""
    names = set()
    for parent in trace.data_parents[number].tolist():
        pause = trace.names[parent] == PAUSE_NAME
        names |= awaited(trace, parent) if pause else {trace.names[parent]}
    return names


def timeline(trace):
    """What took time when the trace of one rank ran: name, begin and end [µs]; no pauses."""
    result = simulate(TraceSet((trace,)), HardwareCosts("dgx-h100", compute="recorded"))
    rows = zip(trace.names, trace.lane, result.starts(0) * 1e6, result.ends(0) * 1e6, strict=True)
    return [
        (name, round(float(start), 3), round(float(end), 3))
        for name, lane, start, end in sorted(rows, key=lambda row: row[2:])
        if end > start and lane != PAUSE
    ]


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


def with_groups(rank, ranks):
    keys = collective_keys(ranks=str(list(ranks)))
    return trace_of(two_streams(200, keys), devices=4, rank=rank)


def message(kind, peer):
    keys = collective_keys(kind, ranks="[0, 1]")
    return keys | {"Dst Rank" if kind == "send" else "Src Rank": peer}


def record(name, start, end, elements=ELEMENTS, **keys):
    """A ``record_param_comms`` that starts nothing itself."""
    found = collective_keys(name) | {"In msg nelems": elements, "Out msg nelems": elements}
    return operator("record_param_comms", start, end, **(found | keys))
