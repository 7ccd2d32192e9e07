"""What holds an operating point back."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_grid, serve
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.serving.tables import ROWS, STABLE
from perfmodel.serving.limits import LIMITS, limit_of, matched_workers
from tests.kernels.serving.test_disaggregated import TABLES, arriving, close, pools

ROW = {
    "workers": 2,
    "attention_data_parallel": 2,
    "length_spread": 1.0,
    "input_length": 1600,
    "output_length": 1600,
    "kv_block_tokens": 16,
    "kv_blocks": 150 * 100,  # of an attention rank: 100 requests halfway through their answers
    "max_sequences": 256,
}


@pytest.mark.parametrize(
    ("concurrency", "changes", "limit"),
    [
        (0.0, {}, "rate"),
        (4 * 100, {}, "load"),
        (4 * 101, {}, "cache"),
        (4 * 101, {"length_spread": 0.5}, "load"),
        (4 * 101, {"max_sequences": 64}, "max_sequences"),
    ],
)
def test_limits_are_told_apart(concurrency, changes, limit):
    assert limit_of({**ROW, "concurrency": concurrency, **changes}) == limit
    assert LIMITS[limit]


def test_speculation_that_is_mostly_right_pays_in_closed_loops() -> None:
    loads = load_grid(input_length=1984, output_length=128, concurrency=8)
    times = [
        float(
            serve(
                "deepseek-v3",
                {"tensor_parallel": 8, "draft_length": drafted, "acceptance": 0.9 * drafted},
                loads,
                "dgx-h200",
            )["time_per_output_token_mean"].min()
        )
        for drafted in (0, 1)
    ]
    assert times[1] < times[0]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"time_to_first_token_p95": 0.03},
        {"time_to_first_token_mean": 0.05, "time_per_output_token_p95": 0.00415},
    ],
)
def test_no_pair_of_fewer_devices_keeps_the_limits(limits):
    loads = arriving(150.0)
    held = pools(max_sequences=16.0)
    found = matched_workers(TABLES, held, loads, 2.0, 1.0, limits, most=64)
    best = np.inf
    for x in range(1, 9):
        for y in range(1, 13):
            point = close(pools(float(x), float(y), max_sequences=16.0), loads)
            kept = point[ROWS.status] == STABLE
            kept &= all(point[getattr(ROWS, name)] <= most for name, most in limits.items())
            best = min(best, 2 * x + y) if kept else best
    assert found.devices == best
    assert found.devices == 2 * found.prefill_workers + found.decode_workers
    assert found.values[ROWS.status] == STABLE
    for name, most in limits.items():
        assert found.values[getattr(ROWS, name)] <= most


def test_limits_that_nothing_keeps():
    with pytest.raises(StrategyError, match="prefill workers"):
        matched_workers(TABLES, pools(), arriving(1.0), 1, 1, {"time_to_first_token_p50": 1e-3})
    with pytest.raises(StrategyError, match="decode workers"):
        matched_workers(TABLES, pools(), arriving(1.0), 1, 1, {"time_per_output_token_p50": 1e-3})
    with pytest.raises(StrategyError, match="did you mean time_to_first_token_p99"):
        matched_workers(TABLES, pools(), arriving(1.0), 1, 1, {"time_to_first_token_p96": 1.0})
