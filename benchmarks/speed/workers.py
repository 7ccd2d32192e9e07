"""How work scales over local Dask workers: CPU and wall seconds on 0, 1, 2, … of them.

    python benchmarks/speed/workers.py [--only KIND] [--workers N] [--runs FILE.csv] [--json]

`sweep`      GPT-3 175B on 4,096 H100s, blocks of 262,144 strategies, a summary of which is kept
`compare`    a table of measured training runs (`--runs`; default: those of the benchmarks)
`calibrate`  constants of products of the H100, fitted to times that the model gives for others
`serve`      Qwen3-32B on H200s, closed loops pass by pass

0 workers are one process without Dask, on one thread. Each line is a process of its own, after one
that fills the cache of kernels. CPU seconds are those of all processes, their start included; wall
seconds begin when the workers are there, of which their start is told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

KINDS = ("sweep", "compare", "calibrate", "serve")
BATCHES = 480
"""Of the sweep: 40 million strategies, so that starting and loading kernels are a small part."""
RUNS = Path(__file__).resolve().parents[1] / "published_training_runs.csv"


def swept(workers: Any, small: bool, runs: Path) -> int:
    """Sweep in blocks; return how many strategies."""
    from sweep import AXES, BATCH, DEVICES, FEW

    from perfmodel import load_hardware, load_model
    from perfmodel.software.framework import load_framework
    from perfmodel.sweeps.blocks import block_sweep
    from perfmodel.sweeps.stored import StoredSweep

    batches = [BATCH * (i + 1) for i in range(1 if small else BATCHES)]
    axes = {**AXES, **(FEW if small else {})}
    asked = block_sweep(
        [load_model("gpt3-175b")],
        [load_framework("megatron")],
        [DEVICES],
        {**axes, "sequence_length": 2048, "global_batch_size": batches},
        hardware=[load_hardware("dgx-h100")],
        threads=1,
    )
    with StoredSweep(asked, None, 5).opened(False) as work:
        work.run(workers)
    return asked.count


def compared(workers: Any, small: bool, runs: Path) -> int:
    """Compare a table; return how many rows were scored."""
    from perfmodel.measured.compare import compare_file

    found = compare_file("training", runs, workers=workers)
    return sum(row.scored for row in found.rows)


def calibrated(workers: Any, small: bool, runs: Path) -> int:
    """Fit a profile; return how often rows were priced."""
    import numpy as np

    from perfmodel import load_hardware
    from perfmodel.compute.gemm import gemm_times
    from perfmodel.measured.calibrate import calibrate_file

    hardware = load_hardware("dgx-h100")
    sizes = 2 ** np.random.default_rng(0).uniform(6, 14, (100 if small else 20000, 3))
    m, n, k = (-(-column // 16) * 16 for column in sizes.T)
    times = gemm_times(hardware, "bf16", m, n, k).time * 1.1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gemm.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["hardware", "dtype", "m", "n", "k", "time_us"])
            for row in zip(m, n, k, times, strict=True):
                writer.writerow(["H100_SXM", "bf16", *map(int, row[:3]), row[3] * 1e6])
        found = calibrate_file("dgx-h100", path, kind="gemm", limit=20000, workers=workers)
    return found.evaluations * found.fitted


def served(workers: Any, small: bool, runs: Path) -> int:
    """Serve a grid pass by pass; return how many operating points."""
    from perfmodel import load_grid, load_hardware, serving_grid
    from perfmodel.sweeps.serving import serve_table

    hardware = load_hardware("dgx-h200")
    grid = serving_grid(
        "qwen3-32b",
        hardware,
        engine=["vllm", "sglang"],
        tensor_parallel=[1, 2, 4, 8],
        max_sequences=[256] if small else [64, 128, 256, 512],
        token_budget=[8192] if small else [2048, 4096, 8192, 16384],
    )
    loads = load_grid(
        input_length=[1024, 8192] if small else [256, 512, 1024, 2048, 4096, 8192],
        output_length=1024,
        length_spread=0.8,
        concurrency=[2.0**i for i in range(2 if small else 11)],
        rounds=10,
    )
    table = serve_table(
        grid.model, grid, loads, hardware, method="recursion", threads=1, workers=workers
    )
    return int(table["status"].values.size)


TASKS: dict[str, Callable[[Any, bool, Path], int]] = dict(
    zip(KINDS, (swept, compared, calibrated, served), strict=True)
)


def cpu_seconds() -> float:
    """Return user and system time of this process and of those that it has ended [s]."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def line(kind: str, count: int, small: bool, runs: Path) -> dict[str, Any]:
    """Do the work on so many workers, and return what it took."""
    from perfmodel.sweeps.workers import local_workers

    began = time.perf_counter()
    with local_workers(count) if count else contextlib.nullcontext() as workers:
        ready = time.perf_counter()
        done = TASKS[kind](workers, small, runs)
        seconds = time.perf_counter() - ready
    cpu = cpu_seconds()
    return {
        "kind": kind,
        "workers": count,
        "count": done,
        "start_seconds": ready - began,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "rate_per_core": done / cpu,
    }


def main() -> None:
    """Parse arguments, run the lines, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="at most")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--small", action="store_true", help="little work, to try the script")
    parser.add_argument("--line", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.line:
        print(json.dumps(line(given.line[0], int(given.line[1]), given.small, given.runs)))
        return
    command = [sys.executable, __file__, "--runs", str(given.runs)]
    command += ["--small"] if given.small else []
    found = []
    if not given.json:
        print("| work | workers | pieces | start [s] | wall [s] | CPU [s] | times as fast |")
        print("|---|---:|---:|---:|---:|---:|---:|")
    for kind in [given.only] if given.only else KINDS:
        warm = [*command, "--line", kind, "0"]
        subprocess.check_output(warm, env={**os.environ, "PERFMODEL_JIT": "always"})
        alone = 0.0
        for count in range(given.workers + 1):
            one = json.loads(subprocess.check_output([*command, "--line", kind, str(count)]))
            alone = alone or one["seconds"]
            one["speedup"] = alone / one["seconds"]
            found.append(one)
            if not given.json:
                print(
                    f"| {kind} | {count} | {one['count']:,} | {one['start_seconds']:.1f} | "
                    f"{one['seconds']:.1f} | {one['cpu_seconds']:.1f} | {one['speedup']:.2f} |",
                    flush=True,
                )
    if given.json:
        last = found[-1]
        names = ("rate_per_core", "count", "seconds")
        unit = {"unit": f"pieces of {last['kind']} per second and core"}
        print(json.dumps({**{name: last[name] for name in names}, **unit, "lines": found}))


if __name__ == "__main__":
    main()
