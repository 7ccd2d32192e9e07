"""Random closed loops on deployments as engines run them, and how far two methods lie apart.

Deployments have the tables of passes, caches and limits of `perfmodel.serving.project.prepare`:
dense models and experts, one batch, several in step, stages, drafts, every engine. Loads have
prompts and answers of 16 to 131,072 tokens, spreads to 1 (a quarter of one length, a quarter nearly
so) and 1 to 4,096 clients; one half is the steady part alone, the other ten requests of each
client, with how they begin and end. Seeds below `DEVELOPMENT_SEEDS` were looked at while formulas
were found, others not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.serving import recursion, steady
from perfmodel.kernels.serving.tables import FUSED, ROWS, STABLE, Deployments, Loads, PassTables
from perfmodel.model.presets import load_model
from perfmodel.serving.enumerate import serving_grid
from perfmodel.serving.methods import hard_points
from perfmodel.serving.project import prepare

DEVELOPMENT_SEEDS = 100

# Model, hardware, and degrees.
PLACES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", "dgx-h100", {}),
    ("llama-3.1-70b", "dgx-h200", {"tensor_parallel": [4]}),
    ("llama-3.1-70b", "dgx-h100", {"tensor_parallel": [4], "pipeline_parallel": [2]}),
    ("qwen3-32b", "dgx-b200", {"tensor_parallel": [2], "workers": [1, 2]}),
    ("qwen3-30b-a3b", "dgx-h100", {"tensor_parallel": [2]}),
    ("gpt-oss-120b", "dgx-h200", {"tensor_parallel": [4]}),
    ("deepseek-v3", "dgx-h200", {"attention_data_parallel": [8], "expert_parallel": [8]}),
    ("deepseek-v3", "dgx-b200", {"tensor_parallel": [8], "draft_length": [0, 2]}),
)
ENGINES = ("vllm", "vllm-0.14", "sglang", "sglang-0.5.8", "trtllm")
LIMITS = {"token_budget": [2048, 8192, 16384], "max_sequences": [64, 256, 1024]}
LONGEST, MOST_CLIENTS = 131072, 4096

WANTED = {
    "time_to_first_token_mean": (0.05, 0.12),
    "time_to_first_token_p95": (0.10, 0.25),
    "time_per_output_token_mean": (0.03, 0.08),
    "inter_token_latency_p95": (0.10, 0.25),
    "request_rate": (0.02, 0.06),
}
"""Variable -> what its relative error may be: the median, and the 90th percentile."""


@dataclass(frozen=True)
class Place:
    """Deployments of a model with one engine."""

    name: str
    deployments: Deployments
    tables: PassTables
    longest: int


@dataclass(frozen=True)
class Closed:
    """A random load on a deployment, and what both methods say of it, shape (ROWS,) each."""

    name: str
    deployment: dict[str, float]
    load: dict[str, float]
    closed: np.ndarray
    passes: np.ndarray

    def error(self, name: str) -> float:
        """Return the relative error of a variable."""
        row = ROWS._fields.index(name)
        return float(self.closed[row] / self.passes[row] - 1.0)

    def regimes(self) -> Iterator[str]:
        """Yield what kinds of load it is one of."""
        given, load = self.deployment, self.load
        spread = load["length_spread"]
        yield "all"
        yield "steady part" if load["rounds"] == math.inf else "ten rounds"
        yield f"lengths {'equal' if spread == 1.0 else 'over 0.9' if spread > 0.9 else 'below 0.9'}"
        yield "prompts beside" if given["scheduler"] == FUSED else "prompts first"
        own = load["concurrency"] / given["ranks"] / given["stages"]
        tokens = 0.5 * (1.0 + spread) * (load["input_length"] + load["output_length"])
        room = given["blocks"] * given["block_tokens"] / given["stages"] / tokens
        limit = given["max_sequences"] / given["stages"]
        within = "within all limits" if own <= limit else "beyond the sequences"
        yield "beyond the cache" if own > room and room < limit else within
        yield "chunked prompts" if load["input_length"] > given["token_budget"] else "whole prompts"
        yield "ranks in step" if given["lockstep_ranks"] > 1 else "ranks apart"


def places() -> list[Place]:
    """Return all deployments, by model and engine."""
    found = []
    for model, device, axes in PLACES:
        hardware, spec = load_hardware(device), load_model(model, mtp="stated")
        degrees = {"tensor_parallel": [1], "acceptance": [0.7]} | axes
        for engine in ENGINES:
            ready = prepare(
                serving_grid(spec, hardware, engine=engine, **degrees, **LIMITS), hardware
            )
            if ready.tables is not None and ready.deployments is not None:
                longest = min(spec.max_positions or LONGEST, LONGEST)
                name = f"{model} {device} {engine}"
                found.append(Place(name, ready.deployments, ready.tables, longest))
    return found


def random_load(random: np.random.Generator, longest: int) -> dict[str, float]:
    """Return a load whose requests have at most so many tokens."""

    def between(least: float, most: float) -> float:
        return math.floor(math.exp(random.uniform(math.log(least), math.log(most + 1))))

    prompt = answer = longest
    while prompt + answer > longest:
        prompt, answer = between(16, longest), between(16, longest)
    kind = random.integers(4)
    spread = random.uniform(0.9, 1.0) if kind == 1 else random.uniform(0.01, 1.0)
    return {
        "input_length": prompt,
        "output_length": answer,
        "length_spread": 1.0 if kind == 0 else spread,
        "prefix": 0.0 if random.random() < 0.8 else prompt // 3,
        "concurrency": between(1, MOST_CLIENTS),
        "rounds": 10.0 if random.random() < 0.5 else math.inf,
        "request_rate": 0.0,
        "arrival_variation": 1.0,
    }


def drive(count: int, seed: int) -> list[Closed]:
    """Return so many random loads that both methods answer."""
    every, random = places(), np.random.default_rng(seed)
    found: list[Closed] = []
    while len(found) < count:
        place = every[random.integers(len(every))]
        at = int(random.integers(place.deployments.layout.size))
        load = random_load(random, place.longest)
        one = Deployments(*(column[at : at + 1] for column in place.deployments))
        loads = Loads(*(np.array([float(load[name])]) for name in Loads._fields))
        closed, passes = np.full((2, len(ROWS), 1, 1), math.nan)
        steady.close_points(place.tables, one, loads, closed)
        if closed[ROWS.status, 0, 0] != STABLE:
            continue
        recursion.recurse_points(place.tables, one, loads, passes, *recursion.no_log())
        given = {name: float(column[0]) for name, column in one._asdict().items()}
        found.append(Closed(place.name, given, load, closed[:, 0, 0], passes[:, 0, 0]))
    return found


def errors_by_regime(points: Sequence[Closed]) -> dict[str, dict[str, Any]]:
    """Return medians and 90th percentiles of absolute errors of the variables of `WANTED`."""
    groups: dict[str, list[Closed]] = {}
    for point in points:
        for name in point.regimes():
            groups.setdefault(name, []).append(point)
    found: dict[str, dict[str, Any]] = {}
    for name, members in groups.items():
        found[name] = {"count": len(members)}
        for variable in WANTED:
            errors = np.abs([point.error(variable) for point in members])
            errors = errors[np.isfinite(errors)]
            found[name][variable] = [float(np.quantile(errors, at)) for at in (0.5, 0.9)]
    return found


def is_hard(point: Closed) -> bool:
    """Tell whether it is of a kind that is run pass by pass where a question is small."""
    given = Deployments(*(np.array([point.deployment[name]]) for name in Deployments._fields))
    load = Loads(*(np.array([float(point.load[name])]) for name in Loads._fields))
    return bool(hard_points(given, load)[0, 0])


def errors_by_share(points: Sequence[Closed]) -> dict[str, dict[str, Any]]:
    """Return the same of all with hard ones run, and were so many of the worst recursions."""
    errors = np.array([[abs(point.error(name)) for name in WANTED] for point in points])
    errors = np.nan_to_num(errors)
    order = np.argsort(-(errors / [limits[1] for limits in WANTED.values()]).max(axis=1))
    found = {}
    hard = np.array([is_hard(point) for point in points])
    runs = {f"hard points run, {1.0 - hard.mean():.1%} closed": np.flatnonzero(hard)}
    for share in (0.0, 0.1, 0.2):
        runs[f"{1.0 - share:.0%} closed"] = order[: round(share * len(points))]
    for name, run in runs.items():
        left = errors.copy()
        left[run] = 0.0
        both = np.quantile(left, (0.5, 0.9), axis=0).T.tolist()
        found[name] = {"count": len(points), **dict(zip(WANTED, both, strict=True))}
    return found


def print_errors(title: str, told: dict[str, dict[str, Any]]) -> None:
    """Print a table of medians and 90th percentiles."""
    print(f"\n{title}\n\n| | loads | {' | '.join(WANTED)} |\n{'|---' * (len(WANTED) + 2)}|")
    wanted = " | ".join(f"{100 * a:g} / {100 * b:g} %" for a, b in WANTED.values())
    print(f"| wanted | | {wanted} |")
    for name, row in told.items():
        cells = (f"{100 * row[it][0]:.1f} / {100 * row[it][1]:.0f} %" for it in WANTED)
        print(f"| {name} | {row['count']} | {' | '.join(cells)} |")
