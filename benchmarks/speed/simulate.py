"""Speed of running execution traces: nodes per second on one core.

    python benchmarks/speed/simulate.py [--json]

Training steps of transformer layers on 64 ranks (8 data-parallel × 4 tensor-parallel × 2
pipeline stages), from traces in memory. The rate is that of the whole call with every rank run by
itself, setting up included; beside it stand the jitted simulation alone, and the whole call
where ranks that behave alike are run once. Compiling is excluded: a small run comes first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation import run
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Trace,
    TraceBuilder,
    TraceSet,
)
from perfmodel.workloads.twins.astra.costs import AstraCosts

DATA, TENSOR, STAGES = 8, 4, 2
RANKS = DATA * TENSOR * STAGES
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = 0, 2, 7


def step(data: int, tensor: int, stage: int, layers: int) -> Trace:
    """Return one rank's step: forward, backward, gradients summed up as they come."""
    builder = TraceBuilder()
    within = f"tensor {data} {stage}"
    across = f"data {tensor} {stage}"
    rank = tensor + TENSOR * (data + DATA * stage)
    pair = TENSOR * DATA * (1 - 2 * stage)
    size = 2**24

    def compute(name: str, after: int, weights: int) -> int:
        tensors = [(f"{name} in", size)]
        return builder.add(
            name,
            COMPUTE,
            num_ops=2**38,
            tensor_size=2**28,
            data=[after] if after >= 0 else [],
            inputs=tensors,
            outputs=[(f"{name} out {weights}", size)],
        )

    def collective(kind: int, group: str, after: int) -> int:
        return builder.add(
            "communication",
            COLLECTIVE,
            collective=kind,
            communication_size=size // TENSOR,
            group=group,
            data=[after],
        )

    def message(kind: int, after: int, tag: int) -> int:
        sides = {"source": rank, "destination": rank + pair}
        if kind == RECEIVE:
            sides = {"source": rank + pair, "destination": rank}
        parents = [after] if after >= 0 else []
        return builder.add("message", kind, communication_size=size, tag=tag, data=parents, **sides)

    last = message(RECEIVE, -1, 0) if stage else -1
    for layer in range(layers):
        for part in ("attention", "mlp"):
            last = compute(f"forward {part} {layer}", last, 0)
            last = collective(ALL_GATHER, within, last)
            last = compute(f"forward {part} {layer} out", last, 0)
            last = collective(REDUCE_SCATTER, within, last)
    if stage:
        last = compute("loss", last, 0)
    else:
        message(SEND, last, 0)
        last = message(RECEIVE, last, 1)
    for layer in range(layers):
        for part in ("mlp", "attention"):
            last = compute(f"backward {part} {layer}", last, 0)
            last = collective(ALL_GATHER, within, last)
            weights = compute(f"gradient {part} {layer}", last, 1)
            collective(ALL_REDUCE, across, weights)
            last = compute(f"backward {part} {layer} in", last, 0)
            last = collective(REDUCE_SCATTER, within, last)
    if stage:
        message(SEND, last, 1)
    return builder.build()


def workload(layers: int) -> TraceSet:
    """Return the steps of all ranks."""
    groups = {}
    for stage in range(STAGES):
        first = TENSOR * DATA * stage
        for data in range(DATA):
            start = first + TENSOR * data
            groups[f"tensor {data} {stage}"] = tuple(range(start, start + TENSOR))
        for tensor in range(TENSOR):
            groups[f"data {tensor} {stage}"] = tuple(
                first + tensor + TENSOR * data for data in range(DATA)
            )
    traces = [
        step(data, tensor, stage, layers)
        for stage in range(STAGES)
        for data in range(DATA)
        for tensor in range(TENSOR)
    ]
    return TraceSet(tuple(traces), groups)


def kernel_seconds(traces: TraceSet, costs: AstraCosts) -> tuple[float, float, int]:
    """Return seconds of the jitted run and of the whole call, and the nodes run."""
    from perfmodel.kernels.workloads.trace import schedule as trace_schedule

    original, spent = trace_schedule.run_traces, []

    def timed(**arguments):
        began = time.perf_counter()
        result = original(**arguments)
        spent.append(time.perf_counter() - began)
        return result

    trace_schedule.run_traces = timed
    try:
        began = time.perf_counter()
        result = run.simulate(traces, costs, symmetry=False)
        whole = time.perf_counter() - began
    finally:
        trace_schedule.run_traces = original
    return spent[0], whole, result.nodes_run


def rates(layers: int = 800, repeats: int = 5) -> dict[str, float]:
    """Return nodes per second: medians of some runs.

    Returns
    -------
    dict
        ``nodes``; ``every rank``, ``jitted part`` and ``distinct ranks`` [nodes/s].
    """
    network = AstraNetwork(
        ("Ring", "Switch", "Switch"),
        (TENSOR, DATA, STAGES),
        (400.0, 50.0, 25.0),
        (50.0, 500.0, 500.0),
    )
    system = uniform_system(
        ["ring", "ring", "ring"], roofline_enabled=True, peak_performance_teraflops=900.0
    )
    costs = AstraCosts(network, system)
    traces = workload(layers)
    run.simulate(traces, costs, symmetry=False)  # so many nodes are worth compiling for
    runs = [kernel_seconds(traces, costs) for _ in range(repeats)]
    shared = []
    for _ in range(repeats):
        began = time.perf_counter()
        run.simulate(traces, costs)
        shared.append(time.perf_counter() - began)
    nodes = runs[0][2]
    return {
        "nodes": nodes,
        "every rank": nodes / statistics.median(whole for _, whole, _ in runs),
        "jitted part": nodes / statistics.median(kernel for kernel, _, _ in runs),
        "distinct ranks": nodes / statistics.median(shared),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--layers", type=int, default=800, help="per pipeline stage")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    found = rates(arguments.layers, arguments.repeats)
    if arguments.json:
        document = {
            "rate_per_core": found["every rank"],
            "unit": "nodes/s (whole call, every rank)",
            "count": int(found["nodes"]),
            "seconds": found["nodes"] / found["every rank"],
            "jitted_rate": found["jitted part"],
            "distinct_ranks_rate": found["distinct ranks"],
        }
        print(json.dumps(document))
        return
    nodes = int(found.pop("nodes"))
    print(f"{nodes:,} nodes on {RANKS} ranks, one core, median of {arguments.repeats}")
    for name, rate in found.items():
        print(f"{name:<16}{nodes / rate:8.3f} s  {rate:12,.0f} nodes/s")


if __name__ == "__main__":
    main()
