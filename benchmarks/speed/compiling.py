"""What compiling costs: each kernel with all that it calls at once, or through Numba's public face.

    python benchmarks/speed/compiling.py [--json] [--rounds N]

Each way of `perfmodel.kernels._jit.whole_programs` writes traces of a step, runs a sweep, a served
model request by request and a simulation of the traces, in that order and in a home of its own: the
first time what those before it need is compiled, then N times more. CPU seconds of whole processes,
the least of the later ones; one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

COMMANDS = {
    "chakra": "workload chakra --model llama-3.1-8b --hardware dgx-h100 --devices 16 --tp 4 --pp 2 "
    "--global-batch 16 --seq-len 8192 -q -o trace",
    "sweep": "sweep --model llama-3.1-70b --hardware dgx-h100 --devices 1024 --seq-len 8192 "
    "--global-batch 2048 -q -o sweep.nc",
    "serve": "serve --model llama-3.1-70b --hardware dgx-h100 --tp 4 --isl 2048 --osl 512 "
    "--concurrency 1:256:x4 --exact -q -o serve.nc",
    "simulate": "simulate trace --hardware dgx-h100 -q",
}
WAYS = ("whole", "plain")


def cpu_seconds(words: str, folder: Path, way: str) -> float:
    """Run a command in a folder with a home of its own; return the CPU time of its process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {
        **os.environ,
        **{"PERFMODEL_COMPILE": way, "PERFMODEL_JIT": "always", "NUMBA_CACHE_DIR": ""},
        **{"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
    }
    call = [sys.executable, "-m", "perfmodel", *words.split()]
    subprocess.run(call, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(rounds: int) -> list[dict[str, str | float]]:
    """Return a row for every way and command."""
    found: list[dict[str, str | float]] = []
    for way in WAYS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for command, words in COMMANDS.items():
                first = cpu_seconds(words, folder, way)
                again = words.replace("-o trace", "-o again")
                later = min(cpu_seconds(again, folder, way) for _ in range(rounds))
                found.append({"way": way, "command": command, "first": first, "later": later})
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--rounds", type=int, default=3, help="later runs of each command")
    options = parser.parse_args()
    rows = measured(options.rounds)
    if options.json:
        print(json.dumps({"unit": "CPU s", "count": len(rows), "rows": rows}, indent=2))
        return
    print("way    command   first run  later run [CPU s]")
    for row in rows:
        print(f"{row['way']:6} {row['command']:9} {row['first']:9.1f} {row['later']:10.2f}")


if __name__ == "__main__":
    main()
