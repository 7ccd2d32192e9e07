"""Speed of reading and writing Chakra files: nodes per second on one core.

    python benchmarks/speed/chakra.py [--json]

Files of two kinds: the training step of transformer layers of `benchmarks/speed/simulate.py`, with
tensors (140 B a node), and one rank of a projected pipeline (170 B a node). CPU time of bytes to
the columns that the simulator takes, and of columns to bytes; the disk is not part of it.
Compiling is excluded: a small run comes first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfmodel.kernels._jit import compile_kernels
from perfmodel.workloads.formats.chakra.writing import parse_messages, serialise
from perfmodel.workloads.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from speed.simulate import step

MODEL = "llama-3.1-70b"
UNIT = "nodes/s"


def projected(micro_batches: int = 64) -> Trace:
    """Return what one rank of a pipeline does in a training step, operation by operation."""
    from perfmodel.strategy.enumerate import strategies_from_rows
    from perfmodel.training.step.workload import projected_workload
    from perfmodel.workloads.export.chakra import projected_traces

    row = {
        "tensor_parallel": 8,
        "pipeline_parallel": 4,
        "global_batch_size": micro_batches,
        "micro_batch_size": 1,
        "sequence_length": 8192,
    }
    grid = strategies_from_rows(MODEL, 32, [row])
    workload = projected_workload(MODEL, grid, "dgx-h100")
    trace: Trace = projected_traces(workload).traces[8]
    return trace


def rate(nodes: int, work: Callable[[], Any], repeats: int) -> float:
    """Return nodes per second of CPU time: the median of some runs."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return nodes / statistics.median(seconds)


def rates(trace: Trace, repeats: int) -> dict[str, float]:
    """Return the rates of writing and reading one trace [nodes/s]."""
    content = serialise(trace)
    again = parse_messages(content, "trace.0.et")
    assert again.equals(trace), "what was written should be read"
    return {
        "read": rate(trace.nodes, lambda: parse_messages(content, "trace.0.et"), repeats),
        "write": rate(trace.nodes, lambda: serialise(trace), repeats),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--layers", type=int, default=2000, help="of the step with tensors")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    compile_kernels()
    files = {"step": step(0, 0, 0, arguments.layers), "projected": projected()}
    found = {name: rates(trace, arguments.repeats) for name, trace in files.items()}
    if arguments.json:
        slowest = min(rate for by_way in found.values() for rate in by_way.values())
        nodes = files["step"].nodes
        document = {
            "rate_per_core": slowest,
            "unit": f"{UNIT} (the slowest of reading and writing)",
            "count": nodes,
            "seconds": nodes / slowest,
            "rates": found,
        }
        print(json.dumps(document))
        return
    for name, trace in files.items():
        for way, value in found[name].items():
            print(f"{name:<10}{way:<6}{trace.nodes:>9,} nodes {value:>12,.0f} {UNIT}")


if __name__ == "__main__":
    main()
