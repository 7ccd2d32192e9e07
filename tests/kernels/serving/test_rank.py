"""Ranks pass by pass: what is skipped or kept as sums, against a rank retold request by request."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.queues import mean, new_histogram
from perfmodel.kernels.serving.rank import (
    CLOCK,
    END,
    NEXT,
    Requests,
    advance,
    limits_of,
    new_rank,
    new_requests,
    push,
    remove,
    send,
)
from perfmodel.kernels.serving.tables import Deployments
from tests.kernels.serving.cases import deployment, pass_tables
from tests.kernels.serving.retold import Request, RetoldRank, in_step
from tests.kernels.serving.test_passes import linear_tables

LENGTHS = np.random.default_rng(5).integers([40, 4], [900, 200], (90, 2))
TABLES = linear_tables(eager_time=2e-4, pass_host=1e-4, sequence_host=1e-6, host_hidden=0.5)


def ran(deployments: Deployments, clients: int, count: int = 90):
    """Run a closed loop both ways."""
    limits = limits_of(deployments, 0)
    requests, rank, gaps = new_requests(count), new_rank(count, 0), new_histogram()
    requests.inputs[:], requests.outputs[:] = LENGTHS[:count].T
    for i in range(clients):
        send(limits, requests, rank, i, 0.0)
    rank.counts[NEXT], rank.counts[END] = clients, count
    advance(TABLES, limits, requests, rank, gaps, math.inf)
    retold = RetoldRank(TABLES, deployments)
    told = retold.closed_loop([Request(*pair) for pair in LENGTHS[:count].tolist()], clients)
    return requests, rank, gaps, retold, told


def first_and_last(requests: Requests) -> np.ndarray:
    return np.array([requests.sent, requests.first, requests.last])


def told_times(told: list[Request]) -> np.ndarray:
    return np.array([[it.sent, it.times[0], it.times[-1]] for it in told]).T


@pytest.mark.parametrize("scheduler", ["fused", "prefill_first"])
@pytest.mark.parametrize(
    ("limits", "clients"),
    [
        ({}, 1),
        ({}, 13),
        ({"token_budget": 256.0}, 13),
        ({"max_sequences": 7.0}, 30),
        ({"request_host": 3e-3, "token_host": 1e-6, "output_host": 1e-3}, 9),
        ({"draft_length": 3.0, "acceptance": 0.7, "token_budget": 512.0}, 12),
        ({"admission": "guaranteed_no_evict", "blocks": 300.0}, 20),
    ],
)
def test_a_rank_is_as_retold(scheduler: str, limits: dict[str, float], clients: int) -> None:
    requests, _, gaps, _, told = ran(deployment(scheduler, **limits), clients)
    np.testing.assert_allclose(first_and_last(requests), told_times(told), rtol=2e-4)
    expected = np.concatenate([np.diff(it.times) for it in told])
    assert mean(gaps) == pytest.approx(expected.mean(), rel=1e-3)
    assert gaps.weights.sum() == pytest.approx(expected.size)


@pytest.mark.parametrize(
    ("scheduler", "admission"),
    [("fused", "preemption"), ("prefill_first", "estimate"), ("prefill_first", "preemption")],
)
def test_requests_are_put_back_about_as_often(scheduler: str, admission: str) -> None:
    # Blocks are counted as half filled where the retold rank counts them one by one.
    found = ran(deployment(scheduler, admission, blocks=260.0), 24)
    requests, rank, gaps, retold, told = found
    if admission == "preemption":
        assert retold.put_back > 10
    assert rank.numbers[CLOCK] == pytest.approx(retold.clock, rel=0.03)
    for one, other in zip(first_and_last(requests), told_times(told), strict=True):
        assert one.mean() == pytest.approx(other.mean(), rel=0.03)
    assert gaps.weights.sum() == pytest.approx(LENGTHS[:, 1].sum() - len(LENGTHS))


def test_a_rank_stops_at_the_first_pass_that_ends_late_enough() -> None:
    limits = limits_of(deployment(), 0)
    requests, rank, gaps = new_requests(1), new_rank(1, 0), new_histogram()
    requests.inputs[0], requests.outputs[0] = 100.0, 50.0
    send(limits, requests, rank, 0, 0.0)
    advance(TABLES, limits, requests, rank, gaps, 0.02)
    assert 0.02 <= rank.numbers[CLOCK] < 0.022
    at_once = ran_alone(100.0, 50.0)
    advance(TABLES, limits, requests, rank, gaps, math.inf)
    assert requests.last[0] == pytest.approx(at_once.last[0], rel=1e-9)


def ran_alone(prompt: float, answer: float) -> Requests:
    limits = limits_of(deployment(), 0)
    requests, rank, gaps = new_requests(1), new_rank(1, 0), new_histogram()
    requests.inputs[0], requests.outputs[0] = prompt, answer
    send(limits, requests, rank, 0, 0.0)
    advance(TABLES, limits, requests, rank, gaps, math.inf)
    assert rank.counts[0] == 0
    return requests


def test_an_answer_of_one_token_ends_with_its_prompt() -> None:
    requests = ran_alone(100.0, 1.0)
    assert requests.first[0] == requests.last[0] > 0.0


def test_ranks_in_step_wait_for_the_longest() -> None:
    # Two ranks in step with a request each take as long as one rank with one of them.
    limits = limits_of(deployment(lockstep_ranks=2.0), 0)
    requests, rank, gaps = new_requests(2), new_rank(2, 0), new_histogram()
    requests.inputs[:], requests.outputs[:] = 100.0, 50.0
    for i in range(2):
        send(limits, requests, rank, i, 0.0)
    advance(TABLES, limits, requests, rank, gaps, math.inf)
    assert requests.last == pytest.approx(ran_alone(100.0, 50.0).last[0], rel=1e-12)


@pytest.mark.parametrize("scheduler", ["fused", "prefill_first"])
def test_ranks_in_step_are_as_retold_one_by_one(scheduler: str) -> None:
    # One rank with the places of all does a little better than who takes the emptiest.
    tables = pass_tables()
    clients, count = 20, 160
    limits = limits_of(deployment(scheduler, lockstep_ranks=4.0, output_host=1e-3), 0)
    lengths = np.random.default_rng(7).integers([800, 60], [1000, 80], (count, 2))
    requests, rank, gaps = new_requests(count), new_rank(count, 0), new_histogram()
    requests.inputs[:], requests.outputs[:] = lengths.T
    for i in range(clients):
        send(limits, requests, rank, i, 0.0)
    rank.counts[NEXT], rank.counts[END] = clients, count
    advance(tables, limits, requests, rank, gaps, math.inf)
    ranks = [RetoldRank(tables, deployment(scheduler, output_host=1e-3)) for _ in range(4)]
    told = in_step(ranks, [Request(*pair) for pair in lengths.tolist()], clients)
    sent, first, last = told_times(told)
    each = (last - first) / (lengths[:, 1] - 1)
    found = (requests.last - requests.first) / (requests.outputs - 1)
    assert found.mean() == pytest.approx(each.mean(), rel=0.03)
    waited = requests.first - requests.sent
    assert waited.mean() == pytest.approx((first - sent).mean(), rel=0.1)


def test_ranks_in_step_hold_whole_requests() -> None:
    # Each of four has blocks for one request and nine tenths of another.
    limits = limits_of(
        deployment("fused", "guaranteed_no_evict", lockstep_ranks=4.0, blocks=19.0), 0
    )
    requests, rank, gaps = new_requests(8), new_rank(8, 0), new_histogram()
    requests.inputs[:], requests.outputs[:] = 100.0, 60.0
    for i in range(8):
        send(limits, requests, rank, i, 0.0)
    advance(TABLES, limits, requests, rank, gaps, math.inf)
    assert (requests.started[:4] == 0.0).all()
    assert (requests.started[4:] >= requests.last[:4].min()).all()


def test_a_heap_gives_the_least_first() -> None:
    random = np.random.default_rng(3)
    heap, kept = np.zeros(200, np.int64), []
    for _ in range(2000):
        if kept and (len(kept) == 200 or random.random() < 0.5):
            at = int(random.integers(0, len(kept)))
            kept.remove(heap[at])
            remove(heap, len(kept) + 1, at)
        else:
            entry = int(random.integers(0, 50))
            push(heap, len(kept), entry)
            kept.append(entry)
        assert sorted(heap[: len(kept)]) == sorted(kept)
        assert not kept or heap[0] == min(kept)
