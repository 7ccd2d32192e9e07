"""Traces pass by pass, against ranks retold request by request and caches kept in lists."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest

from perfmodel.kernels.serving.rank import LOG
from perfmodel.kernels.serving.replay import (
    COLUMN_NAMES,
    DISPATCHES,
    Prompts,
    look_up,
    new_caches,
    replay_requests,
)
from perfmodel.kernels.serving.tables import ROWS, Deployments
from tests.kernels.serving.cases import deployment, pass_tables
from tests.kernels.serving.retold import Request, RetoldRank

TABLES = pass_tables()
NO_PROMPTS = Prompts(np.zeros(1, np.int64), np.zeros(0, np.int64), 512.0)


def replayed(
    deployments: Deployments,
    arrivals: np.ndarray,
    inputs: np.ndarray,
    outputs: np.ndarray,
    prompts: Prompts = NO_PROMPTS,
    capacity: float = math.inf,
    dispatch: str = "round_robin",
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    columns, values = np.empty((len(COLUMN_NAMES), len(arrivals))), np.empty(len(ROWS))
    lanes = int(deployments.ranks[0] * deployments.stages[0] / deployments.lockstep_ranks[0])
    log, logged = np.zeros((lanes, LOG, 0)), np.zeros(lanes, np.int64)
    replay_requests(
        TABLES, deployments, 0, arrivals, inputs * 1.0, outputs * 1.0, prompts, capacity,
        DISPATCHES.index(dispatch), columns, values, log, logged,
    )  # fmt: skip
    return (
        dict(zip(COLUMN_NAMES, columns, strict=True)),
        dict(zip(ROWS._fields, values.tolist(), strict=True)),
    )


def requests(count: int, rate: float, seed: int = 2) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1.0 / rate, count))
    lengths = random.integers([50, 1], [3000, 90], (count, 2)).T
    return arrivals - arrivals[0], *lengths


@pytest.mark.parametrize("scheduler", ["fused", "prefill_first"])
def test_a_trace_on_two_ranks_is_as_retold(scheduler: str) -> None:
    deployments = deployment(scheduler, ranks=2.0, request_host=2e-3, output_host=1e-3)
    arrivals, inputs, outputs = requests(60, rate=8.0)
    columns, values = replayed(deployments, arrivals, inputs, outputs)
    for r in range(2):
        told = [
            Request(*lengths, sent=sent)
            for lengths, sent in zip(
                zip(inputs[r::2].tolist(), outputs[r::2].tolist(), strict=True),
                arrivals[r::2].tolist(),
                strict=True,
            )
        ]
        RetoldRank(TABLES, deployments).trace(told)
        first = np.array([it.times[0] - it.sent for it in told]) + 1e-3
        np.testing.assert_allclose(columns["time_to_first_token"][r::2], first, rtol=2e-3)
        last = np.array([it.times[-1] for it in told]) + 1e-3
        np.testing.assert_allclose(columns["finish_time"][r::2], last, rtol=1e-3)
        assert (columns["rank"][r::2] == r).all()
    assert values["time_to_first_token_mean"] == pytest.approx(
        columns["time_to_first_token"].mean()
    )
    each = columns["time_per_output_token"]
    assert np.isnan(each).sum() == (outputs == 1).sum()
    assert values["time_per_output_token_mean"] == pytest.approx(np.nanmean(each))
    time = columns["finish_time"].max()
    assert values["request_rate"] == pytest.approx(60 / time)


def test_the_least_loaded_rank_is_given_the_next_request() -> None:
    # A long answer holds rank 0; the others end before the next comes.
    outputs = np.array([4000, 2, 2, 2, 2])
    arrivals = np.arange(5) * 1.0
    columns, _ = replayed(
        deployment(ranks=2.0), arrivals, np.full(5, 100), outputs, dispatch="least_loaded"
    )
    assert columns["rank"].tolist() == [0, 1, 1, 1, 1]
    in_turn, _ = replayed(deployment(ranks=2.0), arrivals, np.full(5, 100), outputs)
    assert in_turn["rank"].tolist() == [0, 1, 0, 1, 0]


def test_a_cache_drops_what_was_used_longest_ago() -> None:
    random = np.random.default_rng(4)
    sizes = random.integers(0, 7, 400)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    # Prompts that go on from earlier ones: a path in a tree of blocks.
    paths = [[0]]
    blocks = []
    for size in sizes:
        path = paths[random.integers(len(paths))][: random.integers(1, 5)]
        path = (path + random.integers(1, 60, size).tolist())[:size]
        paths.append(path or [0])
        blocks += path
    prompts = Prompts(starts, np.array(blocks), 16.0)
    cache, kept = new_caches(2, 60, 23.0), OrderedDict()
    hits = 0
    for i, size in enumerate(sizes):
        path = blocks[starts[i] : starts[i + 1]]
        held = next((at for at, block in enumerate(path) if block not in kept), size)
        found = look_up(cache, prompts, 1, i, 16.0 * size)
        assert found == max(min(16.0 * held, 16.0 * size - 1.0), 0.0)
        hits += held
        for block in reversed(path):
            kept.pop(block, None)
            kept[block] = None
            if len(kept) > 23:
                kept.popitem(last=False)
    assert hits > 100
    assert not cache.held[0].any()


def test_a_prompt_in_the_cache_starts_sooner() -> None:
    arrivals, inputs, outputs = np.array([0.0, 100.0]), np.full(2, 4096), np.full(2, 3)
    prompts = Prompts(np.array([0, 8, 16]), np.tile(np.arange(8), 2), 512.0)
    columns, _ = replayed(deployment(), arrivals, inputs, outputs, prompts)
    assert columns["cached_tokens"].tolist() == [0.0, 4095.0]
    first, second = columns["time_to_first_token"]
    assert second < 0.5 * first
    # Nothing stays where there is no room, and other ranks know nothing.
    small, _ = replayed(deployment(), arrivals, inputs, outputs, prompts, capacity=0.0)
    assert small["cached_tokens"].tolist() == [0.0, 0.0]
    other, _ = replayed(deployment(ranks=2.0), arrivals, inputs, outputs, prompts)
    assert other["cached_tokens"].tolist() == [0.0, 0.0]
