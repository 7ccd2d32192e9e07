"""Count the pipelines whose events one core runs per second.

Usage::

    python benchmarks/speed/schedules.py [--count N] [--runs R] [--json]

Every case has uneven stages of its own, and runs without and with sends: for each of the schedules,
4 to 16 ranks, and 8 to 64 micro-batches, orders made and linked once. The rate is that of all cases
together, in the best of R runs after one that compiles, by CPU time.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from perfmodel.base.pipelines import SCHEDULES
from perfmodel.kernels.work import kernel_work
from perfmodel.strategy.pipelines import Pipeline, named_pipeline

RANKS = (4, 8, 16)
MICRO_BATCHES = (8, 16, 32, 64)
SHAPES = [(ranks, micro_batches) for ranks in RANKS for micro_batches in MICRO_BATCHES]


def pipelines(schedule: str) -> list[Pipeline]:
    """Return the pipelines of a schedule, of all shapes that it takes."""
    chunks = 2 if schedule in ("interleaved", "interleaved_zero_bubble") else None
    fewest = 2 if schedule in ("dualpipe", "dualpipe_v") else 0
    return [
        named_pipeline(schedule, ranks, micro_batches, chunks)
        for ranks, micro_batches in SHAPES
        if micro_batches >= fewest * ranks
    ]


def seconds(schedule: str, cases: int, runs: int) -> tuple[int, float]:
    """Return how many cases were run, and the shortest time of some runs [s]."""
    with kernel_work(scheduled_actions=1e9):
        from perfmodel.kernels.pipeline.actions import KINDS
        from perfmodel.kernels.pipeline.paced import paced_makespans, steps_of

    random = np.random.default_rng(3)
    made = []
    for pipeline in pipelines(schedule):
        stages = pipeline.order.rank_of.size
        work = random.uniform(0.5e-3, 2e-3, (KINDS * stages, cases))
        sends = random.uniform(0.0, 1e-4, cases)
        steps = steps_of(pipeline.program, np.arange(KINDS * stages).reshape(KINDS, -1))
        made.append((*steps, work, sends, 0.0))
    run = functools.partial(run_all, paced_makespans, made)
    return cases * len(made), best_time(run, runs)


def run_all(function: Callable[..., object], calls: list[tuple[Any, ...]]) -> None:
    """Call a function with all of some arguments."""
    for arguments in calls:
        function(*arguments)


def best_time(run: Callable[[], object], runs: int) -> float:
    """Return the shortest of some runs after one that is not counted [s of one core]."""
    run()
    times = []
    for _ in range(runs):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def rates(count: int, runs: int) -> dict[str, tuple[int, float]]:
    """Return cases and seconds of every schedule."""
    cases = max(1, count // (len(SCHEDULES) * len(SHAPES)))
    return {schedule: seconds(schedule, cases, runs) for schedule in SCHEDULES}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="cases per run, about")
    parser.add_argument("--runs", type=int, default=5, help="runs, the best one counts")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args()
    found = rates(arguments.count, arguments.runs)
    count = sum(cases for cases, _ in found.values())
    took = sum(taken for _, taken in found.values())
    if arguments.json:
        document = {
            "rate_per_core": count / took,
            "unit": "cases/s",
            "count": count,
            "seconds": took,
            "rates": {name: number / taken for name, (number, taken) in found.items()},
        }
        print(json.dumps(document))
        return
    for name, (number, taken) in {**found, "all together": (count, took)}.items():
        print(f"{name:24s} {number / taken:12,.0f} cases/s on one core")


if __name__ == "__main__":
    main()
