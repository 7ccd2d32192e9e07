"""How cost grows: of sweeps with strategies, devices, rows and layers, of traces and of replays.

Each line is a process of its own, after one that fills the cache of kernels: CPU seconds from the
call of the sweep on, and the most memory that the process ever took. Of traces, CPU seconds of two
whole commands: one that writes a step of Llama 3.1 70B rank by rank, layer by layer, and one that
runs it. Of replays, those of requests of 64 clients, each of whom waits for an answer.

Behind each subject stand exponents: how CPU time, but for that of the first line, grows from the
last line but one to the last, with what grows and with the pieces that this makes: results, nodes,
requests; and with layers, as pipelines get longer, passes that run one by one. 1 is linear.

    python benchmarks/speed/growth.py [--only SUBJECT] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel import load_hardware, load_model, strategy_grid, sweep
from perfmodel.model.build import dense_model

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sweep import BATCH, GROWTH, cpu_seconds, run, warmed

THREADS = 1
DEVICES = (64, 1024, 16384, 262144)
ROWS = (1, 4, 16, 64)
LAYERS = (16, 64, 256, 1024)
RANKS = (64, 1024, 16384)
REQUESTS = (1_000, 10_000, 100_000, 1_000_000)
CLIENTS = 64
SUBJECTS: dict[str, int] = {
    "strategies, best kept": len(GROWTH),
    "strategies, all kept": len(GROWTH) - 1,
    "devices": len(DEVICES),
    "rows of hardware": len(ROWS),
    "layers": len(LAYERS),
    "ranks of a trace": len(RANKS),
    "requests of a replay": len(REQUESTS),
}
SWEPT = tuple(SUBJECTS)[:-2]


def line(subject: str, number: int) -> dict[str, Any]:
    """Run one line; return what was counted and what it took."""
    if subject == "ranks of a trace":
        return trace_line(RANKS[number])
    if subject == "requests of a replay":
        return replay_line(REQUESTS[number])
    passes = counted_passes()
    run([BATCH], THREADS, "float64", tensor_parallel=[8], virtual_pipeline=[1])  # imports
    if subject.startswith("strategies"):
        batches, axes = GROWTH[number]
        listed = [BATCH * (i + 1) for i in range(batches)]
        keep = "best" if "best" in subject else "all"
        count, _, seconds = run(listed, THREADS, "float32", keep, **axes)
        value = pairs = count
    else:
        model, rows = load_model("llama-3.1-70b"), [load_hardware("dgx-h100")]
        devices, value = 1024, 1
        if subject == "devices":
            value = devices = DEVICES[number]
        elif subject == "layers":
            value = LAYERS[number]
            model = dense_model(
                "growing",
                layers=value,
                hidden_size=8192,
                heads=64,
                key_value_heads=8,
                intermediate_size=28672,
                vocab_size=128256,
            )
        else:
            value = ROWS[number]
            path = "system.network.1.bandwidth"
            rows = [rows[0].with_values({path: it}) for it in np.linspace(25e9, 400e9, value)]
        before = cpu_seconds()
        grid = strategy_grid(
            model, devices, sequence_length=8192, global_batch_size=[4096, 8192], hardware=rows
        )
        sweep(model, grid, rows, dtype=np.float32, threads=THREADS)
        seconds, pairs = cpu_seconds() - before, len(grid) * len(rows)
    found = measured(subject, value, pairs, seconds, resource.RUSAGE_SELF)
    return {**found, "pieces": pairs + sum(passes)}


def counted_passes() -> list[int]:
    """Return a list into which passes go that are put in order from now on."""
    from perfmodel.strategy import pipelines

    usual, passes = pipelines.linked_pipeline, []

    def linked(order: Any) -> Any:
        passes.append(order.kind.size)
        return usual(order)

    pipelines.linked_pipeline = linked
    return passes


def replay_line(requests: int) -> dict[str, Any]:
    """Replay so many requests, of clients who wait for each answer."""
    from serving import ready

    from perfmodel.serving.replay import replay_trace
    from perfmodel.serving.requests import RequestTrace

    tables, deployments = ready(tensor_parallel=4)
    random = np.random.default_rng(0)
    lengths = random.integers(256, 4097, requests), random.integers(64, 513, requests)
    trace = RequestTrace(np.zeros(requests), *lengths)
    before = cpu_seconds()
    replay_trace(tables, deployments, trace, concurrency=CLIENTS)
    seconds = cpu_seconds() - before
    return measured("requests of a replay", requests, requests, seconds, resource.RUSAGE_SELF)


def trace_line(ranks: int) -> dict[str, Any]:
    """Write a trace of so many ranks, and run it."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "trace")
        strategy = f"--tp 8 --pp 4 --global-batch {ranks // 16} --seq-len 8192".split()
        model = ["--model", "llama-3.1-70b", "--hardware", "dgx-h100", "--devices", str(ranks)]
        how = ["--granularity", "layer", "-o", prefix]
        command = [sys.executable, "-m", "perfmodel"]
        said = subprocess.check_output(
            [*command, "workload", "chakra", *model, *strategy, *how],
            text=True,
            stderr=subprocess.STDOUT,
        )
        subprocess.check_output([*command, "simulate", prefix, "--hardware", "dgx-h100"])
    found = re.search(r"wrote ([\d,]+) nodes", said)
    if not found:
        raise SystemExit(f"no count of nodes in: {said}")
    nodes, usage = int(found[1].replace(",", "")), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime
    return measured("ranks of a trace", ranks, nodes, seconds, resource.RUSAGE_CHILDREN)


def measured(subject: str, value: int, count: int, seconds: float, who: int) -> dict[str, Any]:
    """Return what is printed of a line, with the peak of memory of this process or of others."""
    return {
        "subject": subject,
        "value": value,
        "count": count,
        "pieces": count,
        "cpu_seconds": seconds,
        "rate_per_core": count / seconds,
        "peak_memory_bytes": resource.getrusage(who).ru_maxrss * 1024,
    }


def exponent(lines: list[dict[str, Any]], name: str) -> float | None:
    """Return how CPU time grows with a number; None where either does not.

    What the first line took is a fixed part of all.
    """
    fixed = lines[0]["cpu_seconds"]
    (less, early), (more, late) = ((it[name], it["cpu_seconds"] - fixed) for it in lines[-2:])
    if more <= less or late <= 0.0 or early <= 0.0:
        return None
    return math.log(late / early) / math.log(more / less)


def exponents(lines: list[dict[str, Any]]) -> str:
    """Return the line of the table behind a subject."""
    found = [exponent(lines, name) for name in ("value", "pieces")]
    value, pieces = ("–" if it is None else f"{it:.2f}" for it in found)
    grown = f"{lines[-2]['pieces']:,} to {lines[-1]['pieces']:,}"
    return f"| – exponents | {value} | {pieces}: {grown} | | | |"


def main() -> None:
    """Parse arguments, run the lines, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=tuple(SUBJECTS))
    parser.add_argument("--line", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.line:
        print(json.dumps(line(arguments.line[0], int(arguments.line[1]))))
        return
    found = []
    this = [sys.executable, __file__, "--line"]
    for subject in tuple(SUBJECTS)[len(SWEPT) :]:
        if arguments.only in (None, subject):
            always = os.environ | {"PERFMODEL_JIT": "always"}
            subprocess.check_output([*this, subject, "0"], env=always)  # fills the cache
    for keep in ("best", "all") if arguments.only in (None, *SWEPT) else ():
        warmed(argparse.Namespace(dtype="float32", keep=keep))
    if not arguments.json:
        print("| what grows | to | results | CPU [s] | a second and core | memory [MB] |")
        print("|---|---:|---:|---:|---:|---:|")
    for subject, count in SUBJECTS.items():
        if arguments.only in (None, subject):
            for number in range(count):
                one = json.loads(subprocess.check_output([*this, subject, str(number)], text=True))
                found.append(one)
                if not arguments.json:
                    print(
                        f"| {subject} | {one['value']:,} | {one['count']:,} "
                        f"| {one['cpu_seconds']:.2f} | {one['rate_per_core']:,.0f} "
                        f"| {one['peak_memory_bytes'] / 1e6:,.0f} |"
                    )
            if not arguments.json:
                print(exponents(found[-count:]))
    if arguments.json:
        last = found[-1]
        print(
            json.dumps(
                {
                    "rate_per_core": last["rate_per_core"],
                    "unit": "strategies × rows of hardware, or nodes of traces, /s/core",
                    "count": last["count"],
                    "seconds": last["cpu_seconds"],
                    "lines": found,
                }
            )
        )


if __name__ == "__main__":
    main()
