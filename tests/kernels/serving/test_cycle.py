"""Cycles of clients: who decodes, how much room prompts have, with how many others they come."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.cycle import (
    Crowd,
    Cycle,
    crowd_of,
    cycle_of,
    in_step,
    mean_density,
    mean_turn,
    most_on_one,
    put_back_of,
)
from tests.kernels.serving.cases import deployment, load, pass_tables


def cycle(scheduler: str = "fused", limit: float = 1e9, **values: float) -> Cycle:
    mine = {key: values.pop(key) for key in ("token_budget", "stages") if key in values}
    deployments = deployment(scheduler, **mine)
    return cycle_of(pass_tables(), deployments, 0, load(**values), 0, limit, 1.0)


def crowd(**values: float) -> Crowd:
    return crowd_of(cycle(**values))


def test_no_more_tokens_run_than_passes_have_room_for() -> None:
    busy = cycle(token_budget=512.0, output_length=101.0, concurrency=256.0)
    prompts = busy.decoding / busy.passes * busy.new
    assert prompts + busy.decoding == pytest.approx(512.0)
    assert busy.decoding < 64.0
    assert cycle("prefill_first", concurrency=256.0, output_length=101.0).decoding == 256.0


def test_stages_divide_clients() -> None:
    assert cycle(concurrency=64.0, stages=4.0).clients == 16.0
    assert cycle(concurrency=2.0, stages=4.0).clients == 1.0
    assert cycle(concurrency=64.0, stages=4.0, limit=32.0).slots == 8.0


def test_all_alike_stay_together_where_decoding_waits() -> None:
    together = crowd(scheduler="prefill_first", concurrency=32.0)
    assert together.with_me == pytest.approx(32.0)
    assert together.turns == pytest.approx(4.0)
    one_by_one = crowd(scheduler="fused", concurrency=32.0)
    assert one_by_one.with_me == pytest.approx(8.0, rel=0.02)


def test_prompts_in_the_steady_state_come_at_random() -> None:
    even = crowd(concurrency=32.0, length_spread=0.2, rounds=math.inf)
    assert even.local == pytest.approx(even.even)
    assert even.mixed == pytest.approx(-math.expm1(-even.even))
    assert even.mixed * even.held == pytest.approx(even.even)
    few = crowd(concurrency=32.0, length_spread=0.9, rounds=2.0)
    assert few.local > 1.5 * few.even


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
    assert mean_density(math.inf, 0.0, 100.0, 100.0) == 0.01
    assert mean_density(math.inf, 0.0, 1.0, 100.0) == pytest.approx(0.052, rel=0.01)
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


def test_who_is_put_back_waits_behind_the_first_token() -> None:
    share, again, piece = put_back_of(200.0, 10_000.0, 100.0, 400.0, 400.0, 0.5, True)
    assert 0.1 < share < 1.0
    assert again == pytest.approx(10_000.0, rel=0.01)  # all of an answer is computed once more
    assert 200.0 < piece < 600.0
    # Prompts that fill the cache leave nothing to put back, answers of one length most.
    assert put_back_of(10_000.0, 20.0, 100.0, 400.0, 400.0, 0.5, True)[0] < 1e-3
    assert put_back_of(200.0, 10_000.0, 100.0, 400.0, 400.0, 1.0, True)[0] > share
    assert put_back_of(200.0, 10_000.0, 100.0, 400.0, 400.0, 0.5, False)[0] < share
    assert put_back_of(200.0, 10_000.0, 100.0, 0.0, 0.0, 0.5, True) == (0.0, 0.0, 200.0)


def test_ranks_in_step_overlap_their_prompts() -> None:
    stretch, mixed, held = in_step(0.01, 10.0, 1.0, 8.0)
    assert stretch == pytest.approx(1.1, rel=0.01)
    assert mixed == pytest.approx(1.0 - (1.0 - 0.1 / 1.1) ** 8, rel=0.02)
    assert held == 1.0
    # One rank alone: passes with prompts are those of its own.
    assert in_step(0.01, 10.0, 1.0, 1.0)[1] == pytest.approx(0.1 / 1.1, rel=0.01)
