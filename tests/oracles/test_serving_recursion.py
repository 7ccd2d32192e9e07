"""Closed loops three ways: lengths drawn at random and replayed, spread evenly, in closed form.

Over thousands of loads: ``benchmarks/accuracy/serving_recursion.py``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving import recursion
from perfmodel.kernels.serving.tables import ROWS
from perfmodel.serving.replay import replay_trace
from perfmodel.serving.requests import RequestTrace
from tests.kernels.serving.cases import deployment, load, pass_tables

TABLES = pass_tables()
HOSTS = {"request_host": 5e-3, "token_host": 1e-6, "output_host": 1e-3}
LOADS = [
    # scheduler, admission, limits, prompt, answer, clients
    ("fused", "preemption", {}, 1024, 128, 1),
    ("fused", "preemption", {}, 1024, 128, 8),
    ("fused", "preemption", {"token_budget": 2048.0}, 4096, 64, 24),
    ("fused", "guaranteed_no_evict", {"max_sequences": 12.0}, 512, 96, 24),
    ("fused", "guaranteed_no_evict", {"blocks": 700.0}, 900, 100, 16),
    ("fused", "preemption", {"blocks": 900.0}, 700, 200, 24),
    ("prefill_first", "estimate", {}, 512, 160, 12),
    ("prefill_first", "estimate", {"blocks": 900.0}, 700, 200, 24),
    ("prefill_first", "estimate", {"draft_length": 2.0, "acceptance": 0.7}, 300, 120, 16),
    ("fused", "preemption", {"draft_length": 1.0, "acceptance": 0.9}, 300, 120, 6),
]
ROUNDS = 10
NAMES = (
    *("time_to_first_token", "time_per_output_token", "inter_token_latency", "request_time"),
    "request_rate",
    "batch",
)


def replayed(deployments, prompt: int, answer: int, clients: int) -> dict[str, float]:
    """Means over runs with random lengths."""
    random = np.random.default_rng(clients)
    runs = []
    count = clients * ROUNDS
    for _ in range(math.ceil(800 / count)):
        lengths = (random.integers(int(0.8 * it), it + 1, count) for it in (prompt, answer))
        trace = RequestTrace(np.zeros(count), *lengths)
        runs.append(replay_trace(TABLES, deployments, trace, concurrency=clients).summary)
    return {name: float(np.mean([run[name] for run in runs])) for name in ROWS._fields}


@pytest.fixture(scope="module")
def both() -> list[tuple[dict[str, float], dict[str, float]]]:
    """Every load by the recursion and replayed."""
    pairs = []
    for scheduler, admission, limits, prompt, answer, clients in LOADS:
        deployments = deployment(scheduler, admission, **HOSTS, **limits)
        loads = load(
            input_length=float(prompt),
            output_length=float(answer),
            length_spread=0.8,
            concurrency=float(clients),
            rounds=float(ROUNDS),
        )
        out = np.empty((len(ROWS), 1, 1))
        recursion.recurse_points(TABLES, deployments, loads, out, *recursion.no_log())
        found = dict(zip(ROWS._fields, out[:, 0, 0].tolist(), strict=True))
        pairs.append((found, replayed(deployments, prompt, answer, clients)))
    return pairs


def differences(pairs, name: str) -> np.ndarray:
    return np.array([abs(one[name] / other[name] - 1.0) for one, other in pairs])


def test_lengths_spread_evenly_stand_for_random_ones(both) -> None:
    for name in NAMES:
        mean = name if name in ROWS._fields else f"{name}_mean"
        assert differences(both, mean).mean() < 0.02, mean
        assert differences(both, mean).max() < 0.08, mean
        if mean != name:
            # Where five of a hundred gaps hold a prompt, the percentile is at a step.
            assert np.sort(differences(both, f"{name}_p95"))[:-1].mean() < 0.05, name


def test_nothing_is_lost_in_a_closed_loop(both) -> None:
    # Little's law over the whole run, with its end, when ever fewer are under way.
    for (found, _), (*_, clients) in zip(both, LOADS, strict=True):
        under_way = found["request_rate"] * found["request_time_mean"]
        assert 0.8 * clients < under_way <= clients * 1.001
        assert found["utilization"] <= 1.0
