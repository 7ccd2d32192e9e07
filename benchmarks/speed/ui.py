"""How fast `perfmodel ui` answers while a control is dragged.

    python benchmarks/speed/ui.py [--answers N] [--json]

Starts the server in a process of its own and asks it over HTTP, as the page does: first for what it
is opened with (kernels are loaded from the cache, or compiled, meanwhile), then N questions that
it was not asked before, each of about ten thousand strategies (one batch after another), each
answer read to its end. Seconds are those of the clock, rates those of the server's CPU (user and
system), which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

QUESTION = {"model": "llama-3.1-70b", "devices": 512, "precision": ["bf16", "fp8"]}
BATCHES = (1024, 2048, 3072, 1536, 4096, 512, 6144, 2560, 3584, 5120)
TICK = os.sysconf("SC_CLK_TCK")


def cpu(process: int) -> float:
    """Return the CPU time of a process so far [s]."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def ask(link: str, question: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return an answer, and its bytes."""
    root, _, token = link.partition("?token=")
    headers = {"content-type": "application/json", "origin": root.rstrip("/")}
    headers["x-perfmodel-token"] = token
    body = json.dumps({"page": "benchmark", "question": question}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{root}api/results", body, headers), timeout=300
    ) as reply:
        content = reply.read()
    return json.loads(content), len(content)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--answers", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    began = time.perf_counter()
    command = [sys.executable, "-m", "perfmodel", "ui", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        ask(link, {})
        first = time.perf_counter() - began
        ask(link, {**QUESTION, "global_batch_size": 768})  # kernels of its other precision
        seconds, spent, counts, sizes = [], [], [], []
        for number in range(options.answers):
            batch = BATCHES[number % len(BATCHES)] * (1 + number // len(BATCHES))
            before, start = cpu(server.pid), time.perf_counter()
            found, size = ask(link, {**QUESTION, "global_batch_size": batch})
            seconds.append(time.perf_counter() - start)
            spent.append(cpu(server.pid) - before)
            counts.append(found["count"])
            sizes.append(size)
        server.terminate()
    document = {
        "rate_per_core": sum(counts) / sum(spent),
        "unit": "strategies",
        "count": sum(counts),
        "seconds": statistics.median(seconds),
        "slowest_seconds": max(seconds),
        "cpu_seconds": statistics.median(spent),
        "strategies_of_an_answer": [min(counts), max(counts)],
        "bytes": int(statistics.median(sizes)),
        "first_answer_seconds": first,
    }
    if options.json:
        print(json.dumps(document, indent=2))
        return
    print(
        f"{min(counts):,} to {max(counts):,} strategies: "
        f"{1e3 * document['seconds']:.0f} ms an answer "
        f"(median of {options.answers}, at most {1e3 * max(seconds):.0f}), "
        f"{1e3 * document['cpu_seconds']:.0f} ms of CPU, {document['bytes']:,} B\n"
        f"first answer {first:.1f} s after the command\n"
        f"{document['rate_per_core']:,.0f} strategies/s/core"
    )


if __name__ == "__main__":
    main()
