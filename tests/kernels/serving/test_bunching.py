"""How requests of closed loops come together, against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.bunching import mean_density, mean_turn, most_on_one


@pytest.mark.parametrize("rounds", [2.0, 4.0, 10.0])
def test_density_of_others_about_a_request(rounds: float) -> None:
    random = np.random.default_rng(0)
    low, high, clients = 80, 100, 4000
    times = np.zeros(clients, np.int64)
    found = []
    for _ in range(int(rounds) - 1):
        times += random.integers(low, high + 1, clients)
        counts = np.bincount(times)
        found.append((counts.astype(float) ** 2).sum() / clients**2)
    step = ((high - low + 1) ** 2 - 1) / 12
    assert mean_density(rounds, 0.0, step, 90.0) == pytest.approx(np.mean(found), rel=0.08)


def test_answers_all_alike_stay_together_and_others_spread() -> None:
    assert mean_density(math.inf, 0.0, 0.0, 100.0) == 1.0
    assert mean_density(math.inf, 0.0, 1.0, 100.0) == 0.01
    assert mean_density(1e6, 0.0, 1.0, 100.0) == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("turns", [0.4, 1.0, 2.5, 7.0])
def test_mean_turn(turns: float) -> None:
    places = (np.arange(10_000) + 0.5) / 10_000 * turns
    assert mean_turn(turns) == pytest.approx(np.ceil(places).mean(), rel=1e-3)


def test_ranks_take_requests_in_turn() -> None:
    assert most_on_one(1.0, 8.0) == 1.0
    assert most_on_one(5.0, 1.0) == 5.0
    counts = np.random.default_rng(0).poisson(40.0, 100_000)
    assert most_on_one(40.0, 8.0) == pytest.approx(np.ceil(counts / 8).mean(), rel=0.05)
