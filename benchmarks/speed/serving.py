"""Speed of served models: operating points, recursions and requests per second on one core.

Usage: python benchmarks/speed/serving.py [--kind closed|recursion|replay|search] [--json]

`closed`     operating points of Qwen3-32B on an H200 node in closed form, every variable, with
             tables of passes at hand
`recursion`  the same pass by pass: prompts of 1,024 and 8,192 tokens, 1 to 64 clients, ten rounds
`replay`     requests of a trace of 100,000, Poisson arrivals
`search`     deployments of Qwen3-32B on 32 H200s: tensor, pipeline and attention-data parallelism,
             pools, batches, precisions and lengths; enumeration, memory, tables and the labelled
             table included, on all cores, in one call

The first call, which compiles, is not counted; the rate is that of the median of the others, by
the CPU time of this process but for `search`, which counts the seconds that pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from perfmodel import load_grid, load_hardware, serve, serving_grid
from perfmodel.serving.pass_table import pass_tables
from perfmodel.serving.project import close, deployment_columns, project_points
from perfmodel.serving.replay import replay_trace
from perfmodel.serving.requests import RequestTrace

MODEL, HARDWARE = "qwen3-32b", "dgx-h200"
REPEATS = 5
POWERS = [2.0**n for n in range(11)]


def ready(**axes: Any) -> tuple[Any, Any]:
    """Return tables of passes and deployments as kernels take them."""
    hardware = load_hardware(HARDWARE)
    grid = serving_grid(MODEL, hardware, **axes)
    points = project_points(grid, load_grid(concurrency=1), hardware)
    layouts, layout, second = grid.layouts()
    tables = pass_tables(grid.model, layouts, hardware)
    return tables, deployment_columns(grid, points.memory, hardware, layout, second)


def points_call(method: str, loads: Any, **axes: Any) -> tuple[int, Callable[[], object]]:
    """Return a call that fills operating points on one thread, and how many."""
    from perfmodel.kernels.serving.tables import ROWS

    tables, deployments = ready(**axes)
    count = deployments.layout.size
    out = np.empty((len(ROWS), count, len(loads)))
    return count * len(loads), lambda: close(tables, deployments, loads, out, method, threads=1)


def closed_call() -> tuple[int, Callable[[], object]]:
    """Return a call that closes operating points."""
    loads = load_grid(
        input_length=[256, 1024, 4096, 8192],
        output_length=[128, 1024],
        length_spread=[0.8, 1.0],
        concurrency=POWERS,
        rounds=10,
    )
    return points_call(
        "closed",
        loads,
        engine=["vllm", "sglang", "trtllm"],
        tensor_parallel=[1, 2, 4, 8],
        kv_precision=["bf16", "fp8"],
        token_budget=[2048, 4096, 8192, 16384],
        max_sequences=[64, 128, 256, 512, 1024],
    )


def recursion_call() -> tuple[int, Callable[[], object]]:
    """Return a call that runs closed loops pass by pass."""
    loads = load_grid(
        input_length=[1024, 8192],
        output_length=1024,
        length_spread=0.8,
        concurrency=POWERS[:7],
        rounds=10,
    )
    engines = ["vllm", "sglang", "trtllm"]
    return points_call("recursion", loads, engine=engines, tensor_parallel=[1, 2, 4, 8])


def replay_call() -> tuple[int, Callable[[], object]]:
    """Return a call that replays a trace."""
    tables, deployments = ready(tensor_parallel=4)
    random, count = np.random.default_rng(0), 100_000
    trace = RequestTrace(
        np.cumsum(random.exponential(0.1, count)),
        random.integers(256, 4097, count),
        random.integers(64, 513, count),
    )
    return count, lambda: replay_trace(tables, deployments, trace)


def search_call() -> tuple[int, Callable[[], object]]:
    """Return a call that searches deployments."""
    loads = load_grid(
        input_length=[1024, 4096, 8192], output_length=[256, 1024], concurrency=POWERS
    )
    axes = {
        "tensor_parallel": [1, 2, 4, 8],
        "pipeline_parallel": [1, 2, 4],
        "attention_data_parallel": [1, 2],
        "max_sequences": [32, 64, 128, 256, 512, 1024],
        "weight_precision": ["bf16", "fp8"],
        "kv_precision": ["bf16", "fp8"],
    }

    def search() -> object:
        one = serving_grid(MODEL, HARDWARE, devices=32, **axes)
        two = serving_grid(
            MODEL,
            HARDWARE,
            devices=32,
            workers=[1, 2, 4],
            prefill_workers=[1, 2, 4],
            prefill_tensor_parallel=[1, 2, 4],
            tensor_parallel=[1, 2, 4, 8],
            kv_precision=["bf16", "fp8"],
        )
        return [serve(MODEL, grid, loads, HARDWARE) for grid in (one, two)]

    found: Any = search()
    answered = [np.isfinite(table["tokens_per_second_per_device"].values) for table in found]
    return sum(int(points.sum()) for points in answered), search


KINDS = {
    "closed": (closed_call, "operating points/s"),
    "recursion": (recursion_call, "operating points/s"),
    "replay": (replay_call, "requests/s"),
    "search": (search_call, "operating points/s on all cores"),
}


def measure(kind: str) -> dict[str, Any]:
    """Return the rate of one kind, from the median of the repeats."""
    make, unit = KINDS[kind]
    count, call = make()
    call()  # compiles, touches the memory
    clock = time.perf_counter if kind == "search" else time.process_time
    seconds = []
    for _ in range(REPEATS):
        start = clock()
        call()
        seconds.append(clock() - start)
    median = statistics.median(seconds)
    return {
        "kind": kind,
        "rate_per_core" if kind != "search" else "rate": count / median,
        "unit": unit,
        "count": count,
        "seconds": median,
        "fastest": min(seconds),
        "slowest": max(seconds),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = [measure(kind) for kind in options.kind or KINDS]
    if options.json:
        # The first kind stands at the top, where a reader of any speed script looks.
        kinds = {item["kind"]: item for item in found}
        print(json.dumps(found[0] | ({"kinds": kinds} if len(found) > 1 else {}), indent=2))
        return 0
    for item in found:
        rate = item.get("rate_per_core", item.get("rate"))
        print(
            f"{item['kind']:10s} {rate:12,.0f} {item['unit']}: "
            f"{item['count']:,} in {item['seconds']:.3f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
