"""Look for served points that break a law, as many as one asks for.

::

    python benchmarks/served_physics.py --count 100000 [--seed N] [--rounds]

Random deployments of a model on a profile with an engine, each under random loads (closed loops, in
closed form). A law compares a point with itself (percentiles are in order, parts add up, no pass is
faster than its weights are read) or with one that differs in one thing (a client or many more,
a longer prompt or answer, more memory, faster links). Prints, law by law, how many points were
compared, how many bend it beyond rounding, the worst and where it is. Exit status 1 where one
exceeds its bound; why a bound is not 0 stands beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles import Hardware, list_hardware, load_hardware
from perfmodel.kernels.serving.tables import ROWS
from perfmodel.model.presets import load_model
from perfmodel.serving.enumerate import load_grid, serving_grid
from perfmodel.serving.grid import VALID, DeploymentGrid, LoadGrid
from perfmodel.serving.project import Points, project_points

MODELS = (
    *("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "mixtral-8x7b", "qwen3-30b-a3b"),
    *("gpt-oss-120b", "deepseek-v3", "deepseek-v3.2", "gemma-2-27b", "falcon-h1-0.5b"),
)
ENGINES = ("vllm", "vllm-0.14", "sglang", "sglang-0.5.8", "trtllm")
TIMES = ("time_to_first_token", "time_per_output_token", "inter_token_latency", "request_time")
REQUEST = "request_time_mean"
LOADS, ROUNDING = 24, 1e-9
GRAPH_EDGE = 0.9
"""Share of the largest captured pass from which on some of a point's passes may be larger."""
Excess = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Deployments of a model on a profile under loads."""

    grid: DeploymentGrid
    loads: LoadGrid
    hardware: Hardware

    def points(self, hardware: Hardware | None = None, **changes: Any) -> Points:
        """Project them, with other hardware or other columns of loads."""
        columns = {**self.loads.columns, **changes}
        return project_points(self.grid, LoadGrid(columns), hardware or self.hardware)

    def text(self, deployment: int, load: int) -> str:
        """Return one of the points in words."""
        row = self.grid.row(deployment) | self.loads.row(load)
        told = " ".join(f"{name}={value}" for name, value in row.items() if value)
        return f"{self.grid.model.name} on {self.hardware.name}: {told}"


@dataclass(frozen=True)
class Law:
    """What holds of points, by how much it may bend [relative], and why."""

    name: str
    bound: float
    measure: Callable[[Case, Points], Excess]
    why: str = ""


def value(points: Points, name: str) -> NDArray[np.float64]:
    """Return a variable, NaN where there is no answer."""
    found: NDArray[np.float64] = points.values[ROWS._fields.index(name)]
    return np.where(points.status == VALID, found, np.nan)


def ordered(case: Case, base: Points) -> Excess:
    """Percentiles grow."""
    worst = np.zeros(base.status.shape)
    for name in TIMES:
        p50, p95, p99 = (value(base, f"{name}_{at}") for at in ("p50", "p95", "p99"))
        worst = np.fmax(worst, np.fmax(p50 / p95, p95 / p99) - 1.0)
    return worst


def memory_adds_up(case: Case, base: Points) -> Excess:
    """Parts of memory are the whole."""
    memory = base.memory
    parts = memory.weights + memory.activations + memory.workspace + memory.cache
    return np.repeat(np.abs(parts / memory.total - 1.0)[:, None], len(case.loads), axis=1)


def weights_are_read(case: Case, base: Points) -> Excess:
    """A token takes at least as long as the weights of a device are read, of dense models."""
    if case.grid.model.has_experts:
        return np.full(base.status.shape, np.nan)
    rate = float(case.hardware.device.memory.bandwidth)
    gained = 1.0 + case.grid["draft_length"]
    least = base.memory.weights * case.grid["pipeline_parallel"] / rate / gained
    embedding = 1.0 - 2.0 * case.grid.model.embedding_parameters() / np.maximum(
        base.memory.weights, 1.0
    )
    return (
        least[:, None]
        * np.maximum(embedding, 0.0)[:, None]
        / value(base, "time_per_output_token_mean")
        - 1.0
    )


def within_peak(case: Case, base: Points) -> Excess:
    """All tokens a second take no more FLOP than the device's fastest matrix rate gives."""
    active = case.grid.model.active_parameter_count(include_embeddings=False)
    tokens = value(base, "total_tokens_per_second_per_device")
    return 2.0 * active * tokens / max(case.hardware.device.peak_flops.values()) - 1.0


def leaves_graphs(case: Case, one: Points, other: Points) -> NDArray[np.bool_]:
    """Whether passes that decode are captured at one point and launched one by one at another."""
    grid = case.grid
    limit = np.array([engine.graph_limit for engine in grid.engines])[grid["engine"]]
    each = (limit * grid["pipeline_parallel"] / (1 + grid["draft_length"]))[:, None]
    return (value(one, "batch") <= each) & (value(other, "batch") > GRAPH_EDGE * each)


def less(
    name: str, graphs: bool = False, **changes: Callable[[NDArray[Any]], NDArray[Any]]
) -> Callable[..., Excess]:
    """Return a measure: by how much a variable is less after columns of loads grow.

    Of points whose passes leave captured graphs by it, or of all others.
    """

    def measure(case: Case, base: Points) -> Excess:
        new = case.points(**{key: change(case.loads[key]) for key, change in changes.items()})
        excess = value(base, name) / value(new, name) - 1.0
        return np.where(leaves_graphs(case, base, new) == graphs, excess, np.nan)

    return measure


def more_memory(case: Case, base: Points) -> Excess:
    """Half as much memory again, no less throughput."""
    name = "device.memory.capacity"
    better = case.hardware.with_values({name: 1.5 * float(case.hardware.device.memory.capacity)})
    new = case.points(better)
    excess = value(base, "request_rate") / value(new, "request_rate") - 1.0
    return np.where(leaves_graphs(case, base, new), np.nan, excess)


def faster_links(case: Case, base: Points) -> Excess:
    """Links twice as fast, no slower requests."""
    levels = case.hardware.system.network
    names = [f"system.network.{at}.bandwidth" for at in range(len(levels))]
    faster = {name: 2.0 * float(case.hardware.value(name)) for name in names}
    better = case.points(case.hardware.with_values(faster))
    return value(better, "request_time_mean") / value(base, "request_time_mean") - 1.0


def one_more(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return each and one."""
    return numbers + 1


def twice(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return each twice."""
    return 2 * numbers


def longer(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return each and a quarter, and one."""
    return numbers + numbers // 4 + 1


GRAPHS = (
    "beyond the largest captured pass an engine launches operation by operation, as real ones do"
)
LAWS = (
    Law("percentiles are in order", 0.0, ordered),
    Law("parts of memory add up", 0.0, memory_adds_up),
    Law("weights are read for every token", 0.0, weights_are_read),
    Law("throughput is within the peak", 0.0, within_peak),
    Law("one client more, no less throughput", 0.02, less("request_rate", concurrency=one_more)),
    Law("twice the clients, no less throughput", 0.02, less("request_rate", concurrency=twice)),
    Law(
        "one client more, out of captured graphs",
        2.0,
        less("request_rate", True, concurrency=one_more),
        GRAPHS,
    ),
    Law(
        "twice the clients, out of captured graphs",
        2.0,
        less("request_rate", True, concurrency=twice),
        GRAPHS,
    ),
    Law("a longer answer, no shorter request", 0.0, less(REQUEST, output_length=one_more)),
    Law("a longer prompt, no shorter request", 0.0, less(REQUEST, input_length=longer)),
    Law("more memory, no less throughput", 0.0, more_memory),
    Law("faster links, no longer request", 0.0, faster_links),
)


def cases(count: int, seed: int, rounds: bool) -> Iterator[Case]:
    """Yield random cases with so many points together."""
    random, profiles = np.random.default_rng(seed), list(list_hardware())
    left = count
    while left > 0:
        model = load_model(str(random.choice(MODELS)), mtp="stated")
        try:
            hardware = load_hardware(str(random.choice(profiles)))
            grid = serving_grid(
                model,
                hardware,
                engine=str(random.choice(ENGINES)),
                tensor_parallel=[1, 2, 4, 8],
                pipeline_parallel=[1, int(random.choice([1, 2]))],
                max_sequences=[int(random.choice([64, 256, 1024]))],
            )
            case = Case(grid, random_loads(random, rounds), hardware)
            points = case.points()
        except PerfModelError:
            continue
        if (points.status == VALID).any():
            left -= int((points.status == VALID).sum())
            yield case


def random_loads(random: np.random.Generator, rounds: bool) -> LoadGrid:
    """Return random closed loops."""
    one = load_grid(concurrency=1).columns
    columns = {name: np.repeat(column, LOADS) for name, column in one.items()}

    def between(least: float, most: float) -> NDArray[np.float64]:
        return np.floor(np.exp(random.uniform(np.log(least), np.log(most + 1), LOADS)))

    kinds = {name: column.dtype for name, column in columns.items()}
    drawn = {
        "input_length": between(16, 32768),
        "output_length": between(2, 8192),
        "concurrency": between(1, 4096),
        "length_spread": np.where(random.random(LOADS) < 0.4, 1.0, random.uniform(0.1, 1.0, LOADS)),
        "rounds": np.full(LOADS, 10.0 if rounds else 0.0),
    }
    return LoadGrid(columns | {name: it.astype(kinds[name]) for name, it in drawn.items()})


def main() -> int:
    """Examine the laws and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20000, help="points that are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", action="store_true", help="ten of each client, not endless")
    options = parser.parse_args()
    compared = dict.fromkeys((law.name for law in LAWS), 0)
    bent = {law.name: [0, 0, 0.0, ""] for law in LAWS}
    for case in cases(options.count, options.seed, options.rounds):
        base = case.points()
        for law in LAWS:
            excess = law.measure(case, base)
            known = np.isfinite(excess)
            compared[law.name] += int(known.sum())
            told: list[Any] = bent[law.name]
            told[0] += int((excess[known] > ROUNDING).sum())
            told[1] += int((excess[known] > law.bound + ROUNDING).sum())
            if known.any() and np.nanmax(excess) > told[2]:
                at = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
                told[2:] = [float(np.nanmax(excess)), case.text(int(at[0]), int(at[1]))]
    print("| law | compared | bent | beyond its bound | worst | bound |")
    print("|---" + "|---:" * 5 + "|")
    for law in LAWS:
        some, broken, worst, _ = bent[law.name]
        counts = f"{compared[law.name]:,} | {some:,} | {broken:,}"
        print(f"| {law.name} | {counts} | {worst:.3g} | {law.bound:g} |")
    for law in LAWS:
        if bent[law.name][0]:
            print(f"\n{law.name}: {bent[law.name][3]}" + (f" ({law.why})" if law.why else ""))
    return int(any(bent[law.name][1] for law in LAWS))


if __name__ == "__main__":
    sys.exit(main())
