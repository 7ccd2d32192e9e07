"""Random closed loops: what is drawn is possible, and errors are counted by regime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from perfmodel.kernels.serving.tables import Deployments, Loads


@pytest.fixture
def loads(script: Any) -> Any:
    return script.load("accuracy.served_loads")


def test_random_loads_fit_their_model_and_repeat(loads: Any) -> None:
    drawn = [
        [loads.random_load(random, 40960) for _ in range(200)]
        for random in (np.random.default_rng(3), np.random.default_rng(3))
    ]
    assert drawn[0] == drawn[1]
    for one in drawn[0]:
        assert 32 <= one["input_length"] + one["output_length"] <= 40960
        assert 0.0 < one["length_spread"] <= 1.0
        assert one["prefix"] < one["input_length"]
        assert 1 <= one["concurrency"] <= loads.MOST_CLIENTS
        assert one["rounds"] in (10.0, math.inf)
    equal = sum(one["length_spread"] == 1.0 for one in drawn[0])
    assert 30 <= equal <= 70


def test_errors_are_told_by_regime_and_by_share_closed(loads: Any) -> None:
    given = {"ranks": 1, "stages": 1, "scheduler": 0, "blocks": 1000, "block_tokens": 16}
    given = dict.fromkeys(Deployments._fields, 0) | given
    given |= {"max_sequences": 64, "token_budget": 2048, "lockstep_ranks": 1}
    load = {"input_length": 4096, "output_length": 64, "length_spread": 1.0}
    load = dict.fromkeys(Loads._fields, 0.0) | load
    load |= {"rounds": math.inf, "concurrency": 8.0}
    count = len(loads.ROWS)
    points = [
        loads.Closed("a", given, load, np.full(count, 1.0 + error), np.ones(count))
        for error in [0.01] * 9 + [1.0]
    ]
    told = loads.errors_by_regime(points)
    assert set(told) == {
        *("all", "steady part", "lengths equal", "prompts beside", "beyond the cache"),
        *("chunked prompts", "ranks apart"),
    }
    assert told["all"]["request_rate"][0] == pytest.approx(0.01)
    shares = loads.errors_by_share(points)
    assert shares["100% closed"]["request_rate"][1] > 0.1
    assert shares["90% closed"]["request_rate"][1] == pytest.approx(0.01)
