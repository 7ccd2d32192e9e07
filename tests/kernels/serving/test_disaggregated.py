"""Two pools: limits, capacities, Little's law, and requests played through both."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from perfmodel.kernels.serving.disaggregated import close_disaggregated, prompt_pool
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import NO_ROOM, ROWS, STABLE, UNSTABLE
from tests.kernels.serving.cases import deployment, load
from tests.kernels.serving.test_open import tables

TABLES = tables()


def pools(prefill: float = 1.0, decode: float = 1.0, **values):
    """So many workers of one device each."""
    fields = {
        "prefill_layout": 0,
        "prefill_ranks": prefill,
        "ranks": decode,
        "devices": prefill + decode,
    }
    return deployment(**(fields | values))


def close(deployments, loads):
    """Return the variables of one point."""
    out = np.zeros((len(ROWS), 1, 1))
    close_disaggregated(TABLES, deployments, 0, loads, 0, out)
    return out[:, 0, 0]


def arriving(rate: float, **values):
    return load(**{"request_rate": rate, "concurrency": 0.0, "output_length": 64.0} | values)


def prompt_time(count: float = 1.0, tokens: float = 1024.0) -> float:
    return pass_times(TABLES, 0, count, tokens, 0.0, 0.0, 0.0, 1.0, count)[0]


def token_time(batch: float = 1.0, context: float = 1056.0) -> float:
    return pass_times(TABLES, 0, 0.0, 0.0, 0.0, batch, context, 1.0, 0.0)[0]


@pytest.mark.parametrize("loads", [arriving(1e-9), load(concurrency=1.0, output_length=64.0)])
def test_one_request_is_alone(loads):
    held = pools(3.0, 2.0, transfer_latency=0.01, transfer_time=1e-6, request_host=0.003)
    found = close(held, loads)
    first = prompt_time() + 0.01 + 1024e-6 + 0.003 + token_time()
    assert found[ROWS.status] == STABLE
    for row in (ROWS.time_to_first_token_mean, ROWS.time_to_first_token_p99):
        assert found[row] == pytest.approx(first, rel=1e-6)
    assert found[ROWS.time_per_output_token_mean] == pytest.approx(token_time(), rel=1e-6)
    assert found[ROWS.request_time_mean] == pytest.approx(first + 63 * token_time(), rel=1e-6)


@pytest.mark.parametrize("clients", [1.0, 7.0, 60.0, 900.0])
@pytest.mark.parametrize("rounds", [10.0, math.inf])
def test_clients_and_their_requests_agree(clients, rounds):
    found = close(pools(2.0, 4.0), load(concurrency=clients, rounds=rounds, output_length=64.0))
    busy = found[ROWS.request_rate] * found[ROWS.request_time_mean]
    assert busy <= clients * (1 + 1e-6)
    if rounds == math.inf:
        assert busy == pytest.approx(clients, rel=1e-6)
    stay = found[ROWS.request_time_mean] - found[ROWS.time_to_first_token_mean]
    assert found[ROWS.batch] * 4 == pytest.approx(found[ROWS.request_rate] * stay, rel=1e-9)
    tokens = found[ROWS.request_rate] * 64 / 6
    assert found[ROWS.tokens_per_second_per_device] == pytest.approx(tokens)


def test_the_smaller_pool_is_the_bottleneck():
    """Many clients: as many requests as the pool of prompts runs, with full passes."""
    loads = load(concurrency=4000.0, output_length=4.0)
    found = close(pools(2.0, 8.0), loads)
    capacity = 2 * 8 / prompt_time(8.0)
    assert found[ROWS.request_rate] == pytest.approx(capacity, rel=0.01)
    assert found[ROWS.utilization] == pytest.approx(1.0, abs=0.02)
    assert found[ROWS.request_rate] * found[ROWS.request_time_mean] == pytest.approx(4000, rel=0.01)
    few = close(pools(20.0, 1.0, max_sequences=16.0), load(concurrency=4000.0))
    capacity = 16 / (1023 * token_time(16.0, 1536.0))
    assert few[ROWS.request_rate] == pytest.approx(capacity, rel=0.01)


def test_pools_of_any_number_do_as_one_of_each():
    """Twice the workers with twice the clients: as fast, but waits are shorter."""
    one = close(pools(1.0, 2.0), load(concurrency=30.0, output_length=128.0))
    two = close(pools(2.0, 4.0), load(concurrency=60.0, output_length=128.0))
    assert two[ROWS.request_rate] == pytest.approx(2 * one[ROWS.request_rate], rel=0.02)
    assert two[ROWS.time_per_output_token_mean] == pytest.approx(
        one[ROWS.time_per_output_token_mean], rel=0.01
    )
    assert two[ROWS.time_to_first_token_mean] <= one[ROWS.time_to_first_token_mean]


def test_ranks_in_step_run_as_many_prompts_and_begin_together():
    free = close(pools(4.0, 8.0), arriving(100.0))
    stepped = close(pools(4.0, 8.0, prefill_lockstep_ranks=4.0), arriving(100.0))
    assert stepped[ROWS.time_to_first_token_mean] > free[ROWS.time_to_first_token_mean]
    for ranks in (1.0, 4.0):
        capacity = 4 * 8 / prompt_time(8.0)
        held = pools(4.0, 40.0, prefill_lockstep_ranks=ranks)
        assert close(held, arriving(0.9 * capacity))[ROWS.status] == STABLE
        assert close(held, arriving(1.02 * capacity))[ROWS.status] == UNSTABLE


def test_rates_beyond_a_pool_have_no_steady_state():
    capacity = 8 / prompt_time(8.0)
    assert close(pools(1.0, 9.0), arriving(0.99 * capacity))[ROWS.status] == STABLE
    beyond = close(pools(1.0, 9.0), arriving(1.01 * capacity))
    assert beyond[ROWS.status] == UNSTABLE
    assert np.all(np.isnan(beyond[: ROWS.status]))
    slow = close(pools(9.0, 1.0, max_sequences=4.0), arriving(20.0))
    assert slow[ROWS.status] == UNSTABLE
    assert close(pools(blocks=60.0), arriving(1.0))[ROWS.status] == NO_ROOM


def test_more_requests_wait_longer():
    rates = [0.1, 3.0, 20.0, 60.0, 85.0]
    points = [close(pools(), arriving(rate)) for rate in rates]
    for name in ("time_to_first_token", "time_per_output_token", "request_time"):
        for level in ("mean", "p95", "p99"):
            values = [point[getattr(ROWS, f"{name}_{level}")] for point in points]
            assert np.all(np.diff(values) > -1e-9), (name, level)


def test_one_prompt_at_a_time_waits_as_pollaczek_and_khinchine_say():
    capacity, found, left, wait, company = prompt_pool((0.0, 0.1, 1.0), 1.0, 6.0, 1.0, 0.0)
    assert (capacity, left, company) == (10.0, 0.0, 0.0)
    assert found == pytest.approx(0.6)
    assert wait == pytest.approx(0.6 * 0.1 / (2 * 0.4))


def played(clients: int, prefill: int, decode: int, requests: int, spread: float, rate: float):
    """Play requests through both pools: prompts share passes, answers share batches."""
    random = np.random.default_rng(7)
    events: list[tuple[float, int, str, int]] = []
    waiting: list[tuple[float, int]] = []
    batches: list[list[list[float]]] = [[] for _ in range(decode)]
    idle_prefill, busy = list(range(prefill)), [False] * decode
    first, per_token, order, started = [], [], 0, 0
    if clients:
        arrivals = [0.0] * clients
    else:
        arrivals = list(np.cumsum(random.exponential(1 / rate, requests)))
    for moment in arrivals:
        heapq.heappush(events, (moment, order := order + 1, "arrive", 0))
        started += 1

    def start_decode(worker: int, now: float) -> None:
        nonlocal order
        if batches[worker]:
            busy[worker] = True
            took = token_time(float(len(batches[worker])), 1056.0)
            heapq.heappush(events, (now + took, order := order + 1, "decode", worker))

    prompts: dict[int, list[tuple[float, int]]] = {}
    while events:
        now, _, kind, worker = heapq.heappop(events)
        if kind == "arrive":
            waiting.append((now, 0))
        elif kind == "prefill":
            idle_prefill.append(worker)
            for came, _ in prompts.pop(worker):
                first.append(now - came)
                least = min(range(decode), key=lambda w: len(batches[w]))
                batches[least].append([round(random.uniform(spread, 1) * 64) - 1, now, 0.0])
                if not busy[least]:
                    start_decode(least, now)
        else:
            busy[worker] = False
            for one in list(batches[worker]):
                one[2] += 1
                if one[2] >= one[0]:
                    per_token.append((now - one[1]) / one[0])
                    batches[worker].remove(one)
                    if clients and started < requests:
                        heapq.heappush(events, (now, order := order + 1, "arrive", 0))
                        started += 1
            start_decode(worker, now)
        while waiting and idle_prefill:
            taken, waiting = waiting[:8], waiting[8:]
            free = idle_prefill.pop()
            prompts[free] = taken
            took = prompt_time(float(len(taken)))
            heapq.heappush(events, (now + took, order := order + 1, "prefill", free))
    return np.array(first), np.array(per_token)


@pytest.mark.parametrize(("prefill", "decode", "rate"), [(1, 1, 30.0), (2, 1, 100.0)])
def test_as_arrivals_played_out(prefill, decode, rate):
    first, per_token = played(0, prefill, decode, 1500, 1.0, rate)
    found = close(pools(float(prefill), float(decode)), arriving(rate))
    first += token_time() * 1.5
    assert found[ROWS.time_to_first_token_mean] == pytest.approx(np.mean(first), rel=0.15)
    assert found[ROWS.time_to_first_token_p95] == pytest.approx(np.quantile(first, 0.95), rel=0.25)
    assert found[ROWS.time_per_output_token_mean] == pytest.approx(np.mean(per_token), rel=0.05)


@pytest.mark.parametrize("clients", [4, 30, 150])
def test_as_clients_played_out(clients):
    first, per_token = played(clients, 1, 2, 10 * clients, 0.8, 0.0)
    loads = load(concurrency=float(clients), rounds=10.0, output_length=64.0, length_spread=1.0)
    found = close(pools(1.0, 2.0), loads)
    first += token_time() * 1.5
    assert found[ROWS.time_to_first_token_mean] == pytest.approx(np.mean(first), rel=0.1)
    assert found[ROWS.time_per_output_token_mean] == pytest.approx(np.mean(per_token), rel=0.1)
