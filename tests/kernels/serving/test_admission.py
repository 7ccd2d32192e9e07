"""How many requests fit, counted by hand and by filling a cache with random ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.admission import (
    COUNT,
    MOST_STATES,
    STATES_COLUMNS,
    WEIGHT,
    blocks_needed,
    fill_chain,
    mean_blocks,
    quantile_of_states,
    running_limit,
)
from tests.kernels.serving.cases import deployment, load
from tests.kernels.serving.test_passes import linear_tables


def limit(deployments, loads) -> float:
    return running_limit(deployments, 0, loads, 0)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (1000, 63)])
def test_blocks_of_a_sequence(tokens, blocks):
    assert blocks_needed(tokens, 16.0, 0.0, math.inf) == blocks
    assert blocks_needed(tokens, 16.0, 3.0, math.inf) == blocks + 3
    assert blocks_needed(tokens, 16.0, 0.0, 160.0) == min(blocks, 10)


@pytest.mark.parametrize("window", [math.inf, 300.0, 304.0])
def test_mean_blocks_are_those_of_all_lengths(window):
    lengths = np.arange(200, 700)
    counted = np.mean([blocks_needed(n + 0.5, 16.0, 2.0, window) for n in lengths])
    assert mean_blocks(200.0, 700.0, 16.0, 2.0, window) == pytest.approx(counted, rel=2e-3)


def test_whole_answers_set_aside_fit_so_often():
    held = deployment(admission="guaranteed_no_evict", blocks=1000.0)
    assert limit(held, load()) == 1000 // 128
    assert limit(held, load(input_length=1025.0)) == 1000 // 129


def test_random_lengths_fit_as_often_as_in_a_filled_cache():
    random = np.random.default_rng(3)
    low, high = 500.0, 1000.0
    fitting = []
    running: list[float] = []
    # A request is done when its answer is: longer answers are met more often.
    clock, done = 0.0, []
    waiting = None
    for _ in range(20000):
        while True:
            if waiting is None:
                answer = random.uniform(low, high)
                waiting = answer, math.ceil((random.uniform(low, high) + answer) / 16)
            if sum(running) + waiting[1] > 1000:
                break
            running.append(waiting[1])
            done.append(clock + waiting[0])
            waiting = None
        first = int(np.argmin(done))
        fitting.append((len(done), done[first] - clock))
        clock = done.pop(first)
        running.pop(first)
    count, time = np.array(fitting).T
    simulated = np.sum(count * time) / np.sum(time)
    lengths = load(input_length=high, output_length=high, length_spread=0.5)
    held = deployment(admission="guaranteed_no_evict", blocks=1000.0)
    assert limit(held, lengths) == pytest.approx(simulated, rel=0.02)


def test_blocks_taken_as_they_come_hold_half_of_the_answer():
    assert limit(deployment(), load()) == 1024.0
    found = limit(
        deployment(blocks=1e5, max_sequences=1e6, token_budget=1e6),
        load(input_length=1600.0, output_length=16000.0),
    )
    assert found == pytest.approx(1e5 / 600, rel=2e-3)


def test_an_estimate_lies_between():
    loads = load(input_length=1600.0, output_length=16000.0)
    few = {"blocks": 4e4, "max_sequences": 1e6}
    kinds = ("guaranteed_no_evict", "estimate", "preemption")
    found = [limit(deployment(admission=kind, **few), loads) for kind in kinds]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]


@pytest.mark.parametrize("kind", ["guaranteed_no_evict", "estimate", "preemption"])
def test_one_request_or_none(kind):
    assert limit(deployment(admission=kind, blocks=127.0), load()) == 0.0
    assert limit(deployment(admission=kind, blocks=128.0), load()) == pytest.approx(1.0, abs=0.4)


def test_drafts_states_windows_and_budgets_count():
    some = {"admission": "guaranteed_no_evict", "blocks": 1000.0}
    assert limit(deployment(draft_length=3.0, **some), load()) == 1000 // 129
    assert limit(deployment(state_blocks=72.0, **some), load()) == 1000 // 200
    assert limit(deployment(window_tokens=160.0, **some), load()) == 100
    assert limit(deployment(max_sequences=5.0, **some), load()) == 5
    assert limit(deployment(token_budget=24.0, draft_length=3.0), load()) == 6
    later = deployment(token_budget=24.0, draft_length=3.0, scheduler="prefill_first")
    assert limit(later, load()) == 1024


def chain(rate: float, most: float, lanes: float = 1.0, by_batch: bool = False):
    """Return the states of requests of 100 passes: of 10 ms, or of 10 ms per request."""
    tables = linear_tables()
    tables.body[:] = 0.0
    tables.decode[:] = 0.0
    tables.prefill[:] = 0.0
    tables.head[:] = 0.0
    if by_batch:
        tables.body[0, :, 1] = 1e-2 * tables.tokens
    else:
        tables.body[:, :, 1] = 1e-2
    states = np.zeros((MOST_STATES, STATES_COLUMNS))
    held = deployment("fused", ranks=lanes)
    prompt = (1e-9, 0.0, 10.0)
    filled, held_most = fill_chain(tables, held, 0, prompt, lanes, rate, 100.0, most, states)
    return states[:filled], held_most


@pytest.mark.parametrize("rate", [0.01, 0.7, 4.0, 30.0, 2000.0])
def test_passes_that_always_take_as_long_make_poisson_numbers(rate):
    states, _ = chain(rate, 1e6)
    mean = np.sum(states[:, WEIGHT] * states[:, COUNT])
    variance = np.sum(states[:, WEIGHT] * states[:, COUNT] ** 2) - mean**2
    assert np.sum(states[:, WEIGHT]) == pytest.approx(1.0)
    assert mean == pytest.approx(rate, rel=2e-3)
    assert variance == pytest.approx(rate, rel=2e-2)
    if rate < 5.0:
        for state in states[:8]:
            n = int(state[COUNT])
            poisson = math.exp(-rate) * rate**n / math.factorial(n)
            assert state[WEIGHT] == pytest.approx(poisson, rel=1e-4)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_passes_as_long_as_the_batch_make_one_shared_server(rate):
    states, _ = chain(rate, 1e6, by_batch=True)
    mean = np.sum(states[:, WEIGHT] * states[:, COUNT])
    assert mean == pytest.approx(rate / (1.0 - rate), rel=0.01)
    assert states[0, WEIGHT] == pytest.approx(1.0 - rate, rel=0.01)


def test_places_that_are_all_taken_make_others_wait():
    """M/M/k: the last state holds all that wait, as Erlang's C formula says."""
    states, most = chain(4.0, 6.0)
    assert most == 5.0  # a prompt takes a pass too
    load, places = 4.0, 5
    terms = [load**n / math.factorial(n) for n in range(places)]
    last = load**places / math.factorial(places) / (1 - load / places)
    assert states[-1, WEIGHT] == pytest.approx(last / (sum(terms) + last), rel=1e-6)


def test_no_steady_state():
    assert len(chain(6.1, 6.0)[0]) == 0
    assert len(chain(1.01, 1e6, by_batch=True)[0]) == 0


def test_quantiles_of_wide_states_lie_between_them():
    states, _ = chain(400.0, 1e6)
    assert len(states) < MOST_STATES
    weights = states[:, WEIGHT].copy()
    found = quantile_of_states(states, states[:, COUNT].copy(), weights, len(states), 0.95)
    assert found == pytest.approx(400 + 1.645 * 20, rel=0.005)
