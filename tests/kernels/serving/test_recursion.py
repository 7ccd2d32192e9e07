"""Closed loops pass by pass: all variables against loops retold request by request."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.queues import new_histogram
from perfmodel.kernels.serving.rank import LOGGED, limits_of, new_rank, new_requests
from perfmodel.kernels.serving.recursion import (
    MODULUS,
    even_length,
    fill_requests,
    no_log,
    recurse_chosen,
    recurse_points,
    requests_of,
    run_clients,
)
from perfmodel.kernels.serving.steady import close_points
from perfmodel.kernels.serving.tables import (
    NO_ROOM,
    NO_STAGE_WORK,
    ROWS,
    STABLE,
    Deployments,
    Loads,
)
from tests.kernels.serving.cases import deployment, load
from tests.kernels.serving.retold import Request, RetoldRank
from tests.kernels.serving.test_passes import linear_tables

TABLES = linear_tables(eager_time=2e-4, pass_host=1e-4, sequence_host=1e-6)
SHORT = {"input_length": 300.0, "output_length": 60.0, "length_spread": 0.5, "rounds": 10.0}


def row(deployments: Deployments, loads: Loads) -> dict[str, float]:
    out = np.empty((len(ROWS), 1, 1))
    recurse_points(TABLES, deployments, loads, out, *no_log())
    return dict(zip(ROWS._fields, out[:, 0, 0].tolist(), strict=True))


def test_variables_are_those_of_the_loop_retold() -> None:
    host = {"request_host": 2e-3, "token_host": 1e-6, "output_host": 5e-4}
    deployments = deployment(token_budget=512.0, devices=4.0, **host)
    loads = load(concurrency=6.0, **SHORT | {"rounds": 50.0})
    found = row(deployments, loads)
    requests = new_requests(300)
    fill_requests(requests, 300, loads, 0, 1)
    pairs = np.array([requests.inputs, requests.outputs]).astype(int).T.tolist()
    retold = RetoldRank(TABLES, deployments)
    told = retold.closed_loop([Request(*pair) for pair in pairs], 6)
    first = np.array([it.times[0] - it.sent for it in told]) + 5e-4
    output = np.array([(it.times[-1] - it.times[0]) / (it.answer - 1) for it in told])
    gaps = np.concatenate([np.diff(it.times) for it in told])
    whole = np.array([it.times[-1] - it.sent for it in told]) + 5e-4
    names = "time_to_first_token", "time_per_output_token", "inter_token_latency", "request_time"
    for name, values in zip(names, (first, output, gaps, whole), strict=True):
        assert found[f"{name}_mean"] == pytest.approx(values.mean(), rel=1e-3)
        for share in (50, 95, 99):
            wanted = np.quantile(values, share / 100, method="inverted_cdf")
            assert found[f"{name}_p{share}"] == pytest.approx(wanted, rel=6e-3)
    time = retold.clock + 5e-4
    answers, both = requests.outputs.sum(), requests.outputs.sum() + requests.inputs.sum()
    assert found["request_rate"] == pytest.approx(300 / time, rel=1e-3)
    assert found["tokens_per_second_per_device"] == pytest.approx(answers / time / 4, rel=1e-3)
    assert found["total_tokens_per_second_per_device"] == pytest.approx(both / time / 4, rel=1e-3)
    assert found["tokens_per_second_per_user"] == pytest.approx(1 / output.mean(), rel=1e-3)
    # Little's law: those that decode.
    decoding = sum(it.times[-1] - it.times[0] for it in told) / time
    assert found["batch"] == pytest.approx(decoding, rel=1e-3)
    assert found["status"] == STABLE


def test_requests_divide_among_ranks() -> None:
    one = row(deployment(), load(concurrency=2.0, **SHORT))
    many = row(deployment(ranks=4.0, devices=4.0), load(concurrency=8.0, **SHORT))
    for name in ("time_to_first_token_p95", "inter_token_latency_mean", "batch", "utilization"):
        assert many[name] == pytest.approx(one[name], rel=1e-12)
    assert many["request_rate"] == pytest.approx(4 * one["request_rate"], rel=1e-12)
    # Of ten, two ranks have three and two have two.
    alike = SHORT | {"length_spread": 1.0}
    uneven = row(deployment(ranks=4.0, devices=4.0), load(concurrency=10.0, **alike))
    one = row(deployment(), load(concurrency=2.0, **alike))
    more = row(deployment(), load(concurrency=3.0, **alike))
    name = "time_to_first_token_mean"
    assert uneven[name] == pytest.approx(0.4 * one[name] + 0.6 * more[name], rel=1e-9)


def test_fewer_requests_than_ranks_leave_some_idle() -> None:
    one = row(deployment(), load(**SHORT))
    idle = row(deployment(ranks=4.0), load(**SHORT))
    assert idle["status"] == NO_STAGE_WORK
    assert idle["utilization"] == pytest.approx(one["utilization"])
    assert idle["request_rate"] == pytest.approx(one["request_rate"])


def test_the_first_burst_waits_and_the_steady_state_forgets_it() -> None:
    some = row(deployment(), load(concurrency=64.0, **SHORT | {"rounds": 3.0}))
    endless = row(deployment(), load(concurrency=64.0, **SHORT | {"rounds": math.inf}))
    assert endless["time_to_first_token_mean"] < some["time_to_first_token_mean"]
    assert endless["request_rate"] > some["request_rate"]
    # Little's law with everybody counted.
    assert endless["request_rate"] * endless["request_time_mean"] == pytest.approx(64.0, rel=0.02)


def test_what_the_cache_cannot_hold_and_what_is_no_closed_loop() -> None:
    full = row(deployment(blocks=20.0), load(**SHORT))
    assert full["status"] == NO_ROOM
    assert math.isnan(full["request_rate"])
    opened = row(deployment(), load(concurrency=0.0, request_rate=1.0, **SHORT))
    assert math.isnan(opened["status"])


def test_a_prefix_is_not_computed_again() -> None:
    alone = {"input_length": 3000.0, "output_length": 4.0}
    plain = row(deployment(), load(**alone))
    cached = row(deployment(), load(prefix=2900.0, **alone))
    less = plain["time_to_first_token_mean"] - cached["time_to_first_token_mean"]
    assert less == pytest.approx(2900 * (1e-6 + 1e-8), rel=1e-6)


def test_lengths_fill_their_range_evenly() -> None:
    loads = load(input_length=100.0, output_length=10.0, length_spread=0.8)
    requests = new_requests(2000)
    state = fill_requests(requests, 2000, loads, 0, 1)
    once = requests.inputs.copy()
    assert 0 < state < MODULUS
    fill_requests(requests, 2000, loads, 0, state)
    assert (requests.inputs != once).mean() > 0.9
    for values, least, most in ((requests.inputs, 80, 100), (requests.outputs, 8, 10)):
        sizes, counts = np.unique(values, return_counts=True)
        assert sizes.tolist() == list(range(least, most + 1))
        np.testing.assert_allclose(counts, 2000 / len(sizes), rtol=0.05)
    assert abs(np.corrcoef(requests.inputs, requests.outputs)[0, 1]) < 0.05
    assert abs(np.corrcoef(requests.inputs[1:], requests.inputs[:-1])[0, 1]) < 0.05
    assert even_length(1.0, 0.0, 0.999) == 1.0


def test_bounds_of_first_tokens_are_as_wide_as_in_closed_form() -> None:
    deployments, loads = deployment(), load(concurrency=4.0, **SHORT)
    closed = np.full((len(ROWS), 1, 1), np.nan)
    close_points(TABLES, deployments, loads, closed)
    found = row(deployments, loads)
    ratio = found["time_to_first_token_high"] / found["time_to_first_token_mean"]
    wanted = closed[ROWS.time_to_first_token_high] / closed[ROWS.time_to_first_token_mean]
    assert ratio == pytest.approx(float(wanted[0, 0]))


def test_one_client_more_may_make_fewer_requests() -> None:
    loads = load(concurrency=999.0, length_spread=0.5, output_length=4.0, input_length=8.0)
    assert loads.rounds[0] == np.inf
    assert requests_of(loads, 0, 500)[0] < requests_of(loads, 0, 499)[0]
    found = row(deployment(ranks=2.0), loads)  # 499 clients on one rank, 500 on the other
    assert found["status"] == STABLE
    assert found["request_rate"] * found["request_time_mean"] == pytest.approx(999.0, rel=0.1)


def test_what_takes_too_many_passes_is_given_up() -> None:
    loads = load(concurrency=4.0, **SHORT)
    requests, rank, gaps = new_requests(40), new_rank(40, 0), new_histogram()
    fill_requests(requests, 40, loads, 0, 1)
    limits = limits_of(deployment(), 0)
    run_clients(TABLES, limits, requests, rank, gaps, 4, 40, 0, 10)
    assert 10 <= rank.counts[LOGGED] <= 12
    assert requests.last[39] <= 0.0


def test_points_that_are_not_chosen_stay_as_they_are() -> None:
    loads = load(concurrency=[2.0, 4.0, 0.0], request_rate=[0.0, 0.0, 1.0], **SHORT)
    out, chosen = np.full((len(ROWS), 1, 3), -1.0), np.array([[False, True, True]])
    recurse_chosen(TABLES, deployment(), loads, out, *no_log(), chosen, True)
    assert chosen.tolist() == [[False, True, False]]
    assert (out[:, 0, [0, 2]] == -1.0).all()
    assert out[ROWS.status, 0, 1] == STABLE
