"""Hold the closed form of served models against passes one by one, and those against traces.

Usage::

    python benchmarks/accuracy/serving_recursion.py [--loads N] [--seed N] [--worst N] [--json]

Random loads on random deployments of `LAYOUTS`, every scheduler and admission:

``recursion, replay``   closed loops: lengths spread evenly, and lengths drawn at random
``open, replay``        open loops: the closed form, and a random trace (Poisson) replayed

Errors are relative to the second. Wanted are means within 5 % (2 % of recursion and replay) and
95th percentiles within 15 % (5 %). Then the closed form of closed loops against the recursion over
passes, on the loads of `served_loads`, by regime, and were the worst of them found pass by pass.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from served_loads import drive, errors_by_regime, errors_by_share, print_errors

from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.serving import recursion, steady
from perfmodel.kernels.serving.tables import (
    ADMISSIONS,
    ROWS,
    SCHEDULERS,
    STABLE,
    Deployments,
    Loads,
    PassTables,
)
from perfmodel.kernels.work import kernel_work
from perfmodel.model.presets import load_model
from perfmodel.serving.layouts import KV_FORMATS, LAYOUT_FIELDS, Layouts
from perfmodel.serving.pass_table import pass_tables
from perfmodel.serving.replay import replay_trace
from perfmodel.serving.requests import RequestTrace, random_trace
from perfmodel.software.engine import load_engine

# Model, hardware, tensor parallel, attention data parallel.
LAYOUTS = (
    ("llama-3.1-8b", "dgx-h100", 1, 1),
    ("llama-3.1-70b", "dgx-h200", 4, 1),
    ("qwen3-30b-a3b", "dgx-h100", 2, 1),
    ("deepseek-v3", "dgx-h200", 1, 8),
)
ENGINES = ("vllm", "sglang", "trtllm")
REPLAYED = 3000  # requests, so that random lengths average out
MEANS = ("time_to_first_token", "time_per_output_token", "request_time")
VARIABLES = (
    *(f"{name}_mean" for name in MEANS),
    *(f"{name}_p95" for name in (*MEANS, "inter_token_latency")),
    "request_rate",
    "batch",
)
BETWEEN = ("recursion, replay", "open, replay")
TOLERANCE = {"recursion, replay": (0.02, 0.05), "open, replay": (0.05, 0.15)}
WHOLE = ("layout", "scheduler", "admission", "prefill_layout")


@dataclass(frozen=True)
class Point:
    """One random load on one random deployment."""

    name: str
    tables: PassTables
    deployment: dict[str, float]
    load: dict[str, float]

    def deployments(self) -> Deployments:
        """Return the deployment as kernels take it."""
        return Deployments(
            *(
                np.array([self.deployment[name]], np.int64 if name in WHOLE else np.float64)
                for name in Deployments._fields
            )
        )

    def loads(self, **changes: float) -> Loads:
        """Return the load as kernels take it."""
        load = self.load | changes
        return Loads(*(np.array([float(load[name])]) for name in Loads._fields))

    def text(self) -> str:
        """Return what tells it from others."""
        shown = {
            "scheduler": SCHEDULERS[int(self.deployment["scheduler"])],
            "admission": ADMISSIONS[int(self.deployment["admission"])],
        }
        for name in ("ranks", "lockstep_ranks", "stages", "draft_length"):
            shown[name] = f"{self.deployment[name]:g}"
        for name in ("token_budget", "max_sequences", "blocks"):
            shown[name] = f"{self.deployment[name]:.0f}"
        shown |= {name: f"{value:.4g}" for name, value in self.load.items() if value}
        return f"{self.name}: " + " ".join(f"{name}={value}" for name, value in shown.items())


def layout_tables() -> Iterator[tuple[str, PassTables, tuple[int, int]]]:
    """Yield the tables of every model, a row per engine, and its degrees."""
    for name, device, tensor_parallel, attention in LAYOUTS:
        columns = {field: np.zeros(len(ENGINES), np.int64) for field in LAYOUT_FIELDS}
        columns["engine"] = np.arange(len(ENGINES))
        columns["tensor_parallel"][:] = tensor_parallel
        columns["pipeline_parallel"][:] = 1
        columns["attention_data_parallel"][:] = attention
        columns["expert_parallel"][:] = attention if attention > 1 else 1
        columns["kv_precision"][:] = KV_FORMATS.index("bf16")
        layouts = Layouts([load_engine(engine) for engine in ENGINES], columns)
        hardware = load_hardware(device)
        yield name, pass_tables(load_model(name), layouts, hardware), (tensor_parallel, attention)


def random_points(
    tables: Sequence[tuple[str, PassTables, tuple[int, int]]], count: int, seed: int
) -> Iterator[Point]:
    """Yield random closed loops."""
    random = np.random.default_rng(seed)

    def between(least: float, most: float) -> float:
        return math.floor(math.exp(random.uniform(math.log(least), math.log(most + 1))))

    for _ in range(count):
        name, priced, (tensor_parallel, attention) = tables[random.integers(len(tables))]
        row = int(random.integers(len(ENGINES)))
        engine = load_engine(ENGINES[row])
        prompt, answer = between(64, 16384), between(16, 2048)
        concurrency = between(1, 512)
        drafted = int(random.choice([0, 0, 0, 1, 3]))
        whole = math.ceil((prompt + answer + drafted) / engine.block_tokens)
        workers = int(random.choice([1, 1, 1, 2]))
        ranks = workers * attention
        own = max(concurrency / ranks, 1.0)
        # Every fourth cache is too small for all; some slots are fewer than clients.
        room = random.uniform(0.3, 1.0) if random.random() < 0.25 else 3.0
        slots = own * random.uniform(0.3, 1.0) if random.random() < 0.15 else engine.max_sequences
        deployment = {
            "layout": row,
            "scheduler": SCHEDULERS.index(engine.scheduler),
            "admission": ADMISSIONS.index(engine.admission),
            "ranks": ranks,
            "lockstep_ranks": attention,
            "stages": 1,
            "devices": ranks * tensor_parallel,
            "token_budget": int(random.choice([2048, 8192, 16384])),
            "max_sequences": max(math.floor(slots), 1),
            "blocks": max(math.floor(room * own * whole), 2 * whole),
            "block_tokens": engine.block_tokens,
            "state_blocks": 0,
            "window_tokens": math.inf,
            "draft_length": drafted,
            "acceptance": random.uniform(0.5, 0.9),
            "request_host": engine.request_host,
            "token_host": engine.token_host,
            "output_host": engine.output_host,
            "prefill_layout": -1,
        }
        deployment |= {name: 0 for name in Deployments._fields if name not in deployment}
        load = {
            "input_length": prompt,
            "output_length": answer,
            "length_spread": float(random.choice([0.5, 0.8, 0.8, 1.0])),
            "prefix": 0.0 if random.random() < 0.7 else prompt // 3,
            "concurrency": concurrency,
            "rounds": 10,
            "request_rate": 0.0,
            "arrival_variation": 1.0,
        }
        yield Point(name, priced, deployment, load)


def found(kernel: Any, point: Point, **changes: float) -> dict[str, float]:
    """Return what a kernel says of a point."""
    out = np.full((len(ROWS), 1, 1), math.nan)
    more = recursion.no_log() if kernel is recursion.recurse_points else ()
    kernel(point.tables, point.deployments(), point.loads(**changes), out, *more)
    return dict(zip(ROWS._fields, out[:, 0, 0].tolist(), strict=True))


def lengths(point: Point, count: int, random: np.random.Generator) -> tuple[Any, Any]:
    """Return random lengths of prompts, what the cache holds of them apart, and of answers."""
    drawn = []
    for name in ("input_length", "output_length"):
        longest = point.load[name]
        least = max(math.floor(point.load["length_spread"] * longest), 1)
        drawn.append(random.integers(least, longest + 1, count))
    return drawn[0], drawn[1]


def replayed_clients(point: Point, seed: int) -> dict[str, float]:
    """Return the means over runs of a closed loop with random lengths."""
    random = np.random.default_rng(seed)
    clients = int(point.load["concurrency"])
    count = clients * int(point.load["rounds"])
    runs = []
    for _ in range(math.ceil(REPLAYED / count)):
        trace = RequestTrace(np.zeros(count), *lengths(point, count, random))
        runs.append(
            replay_trace(point.tables, point.deployments(), trace, concurrency=clients).summary
        )
    return {name: float(np.mean([run[name] for run in runs])) for name in VARIABLES}


def replayed_arrivals(point: Point, rate: float, seed: int) -> dict[str, float]:
    """Return what becomes of random requests that come at a rate."""
    trace = random_trace(2 * REPLAYED, rate, 1, 1, seed=seed)
    drawn = lengths(point, len(trace), np.random.default_rng(seed))
    return dict(
        replay_trace(point.tables, point.deployments(), RequestTrace(trace.arrival, *drawn)).summary
    )


def errors(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Return relative errors of one against another."""
    return {name: one[name] / other[name] - 1.0 for name in VARIABLES}


def compared(points: Sequence[Point], seed: int) -> dict[str, list[tuple[Point, dict[str, float]]]]:
    """Return the errors of every comparison."""
    random = np.random.default_rng(seed)
    results: dict[str, list[tuple[Point, dict[str, float]]]] = {name: [] for name in BETWEEN}
    for number, point in enumerate(points):
        passes = found(recursion.recurse_points, point)
        if not passes["status"] <= STABLE:
            continue
        alone = point.load["prefix"] == 0.0
        if alone and point.load["concurrency"] % point.deployment["ranks"] == 0:
            replayed = replayed_clients(point, number)
            results["recursion, replay"].append((point, errors(passes, replayed)))
        if not alone:
            continue
        rate = passes["request_rate"] * random.uniform(0.1, 0.9)
        opened = Point(
            point.name,
            point.tables,
            point.deployment,
            point.load | {"concurrency": 0.0, "rounds": 0.0, "request_rate": rate},
        )
        closed = found(steady.close_points, opened)
        if closed["status"] == STABLE:
            replayed = replayed_arrivals(opened, rate, number)
            results["open, replay"].append((opened, errors(closed, replayed)))
    return results


def summary(results: dict[str, list[tuple[Point, dict[str, float]]]], worst: int) -> dict[str, Any]:
    """Return statistics of all comparisons as JSON takes them."""
    told: dict[str, Any] = {}
    for between, rows in results.items():
        told[between] = {"count": len(rows)}
        for name in VARIABLES if rows else ():
            values = np.array([abs(found[name]) for _, found in rows])
            order = np.argsort(-np.nan_to_num(values, nan=np.inf))[:worst]
            tolerance = TOLERANCE[between][name.endswith("p95")]
            told[between][name] = {
                "median": float(np.nanmedian(values)),
                "mean": float(np.nanmean(values)),
                "p90": float(np.nanquantile(values, 0.9)),
                "worst": float(np.nanmax(values)),
                "bias": float(np.nanmean([found[name] for _, found in rows])),
                "wanted": tolerance,
                "within": float(np.mean(values <= tolerance)),
                "worst_loads": [
                    {"error": rows[at][1][name], "load": rows[at][0].text()} for at in order
                ],
            }
    return told


def main() -> int:
    """Print the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--loads", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worst", type=int, default=2, help="loads that are shown per variable")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with kernel_work(recursions=arguments.loads, served_requests=arguments.loads * REPLAYED):
        points = list(random_points(list(layout_tables()), arguments.loads, arguments.seed))
        told = summary(compared(points, arguments.seed), arguments.worst)
        closed = drive(2 * arguments.loads, arguments.seed)
    told["closed, recursion"] = errors_by_regime(closed)
    told["closed, by share"] = errors_by_share(closed)
    if arguments.json:
        print(json.dumps(told, indent=1))
        return 0
    for between in BETWEEN:
        rows = told[between]
        print(f"\n{between}: {rows['count']} loads\n")
        print("| variable | median | mean | p90 | worst | bias | within |")
        print("|---" * 7 + "|")
        for name in VARIABLES if rows["count"] else ():
            one = rows[name]
            cells = (
                f"{100 * one[key]:.1f} %" for key in ("median", "mean", "p90", "worst", "bias")
            )
            share = f"{100 * one['within']:.0f} % in {100 * one['wanted']:g} %"
            print(f"| {name} | {' | '.join(cells)} | {share} |")
        for name in VARIABLES if rows["count"] else ():
            for one in rows[name]["worst_loads"]:
                print(f"{name} {100 * one['error']:+.1f} %  {one['load']}")
    print_errors("closed form, recursion: median / 90th percentile", told["closed, recursion"])
    print_errors("the same, with the worst points found pass by pass", told["closed, by share"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
