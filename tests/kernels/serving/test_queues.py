"""Queues against textbooks and random arrivals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.queues import erlang_c, joined, mean_wait, wait_quantile


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
