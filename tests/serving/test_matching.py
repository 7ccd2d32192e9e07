"""The fewest workers of two pools, against all pairs of numbers."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.kernels.serving.tables import ROWS, STABLE
from perfmodel.serving.matching import matched_workers
from tests.kernels.serving.test_disaggregated import TABLES, arriving, close, pools


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
