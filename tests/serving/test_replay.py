"""Replay of traces: columns, the summary, prompts that begin alike, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.serving.replay import replay_trace
from perfmodel.serving.requests import RequestTrace, parse_requests, random_trace
from tests.kernels.serving.cases import deployment, pass_tables

TABLES = pass_tables()


def test_the_summary_is_of_the_columns() -> None:
    trace = random_trace(80, 4.0, (50, 3000), (1, 100))
    trace = RequestTrace(trace.arrival + 1000.0, trace.input_length, trace.output_length)
    found = replay_trace(TABLES, deployment(ranks=2.0, devices=8.0), trace)
    first = found.columns["time_to_first_token"]
    assert found.summary["time_to_first_token_mean"] == pytest.approx(first.mean())
    assert found.summary["time_to_first_token_p95"] == pytest.approx(
        np.quantile(first, 0.95, method="inverted_cdf"), rel=5e-3
    )
    assert (found.columns["finish_time"] > trace.arrival + first - 1e-9).all()
    time = found.columns["finish_time"].max() - trace.arrival[0]
    tokens = trace.output_length.sum() / time / 8
    assert found.summary["tokens_per_second_per_device"] == pytest.approx(tokens)
    assert set(found.columns["rank"].tolist()) == {0.0, 1.0}


def test_conversations_find_their_beginning_in_the_cache() -> None:
    turns = [
        f'{{"timestamp": {20_000 * turn}, "input_length": {1024 * (turn + 1)}, '
        f'"output_length": 20, "hash_ids": {list(range(2 * (turn + 1)))}}}'
        for turn in range(5)
    ]
    trace = parse_requests("\n".join(turns))
    found = replay_trace(TABLES, deployment(), trace)
    assert found.columns["cached_tokens"].tolist() == [0.0, 1024.0, 2048.0, 3072.0, 4096.0]
    assert np.ptp(found.columns["time_to_first_token"]) < 1e-2
    without = replay_trace(TABLES, deployment(), trace, cached=False)
    assert without.columns["cached_tokens"].tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("kind", "changes", "options", "message"),
    [
        (StrategyError, {}, {"dispatch": "least-loaded"}, "did you mean least_loaded"),
        (StrategyError, {"prefill_layout": 0}, {}, "one pool"),
        (StrategyError, {}, {"concurrency": 0}, "should be 1 or more"),
        (DataError, {"blocks": 10.0}, {}, "needs 14 blocks of the cache, which has 10"),
    ],
)
def test_what_is_refused(kind, changes, options, message: str) -> None:
    trace = random_trace(3, 1.0, 200, 24)
    with pytest.raises(kind, match=message):
        replay_trace(TABLES, deployment(**changes), trace, **options)


def test_clients_that_wait_for_their_answers() -> None:
    trace = random_trace(60, 1.0, (50, 900), (2, 80))
    found = replay_trace(TABLES, deployment(ranks=2.0), trace, concurrency=5)
    # At any time five are under way.
    finish = np.sort(found.columns["finish_time"])
    assert found.summary["request_rate"] == pytest.approx(60 / finish[-1])
    busy = found.summary["request_time_mean"] * 60
    assert 4.0 < busy / finish[-1] <= 5.0
    alone = replay_trace(TABLES, deployment(), trace, concurrency=1)
    expected = (alone.columns["finish_time"][-1]) / 60
    assert alone.summary["request_time_mean"] == pytest.approx(expected)
    assert (np.diff(alone.columns["finish_time"]) > 0).all()
