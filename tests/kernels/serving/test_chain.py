"""Numbers that decode, against queues whose steady states are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.chain import (
    COUNT,
    MOST_STATES,
    STATES_COLUMNS,
    WEIGHT,
    fill_chain,
    quantile_of_states,
)
from tests.kernels.serving.cases import deployment
from tests.kernels.serving.test_passes import linear_tables


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
