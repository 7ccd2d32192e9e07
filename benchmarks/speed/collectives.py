"""Count the collectives that one core prices per second.

Usage::

    python benchmarks/speed/collectives.py [--count N] [--runs R] [--json]

A grid of collectives, sizes, groups and strides on an H100 cluster, in two forms: what the
library chooses (rings, trees, reducing switches, three protocols), and one closed-form
algorithm with one protocol. The CPU time of the best of R runs after one that
compiles.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from perfmodel.base.collectives import ALGORITHMS, COLLECTIVES, PROTOCOLS
from perfmodel.compute.network import network_table
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels._jit import compile_kernels

CHOSEN = "what the library chooses"
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def columns(count: int) -> tuple[np.ndarray, ...]:
    """Return kind, size [B], members and stride of `count` collectives, reproducibly."""
    random = np.random.default_rng(11)
    kind = random.choice([COLLECTIVES.index(name) for name in KINDS], count).astype(np.int64)
    size = 2.0 ** random.uniform(8, 34, count)
    members = 2 ** random.integers(1, 11, count)
    stride = 2 ** random.integers(0, 5, count)
    return kind, size, members.astype(np.int64), stride.astype(np.int64)


def best_time(run: Callable[[], object], runs: int) -> float:
    """Return the shortest CPU time of some runs after one that is not counted [s]."""
    run()
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def rates(count: int = 2_000_000, runs: int = 5) -> dict[str, float]:
    """Return collectives per second of every form; those with a fixed algorithm last."""
    compile_kernels()
    from perfmodel.kernels.collective.times import algorithm_times, collective_times

    network = network_table(load_hardware("dgx-h100"))
    kind, size, members, stride = columns(count)
    group = (size, members, stride, network)
    seconds = {CHOSEN: best_time(lambda: collective_times(kind, *group), runs)}
    all_reduce = np.full(count, COLLECTIVES.index("all_reduce"))
    simple = np.full(count, PROTOCOLS.index("simple"))
    for name in ("ring", "halving_doubling", "hierarchical", "double_binary_tree"):
        algorithm = np.full(count, ALGORITHMS.index(name))
        seconds[f"all_reduce by {name}"] = best_time(
            lambda algorithm=algorithm: algorithm_times(all_reduce, algorithm, simple, *group),
            runs,
        )
    return {name: count / value for name, value in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000_000, help="collectives per run")
    parser.add_argument("--runs", type=int, default=5, help="runs, the best one counts")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args()
    found = rates(arguments.count, arguments.runs)
    if arguments.json:
        slowest = min(rate for name, rate in found.items() if name != CHOSEN)
        document = {
            "rate_per_core": slowest,
            "unit": "collectives/s",
            "count": arguments.count,
            "seconds": arguments.count / slowest,
            "rates": found,
        }
        print(json.dumps(document))
        return
    for name, rate in found.items():
        print(f"{name:40s} {rate / 1e6:6.2f} M/s on one core")


if __name__ == "__main__":
    main()
