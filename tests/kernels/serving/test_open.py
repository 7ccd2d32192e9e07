"""Open loops: limits, Little's law, and arrivals played out pass by pass."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.serving.open import close_open
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import NO_ROOM, ROWS, STABLE, UNSTABLE
from tests.kernels.serving.arrivals import play
from tests.kernels.serving.cases import deployment, load
from tests.kernels.serving.test_passes import linear_tables


def tables(token: float = 1e-5, fixed: float = 4e-3):
    """Passes of 4 ms and 10 us per token."""
    plain = linear_tables()
    plain.body[0, :, 1] = fixed + token * plain.tokens
    return plain


def close(deployments, loads, costs=None):
    """Return the variables of one point."""
    out = np.zeros((len(ROWS), 1, 1))
    close_open(costs or tables(), deployments, 0, loads, 0, out)
    return out[:, 0, 0]


def at(rate: float, **values):
    return load(**{"request_rate": rate, "concurrency": 0.0, "output_length": 64.0} | values)


@pytest.mark.parametrize("scheduler", ["fused", "prefill_first"])
@pytest.mark.parametrize("budget", [8192.0, 300.0])
def test_rare_requests_are_alone(scheduler, budget):
    held = deployment(scheduler, token_budget=budget, request_host=0.01, token_host=1e-6)
    found = close(held, at(1e-9))
    chunks = np.ceil(1024 / budget)
    chunk = 1024 / chunks
    prefill = (
        chunks
        * pass_times(tables(), 0, 1.0, chunk, (1024 - chunk) / 2, 0.0, 0.0, 1.0, 1 / chunks)[0]
    )
    decode = pass_times(tables(), 0, 0.0, 0.0, 0.0, 1.0, 1056.0, 1.0, 0.0)[0]
    assert found[ROWS.status] == STABLE
    for row in (ROWS.time_to_first_token_mean, ROWS.time_to_first_token_p99):
        assert found[row] == pytest.approx(0.01 + 1024e-6 + prefill, rel=1e-6)
    for row in (ROWS.time_per_output_token_mean, ROWS.time_per_output_token_p99):
        assert found[row] == pytest.approx(decode, rel=1e-6)
    expected = found[ROWS.time_to_first_token_mean] + 63 * decode
    assert found[ROWS.request_time_mean] == pytest.approx(expected, rel=1e-6)
    assert found[ROWS.queue_time] == pytest.approx(0.0, abs=1e-6)
    assert found[ROWS.utilization] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("ranks", [1.0, 8.0])
@pytest.mark.parametrize("rate", [0.5, 10.0, 50.0])
def test_littles_law(ranks, rate):
    found = close(deployment(ranks=ranks, devices=ranks), at(rate * ranks))
    stay = found[ROWS.request_time_mean] - found[ROWS.time_to_first_token_mean]
    assert found[ROWS.batch] == pytest.approx(rate * stay, rel=1e-9)
    assert found[ROWS.request_rate] == rate * ranks
    assert found[ROWS.tokens_per_second_per_device] == pytest.approx(rate * 64)


@pytest.mark.parametrize("costs", [tables(), tables(token=0.0), tables(token=3e-5, fixed=1e-3)])
def test_a_batch_that_changes_nothing_is_that_of_endless_servers(costs):
    """With passes that all take as long, numbers that decode are Poisson's (M/G/infinity)."""
    steady = costs._replace(body=np.full_like(costs.body, 1e-3), head=costs.head * 0)
    steady = steady._replace(decode=costs.decode * 0, prefill=costs.prefill * 0)
    found = close(deployment(), at(40.0), steady)
    assert found[ROWS.batch] == pytest.approx(40.0 * 63 * 5e-3, rel=0.02)
    # Requests that meet prompts lose nothing by them.
    spread = found[ROWS.time_per_output_token_p99] / found[ROWS.time_per_output_token_mean]
    assert spread == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("scheduler", ["fused", "prefill_first"])
def test_more_requests_make_all_slower_until_there_is_no_steady_state(scheduler):
    rates = [0.1, 1.0, 5.0, 20.0, 40.0, 60.0, 75.0]
    points = [close(deployment(scheduler), at(rate)) for rate in rates]
    for name in ("time_to_first_token", "time_per_output_token", "request_time"):
        for level in ("mean", "p50", "p95", "p99"):
            values = [point[getattr(ROWS, f"{name}_{level}")] for point in points]
            assert np.all(np.diff(values) > -1e-9), (name, level)
        for point in points:
            low, middle, high = (point[getattr(ROWS, f"{name}_{q}")] for q in ("p50", "p95", "p99"))
            assert low <= middle <= high
    unstable = close(deployment(scheduler), at(98.0))
    assert unstable[ROWS.status] == UNSTABLE
    assert np.all(np.isnan(unstable[: ROWS.status]))


def test_a_full_cache_is_a_capacity_too():
    few = deployment(max_sequences=8.0)
    # 8 requests at a time, of 63 passes of 4 ms and more, and one of prompts.
    assert close(few, at(8 / (63 * 4.1e-3) * 1.1))[ROWS.status] == UNSTABLE
    found = close(few, at(12.0))
    free = close(deployment(), at(12.0))
    assert found[ROWS.status] == STABLE
    assert found[ROWS.queue_time] > free[ROWS.queue_time]
    assert close(deployment(blocks=60.0), at(1.0))[ROWS.status] == NO_ROOM


def test_regular_arrivals_wait_less_and_bursts_more():
    few = deployment(max_sequences=12.0)
    waits = [close(few, at(24.0, arrival_variation=v))[ROWS.queue_time] for v in (0.2, 1.0, 4.0)]
    assert waits == sorted(waits)
    assert waits[2] > 1.5 * waits[0]


def test_cached_prompts_and_drafts_help():
    plain = close(deployment(), at(20.0))
    cached = close(deployment(), at(20.0, prefix=768.0))
    assert cached[ROWS.time_to_first_token_mean] < plain[ROWS.time_to_first_token_mean]
    drafted = close(deployment(draft_length=3.0, acceptance=0.7), at(20.0))
    assert drafted[ROWS.time_per_output_token_mean] < plain[ROWS.time_per_output_token_mean]
    assert drafted[ROWS.inter_token_latency_mean] > plain[ROWS.inter_token_latency_mean]


@pytest.mark.parametrize(
    ("scheduler", "rate", "options"),
    [
        ("fused", 30.0, {}),
        ("fused", 40.0, {"spread": 0.4}),
        ("fused", 4.0, {"prompt": 8192.0, "budget": 2048.0}),
        ("prefill_first", 30.0, {}),
        ("prefill_first", 3.0, {"prompt": 8192.0, "budget": 2048.0}),
    ],
)
def test_as_arrivals_played_out(scheduler, rate, options):
    played = play(tables(), scheduler, rate, requests=700, **options)
    held = deployment(scheduler, token_budget=options.get("budget", 8192.0))
    loads = at(
        rate,
        input_length=options.get("prompt", 1024.0),
        length_spread=options.get("spread", 1.0),
    )
    found = close(held, loads)
    assert found[ROWS.batch] == pytest.approx(played["batch"], rel=0.12)
    for name, row in (
        ("first", ROWS.time_to_first_token_mean),
        ("per_token", ROWS.time_per_output_token_mean),
        ("request", ROWS.request_time_mean),
    ):
        assert found[row] == pytest.approx(np.mean(played[name]), rel=0.1)
        assert found[row + 2] == pytest.approx(np.quantile(played[name], 0.95), rel=0.25)
