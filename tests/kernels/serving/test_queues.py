"""Queues against textbooks and random arrivals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.queues import (
    add,
    clear,
    count_quantile,
    erlang_c,
    joined,
    mean,
    mean_wait,
    merge,
    mixed_quantile,
    new_histogram,
    quantile,
    three_quantiles,
    wait_quantile,
)


@pytest.mark.parametrize(
    ("servers", "load", "waits"),
    [
        (1, 0.7, 0.7),
        (2, 1.0, 1 / 3),
        # Gross et al. 2008, example 2.2 (three doctors): r = 2, W_q = 1/3 h of C / (k mu - lambda).
        (3, 2.0, 4 / 9),
        (5, 4.0, 0.554112554),
    ],
)
def test_erlang_c_as_in_textbooks(servers, load, waits):
    assert erlang_c(servers, load / servers) == pytest.approx(waits, rel=1e-5)


def test_erlang_c_is_the_sum_of_its_definition():
    servers, load = 12, 9.3
    terms = [load**n / math.factorial(n) for n in range(servers)]
    last = load**servers / math.factorial(servers) / (1 - load / servers)
    assert erlang_c(servers, load / servers) == pytest.approx(last / (sum(terms) + last), rel=1e-13)


def test_one_server_waits_as_pollaczek_and_khinchine_say():
    rate, service = 3.0, 0.25
    utilization = rate * service
    markov = mean_wait(erlang_c(1, utilization), 4.0, rate, 1.0, 1.0)
    assert markov == pytest.approx(utilization / (4.0 - rate))  # M/M/1
    even = mean_wait(erlang_c(1, utilization), 4.0, rate, 1.0, 0.0)
    assert even == pytest.approx(utilization * service / (2 * (1 - utilization)))  # M/D/1


def test_three_doctors():
    """Gross et al. 2008, example 2.2: six patients an hour, 20 minutes each, wait 8.9 minutes."""
    wait = mean_wait(erlang_c(3, 6 / 9), 9.0, 6.0, 1.0, 1.0)
    assert wait * 60 == pytest.approx(8.889, abs=1e-3)


@pytest.mark.parametrize("residual", [0.0, 0.02, 0.3, 3.0])
@pytest.mark.parametrize("waits", [0.0, 0.2, 1.0])
def test_quantiles_are_those_of_drawn_sums(residual, waits):
    random = np.random.default_rng(5)
    count = 400_000
    drawn = random.exponential(0.5, count) * (random.random(count) < waits)
    drawn += random.uniform(0.0, 1.0, count) * residual
    for level in (0.1, 0.5, 0.95, 0.99):
        found = wait_quantile(level, waits, 0.5 * waits, residual)
        assert found == pytest.approx(np.quantile(drawn, level), rel=0.02, abs=2e-3)


def test_deviations_of_parts_join_as_independent_ones():
    assert joined(3.0, 4.0) == 5.0
    assert joined(-3.0, -4.0) == -5.0
    assert joined(-3.0, 4.0) == 1.0


@pytest.mark.parametrize("gap", [0.0, 5.0])
def test_quantiles_of_three_spreads_are_those_of_draws(gap: float) -> None:
    random = np.random.default_rng(0)
    weights = (0.1, 0.6, 0.3)
    lows, highs = (3.0 + gap, 1.0, 1.5), (9.0 + gap, 2.0, 1.5)
    which = random.choice(3, 200_000, p=weights)
    values = random.uniform(np.array(lows)[which], np.array(highs)[which])
    wanted = np.quantile(values, [0.5, 0.95, 0.99])
    assert three_quantiles(weights, lows, highs) == pytest.approx(wanted, rel=0.01)


def test_two_spreads_are_three_with_one_empty() -> None:
    three = three_quantiles((0.2, 0.8, 0.0), (4.0, 1.0, 1.0), (8.0, 6.0, 1.0))
    two = [mixed_quantile(share, 0.2, 4.0, 8.0, 1.0, 6.0) for share in (0.5, 0.95, 0.99)]
    assert three == pytest.approx(two)


@pytest.mark.parametrize("mean", [0.01, 0.7, 5.0, 40.0])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_counts_that_come_at_random(mean: float, share: float) -> None:
    counts = np.random.default_rng(0).poisson(mean, 200_000)
    wanted = np.quantile(counts[counts > 0], share)
    assert count_quantile(share, mean) == pytest.approx(wanted, rel=0.03)


def test_quantiles_of_many_values() -> None:
    values = np.random.default_rng(1).lognormal(-3.0, 1.5, 3000)
    histogram = new_histogram()
    for value in values:
        add(histogram, value, 2.0)
    assert mean(histogram) == pytest.approx(values.mean())
    for share in (0.5, 0.95, 0.99):
        wanted = np.quantile(values, share, method="inverted_cdf")
        assert quantile(histogram, share) == pytest.approx(wanted, rel=5e-3)


def test_alike_values_keep_all_their_digits() -> None:
    histogram = new_histogram()
    add(histogram, 0.123456789, 3.0)
    assert quantile(histogram, 0.5) == pytest.approx(0.123456789, rel=1e-15)


def test_what_is_merged_and_cleared() -> None:
    one, other = new_histogram(), new_histogram()
    add(one, 1.0, 1.0)
    add(other, 2.0, 1.0)
    merge(one, other, 3.0)
    assert mean(one) == pytest.approx(1.75)
    clear(one)
    assert not one.weights.any()
    assert math.isnan(mean(one))
    assert math.isnan(quantile(one, 0.5))


def test_zero_and_hours_have_a_bin() -> None:
    histogram = new_histogram()
    add(histogram, 0.0, 1.0)
    add(histogram, 1e6, 1.0)
    add(histogram, 1.0, 0.0)
    assert quantile(histogram, 0.5) == 0.0
    assert quantile(histogram, 0.99) == 1e6
