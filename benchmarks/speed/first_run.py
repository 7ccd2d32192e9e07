"""CPU seconds of small commands in a fresh home: the first ever, and later.

    python benchmarks/speed/first_run.py [--runs N] [--json]

User and system time of a process with nothing in its home but, later, what the first has left
there; medians. Bytecode of all packages lies ready, as an installer leaves it. Then where
compiling begins to pay for a sweep: the strategies whose closing takes as long uncompiled as
compiling all that a sweep needs, or loading it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STRATEGY = "--model llama-3.1-70b --hardware dgx-h100 --devices 256 --tp 8 --pp 4 "
STRATEGY += "--global-batch 512 --seq-len 8192"
DEMO = "sweep --model llama-3.1-70b --hardware dgx-h100 --devices 1024 --seq-len 8192 "
DEMO += "--global-batch 2048 -o sweep.nc"
GEMM = "kernel gemm --hardware dgx-h100 --m 4096 --n 4096 --k 4096"
COLLECTIVE = "collective all_reduce --hardware dgx-h100 --size 64MiB --members 8"
# What is run, and what it should take at most [CPU s].
CASES = {
    "import perfmodel": (["-c", "import perfmodel"], 0.15),
    "--help": (["-m", "perfmodel", "--help"], 0.06),
    "hardware show": (["-m", "perfmodel", "hardware", "show", "dgx-h100"], 0.4),
    "project": (["-m", "perfmodel", "project", *STRATEGY.split()], 0.4),
    "explain": (["-m", "perfmodel", "explain", *STRATEGY.split()], 0.4),
    "kernel": (["-m", "perfmodel", *GEMM.split()], 0.4),
    "collective": (["-m", "perfmodel", *COLLECTIVE.split()], 0.4),
    "demo sweep": (["-m", "perfmodel", *DEMO.split()], 0.8),
}
# A sweep of few strategies and one of more, uncompiled and compiled.
SWEEP = """
import sys, time
import numpy as np
from perfmodel import load_hardware, load_model, strategy_grid
from perfmodel.sweeps.sweep import sweep_table
model, hardware = load_model("llama-3.1-70b"), load_hardware("dgx-h100")
grid = strategy_grid(model, 1024, sequence_length=8192, global_batch_size=2048)
sweep_table(model, grid.take(np.arange(int(sys.argv[1]))), hardware)
"""
FEW, MORE = 500, 5500


def seconds(arguments: list[str], home: Path, **environment: str) -> float:
    """Run Python once with a home; return the CPU seconds of the process."""
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PERFMODEL_JIT", "NUMBA_DISABLE_JIT", "NUMBA_CACHE_DIR")
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    # Outside of the home: an installer writes bytecode beside the sources.
    places["PYTHONPYCACHEPREFIX"] = str(home.parent / "bytecode")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=home,
        env=clean | places | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)[:80]}: {done.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(folder: Path, runs: int) -> dict[str, dict[str, float]]:
    """Return the median CPU seconds of every case, in fresh homes and in used ones."""
    found = {}
    for number, (name, (arguments, most)) in enumerate(CASES.items()):
        homes = [folder / f"home-{number}-{run}" for run in range(runs + 1)]
        for home in homes:
            home.mkdir()
        first = [seconds(arguments, home) for home in homes][1:]  # the first makes the bytecode
        later = [seconds(arguments, home) for home in homes[1:]]
        found[name] = {
            "first": statistics.median(first),
            "later": statistics.median(later),
            "most": most,
        }
    return found


def break_even(folder: Path) -> dict[str, float]:
    """Return from how many strategies on compiling pays, with an empty cache and a full one."""
    home = folder / "compiled"
    home.mkdir()

    def sweep(count: int, mode: str) -> float:
        return seconds(["-c", SWEEP, str(count)], home, PERFMODEL_JIT=mode)

    sweep(FEW, "never")
    few, more = (
        statistics.median(sweep(count, "never") for _ in range(3)) for count in (FEW, MORE)
    )
    each = (more - few) / (MORE - FEW)
    empty = sweep(FEW, "always")
    full = statistics.median(sweep(FEW, "always") for _ in range(3))
    return {
        "per_strategy": each,
        "compiling": empty - few,
        "loading": full - few,
        "empty_cache": FEW + (empty - few) / each,
        "full_cache": FEW + (full - few) / each,
    }


def report(runs: int = 5) -> str:
    """Measure, and return the table."""
    with tempfile.TemporaryDirectory() as name:
        return table(measure(Path(name), runs), break_even(Path(name)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each case")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if not options.json:
        print(report(options.runs))
        return
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), options.runs)
        document = {"cpu_seconds": found, "break_even": break_even(Path(name))}
    print(json.dumps(document, indent=2))


def table(found: dict[str, dict[str, float]], pays: dict[str, float]) -> str:
    """Return what was found as a table of Markdown, and a sentence below it."""
    lines = ["| CPU seconds | first ever | later | at most |", "|---|---:|---:|---:|"]
    lines += [
        f"| {name} | {row['first']:.2f} | {row['later']:.2f} | {row['most']:.2f} |"
        for name, row in found.items()
    ]
    return "\n".join(lines) + (
        f"\n\nUncompiled, a strategy takes {pays['per_strategy'] * 1e6:.0f} µs. Compiling what a "
        f"sweep needs takes {pays['compiling']:.0f} s and pays from {pays['empty_cache']:,.0f} "
        f"strategies on; loading it from the cache takes {pays['loading']:.1f} s and pays from "
        f"{pays['full_cache']:,.0f} on."
    )


if __name__ == "__main__":
    main()
