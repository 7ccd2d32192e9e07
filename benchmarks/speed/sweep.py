"""Strategies per second and core: GPT-3 175B on 4,096 devices.

Sweeps tensor × pipeline × virtual × data × micro-batch × recompute × ZeRO × sequence
parallelism, several global batches and precisions, with every result variable. The
time covers everything after the imports and the compilation of the kernels:
enumeration, kernel models, the closing pass and the labelled dataset.

    python benchmarks/speed/sweep.py [--strategies N] [--threads N] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from perfmodel import load_hardware, load_model, strategy_grid, sweep

DEVICES = 4096
AXES = {
    "tensor_parallel": [1, 2, 4, 8, 16, 32],
    "sequence_parallel": [False, True],
    "virtual_pipeline": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48],
    "micro_batch_size": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32],
    "recompute": ["none", "selective", "full"],
    "zero_stage": [0, 1, 2, 3],
    "mapping": ["tensor-context-data-pipeline", "tensor-context-pipeline-data"],
    "precision": ["bf16", "fp8"],
    "context_parallel": [1],
}


def cpu_seconds() -> float:
    """Return user and system time of this process [s], all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(batches: list[int], threads: int, dtype: str) -> tuple[int, float, float]:
    """Enumerate and sweep once; return strategies, wall seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    model, hardware = load_model("gpt3-175b"), load_hardware("dgx-h100")
    grid = strategy_grid(
        model,
        DEVICES,
        sequence_length=[2048, 4096],
        global_batch_size=batches,
        **AXES,
    )
    results = sweep(model, grid, hardware, dtype=np.dtype(dtype), threads=threads)
    count = int(np.isfinite(results["step_time"].values).sum())
    if count != len(grid):
        raise SystemExit(f"{len(grid) - count} of {len(grid)} strategies have no step time")
    return count, time.perf_counter() - wall, cpu_seconds() - cpu


def main() -> None:
    """Parse arguments, warm up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=24, help="global batch sizes in the grid")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    batches = [1536 * (i + 1) for i in range(arguments.batches)]
    run(batches[:1], 1, arguments.dtype)  # compiles and loads the kernels
    count, wall, cpu = run(batches, arguments.threads, arguments.dtype)
    result = {
        "rate_per_core": count / cpu,
        "unit": "strategies/s/core (CPU time, all result variables)",
        "count": count,
        "seconds": wall,
        "cpu_seconds": cpu,
        "threads": arguments.threads,
        "dtype": arguments.dtype,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        print(
            f"{count:,} strategies in {wall:.2f} s wall, {cpu:.2f} s CPU: "
            f"{count / cpu:,.0f} strategies/s/core"
        )


if __name__ == "__main__":
    main()
