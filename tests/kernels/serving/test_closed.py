"""Closed loops in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving import tables
from perfmodel.kernels.serving.recursion import no_log, recurse_points
from perfmodel.kernels.serving.steady import close_points
from perfmodel.kernels.serving.tables import ROWS
from tests.kernels.serving.cases import deployment, load, pass_tables

HOST = {"request_host": 5e-3, "token_host": 1e-6, "output_host": 1e-3}


def closed(deployments, loads, **changes):
    out = np.full((len(ROWS), deployments.layout.size, loads.concurrency.size), -1.0)
    close_points(pass_tables(**changes), deployments, loads, out)
    return tables.ServingRows(*out)


@pytest.mark.parametrize("scheduler", tables.SCHEDULERS)
def test_requests_under_way_follow_littles_law(scheduler: str) -> None:
    clients = np.array([1.0, 3.0, 64.0, 700.0, 5000.0])
    deployments = deployment(scheduler, ranks=[1.0, 4.0], devices=[1.0, 32.0], **HOST)
    found = closed(deployments, load(concurrency=clients, length_spread=0.8))
    under_way = found.request_rate * found.request_time_mean
    assert under_way == pytest.approx(np.broadcast_to(clients, (2, 5)), rel=1e-12)
    decoding = found.request_rate * (found.request_time_mean - found.time_to_first_token_mean)
    assert found.batch * deployments.ranks[:, None] == pytest.approx(decoding, rel=1e-12)


@pytest.mark.parametrize("clients", [8.0, 32.0])
def test_requests_of_one_length_wait_for_each_other(clients: float) -> None:
    # Prompts of a pass each; passes of 12 ms that decode run while a request is on its way.
    deployments = deployment(token_budget=2048.0, request_host=0.03, output_host=1e-3)
    loads = load(input_length=1900.0, output_length=200.0, concurrency=clients)
    passes = np.empty((len(ROWS), 1, 1))
    recurse_points(pass_tables(), deployments, loads, passes, *no_log())
    wanted, found = tables.ServingRows(*passes), closed(deployments, loads)
    for name in ("time_to_first_token_mean", "time_to_first_token_p95"):
        error = getattr(found, name) / getattr(wanted, name) - 1.0
        assert abs(error[0, 0]) < 0.12, (name, error)
    assert found.time_to_first_token_p50[0, 0] <= found.time_to_first_token_p95[0, 0]


def test_one_client_finds_nothing_ahead() -> None:
    found = closed(deployment(**HOST), load())
    prompt = max(5e-3, 2e-5 * 1024) + 1e-3 + 1e-6 + 4e-10 * 1024 * 512 + 1e-3 + 5e-6
    assert found.time_to_first_token_mean[0, 0] == pytest.approx(6e-3 + 1.024e-3 + prompt)


def test_a_cache_below_one_request_is_a_state() -> None:
    found = closed(deployment(blocks=[100.0, 200.0]), load())
    assert found.status[:, 0].tolist() == [tables.NO_ROOM, tables.STABLE]
    assert math.isnan(found.time_to_first_token_mean[0, 0])
    assert found.time_to_first_token_mean[1, 0] > 0.0


def test_what_exceeds_the_sequences_that_run_waits() -> None:
    found = closed(deployment(max_sequences=64.0), load(concurrency=[64.0, 512.0]))
    few, many = found.time_to_first_token_mean[0]
    life = found.request_time_mean[0, 0]
    assert many - few == pytest.approx(7 * life, rel=0.05)
    assert found.batch[0, 1] <= 64.0


@pytest.mark.parametrize("scheduler", tables.SCHEDULERS)
@pytest.mark.parametrize("spread", [0.5, 0.8])
def test_closed_form_follows_the_recursion(scheduler: str, spread: float) -> None:
    deployments = deployment(scheduler, max_sequences=48.0, token_budget=2048.0, **HOST)
    loads = load(
        output_length=96.0, length_spread=spread, concurrency=[16.0, 32.0, 64.0], rounds=10.0
    )
    passes = np.empty((len(ROWS), 1, 3))
    recurse_points(pass_tables(), deployments, loads, passes, *no_log())
    wanted, found = tables.ServingRows(*passes), closed(deployments, loads)
    for name, mean, worst in (
        ("time_to_first_token_mean", 0.12, 0.2),
        ("time_per_output_token_mean", 0.06, 0.1),
        ("request_time_mean", 0.05, 0.1),
        ("request_time_p95", 0.1, 0.25),
    ):
        error = np.abs(getattr(found, name) / getattr(wanted, name) - 1.0)
        assert error.mean() < mean, (name, error)
        assert error.max() < worst, (name, error)


def test_first_requests_and_those_that_come_together_make_first_tokens_late() -> None:
    loads = load(concurrency=[4.0, 256.0], length_spread=0.8, rounds=[10.0, 10.0])
    ten = closed(deployment(**HOST), loads).time_to_first_token_mean[0]
    steady = closed(deployment(**HOST), load(concurrency=256.0, length_spread=0.8))
    assert 4.0 < ten[1] / ten[0] < 10.0
    assert steady.time_to_first_token_mean[0, 0] < 0.5 * ten[1]


@pytest.mark.parametrize("scheduler", tables.SCHEDULERS)
def test_answers_of_one_token_end_with_their_prompt(scheduler: str) -> None:
    found = closed(deployment(scheduler, **HOST), load(output_length=1.0, concurrency=8.0))
    assert found.request_time_mean[0, 0] == found.time_to_first_token_mean[0, 0]
    assert 0.0 < found.time_per_output_token_mean[0, 0] < 0.02
    assert found.batch[0, 0] == 0.0
    prompt = 2e-5 * 1024
    assert 0.5 / prompt < found.request_rate[0, 0] < 1.0 / prompt
