"""Strategies per second and core: GPT-3 175B on 4,096 devices.

Sweeps tensor × pipeline × virtual × data × micro-batch × recompute × ZeRO × sequence
parallelism, several global batches, sequence lengths, precisions and mappings. With every result
variable (`--keep all`), or the best ones alone (`--keep best`), which takes no room for the
others. The time covers enumeration, kernel models, the closing pass and the labelled dataset, from
the call on: of the *first* large sweep of a process, modules imported (by a small sweep, which runs
uncompiled) and kernels in the cache (a process before it fills that, and says what it took), which
loads them; and of a *second* one, which has them. Memory is given back in between, unless the C
library is told to keep it (glibc: MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_).

    python benchmarks/speed/sweep.py [--keep best] [--batches N] [--threads N] [--json]
    python benchmarks/speed/sweep.py --keep best --growth      # from some thousands to 1e8
    python benchmarks/speed/sweep.py --bound                   # a loop in C for what is left of it
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel import load_hardware, load_model, strategy_grid, sweep

DEVICES = 4096
AXES: dict[str, Any] = {
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
BATCH = 1536
BATCHES = {"all": 24, "best": 600}
FEW = {"tensor_parallel": [8], "virtual_pipeline": [1, 2], "micro_batch_size": [1, 2]}
GROWTH: list[tuple[int, dict[str, Any]]] = [(1, FEW), (1, {}), (8, {}), (60, {}), (600, {})]
"""Batches, and axes that have fewer values."""


def cpu_seconds() -> float:
    """Return user and system time of this process [s], all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(
    batches: list[int], threads: int, dtype: str, keep: str = "all", **axes: Any
) -> tuple[int, float, float]:
    """Enumerate and sweep once; return strategies, wall seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    model, hardware = load_model("gpt3-175b"), load_hardware("dgx-h100")
    grid = strategy_grid(
        model,
        DEVICES,
        sequence_length=[2048, 4096],
        global_batch_size=batches,
        **{**AXES, **axes},
    )
    results = sweep(model, grid, hardware, dtype=np.dtype(dtype), threads=threads, keep=keep)
    if keep == "all":
        count = int(np.isfinite(results["step_time"].values).sum())
        if count != len(grid):
            raise SystemExit(f"{len(grid) - count} of {len(grid)} strategies have no step time")
    return len(grid), time.perf_counter() - wall, cpu_seconds() - cpu


def first_and_second(arguments: argparse.Namespace, batches: int, **axes: Any) -> dict[str, Any]:
    """Sweep twice in this process; return what is printed."""
    run([BATCH], 1, arguments.dtype, arguments.keep, **FEW)  # imports, and nothing compiled
    listed = [BATCH * (i + 1) for i in range(batches)]
    how = listed, arguments.threads, arguments.dtype, arguments.keep
    count, wall, cpu = run(*how, **axes)
    _, again_wall, again = run(*how, **axes)
    return {
        "rate_per_core": count / cpu,
        "unit": f"strategies/s/core (CPU time, first sweep of a process, keep {arguments.keep})",
        "count": count,
        "seconds": wall,
        "cpu_seconds": cpu,
        "second_rate_per_core": count / again,
        "second_seconds": again_wall,
        "threads": arguments.threads,
        "dtype": arguments.dtype,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def warmed(arguments: argparse.Namespace) -> float:
    """Fill the cache of kernels in a process of its own; return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sweep; "
        "sweep.run([1536 * (i + 1) for i in range(8)], 1, sys.argv[2], sys.argv[3])"
    )
    where = str(Path(__file__).resolve().parent)
    command = [sys.executable, "-c", code, where, arguments.dtype, arguments.keep]
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


C_LOOP = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
/* Step time, rate and the best one: a step that is affine in the number of micro-batches m, and
   waits for the first or the last of p stages. */
typedef struct { double once, each, fill, first, last, tokens, memory; } Family;
int main(int argc, char **argv) {
    long families = 400000, batches = 250, found = 0, at = -1;
    Family *of = malloc(families * sizeof(Family));
    for (long f = 0; f < families; f++) {
        double u = (f * 2654435761u % 1000) / 1000.0;
        of[f] = (Family){1 + u, 0.1 + u / 9, u, u / 7, u / 5, 1e6, 1e11 * u};
    }
    double best = 0;
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    for (long f = 0; f < families; f++) {
        Family one = of[f];
        int fits = one.memory < 8e10;
        for (long i = 1; i <= batches; i++) {
            double m = 4.0 * i, first = m * one.first, last = one.fill + m * one.last;
            double step = one.once + m * one.each + (first > last ? first : last);
            double rate = one.tokens * m / step;
            found += fits;
            if (fits && rate > best) { best = rate; at = f * batches + i; }
        }
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double seconds = b.tv_sec - a.tv_sec + 1e-9 * (b.tv_nsec - a.tv_nsec);
    printf("%.0f %ld %ld\n", families * batches / seconds, at, found);
    return 0;
}
"""


def c_rate() -> float | None:
    """Return strategies per second of a loop in C over families; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "loop.c"), Path(folder, "loop")
        source.write_text(C_LOOP)
        subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
        return float(subprocess.check_output([str(program)], text=True).split()[0])


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", choices=("all", "best"), default="all")
    parser.add_argument("--batches", type=int, help="global batch sizes in the grid")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--growth", action="store_true", help="several sizes, each in a process")
    parser.add_argument("--bound", action="store_true", help="compare with a loop in C")
    parser.add_argument("--warm", action="store_true", help="the cache of kernels is full already")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)  # of GROWTH
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    compile_seconds = 0.0 if arguments.warm else warmed(arguments)
    if arguments.growth:
        for size in range(len(GROWTH)):
            command = [sys.executable, __file__, "--warm", "--size", str(size)]
            command += ["--keep", arguments.keep, "--dtype", arguments.dtype]
            command += ["--threads", str(arguments.threads)]
            subprocess.run(command + ["--json"] * arguments.json, check=True)
        return
    import numba  # noqa: F401  (imports are no part of a sweep)

    batches, axes = arguments.batches or BATCHES[arguments.keep], {}
    if arguments.size is not None:
        batches, axes = GROWTH[arguments.size]
    result = first_and_second(arguments, batches, **axes)
    result["warming_cpu_seconds"] = compile_seconds
    if arguments.bound and (rate := c_rate()):
        result |= {"c_loop_rate": rate, "share_of_c_loop": result["second_rate_per_core"] / rate}
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"{result['count']:,} strategies, keep {arguments.keep}: first "
        f"{result['seconds']:.2f} s wall, "
        f"{result['rate_per_core']:,.0f} strategies/s/core; second "
        f"{result['second_rate_per_core']:,.0f}; peak memory "
        f"{result['peak_memory_bytes'] / 1e6:,.0f} MB"
    )
    if compile_seconds:
        print(
            f"kernels were compiled or loaded before, with a small sweep: {compile_seconds:.1f} s"
        )
    if "c_loop_rate" in result:
        print(
            f"a loop in C over the same sums: {result['c_loop_rate']:,.0f}/s; "
            f"{result['share_of_c_loop']:.1%} of it"
        )


if __name__ == "__main__":
    main()
