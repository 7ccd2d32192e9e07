"""The fewest devices within limits, against trying every number of workers."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_grid, load_hardware, serving_grid, size_deployment
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.serving.tables import ROWS
from perfmodel.serving.project import project_points

LENGTHS = {"input_length": 1024, "output_length": 32}
LIMITS = {"ttft_p95": 1.0, "tpot_p95": 0.05}


def smallest(rate: float, **axes: int) -> float:
    """Try numbers of workers one after the other."""
    loads = load_grid(**LENGTHS, arrival_rate=rate)
    grid = serving_grid("llama-3.1-8b", workers=list(range(1, 9)), **axes)
    values = project_points(grid, loads, load_hardware("dgx-h100")).values[:, :, 0]
    kept = values[ROWS.status] == 0
    kept &= values[ROWS.time_to_first_token_p95] <= LIMITS["ttft_p95"]
    kept &= values[ROWS.time_per_output_token_p95] <= LIMITS["tpot_p95"]
    return float(grid.devices[np.argmax(kept)]) if kept.any() else np.inf


@pytest.mark.parametrize("rate", [2.0, 100.0])
def test_fewest_devices_are_those_that_trying_all_finds(rate):
    found = size_deployment(
        "llama-3.1-8b",
        "dgx-h100",
        rate=rate,
        limits=LIMITS,
        loads=LENGTHS,
        deployments={"tensor_parallel": [1, 2]},
    )
    expected = min(smallest(rate, tensor_parallel=t) for t in (1, 2))
    assert found[0]["devices"] == expected
    assert [row["devices"] for row in found] == sorted(row["devices"] for row in found)
    for row in found:
        assert row["time_to_first_token_p95"] <= 1.0
        assert row["time_per_output_token_p95"] <= 0.05
        assert row["request_rate"] == pytest.approx(rate, rel=1e-6)


def test_every_hardware_is_answered_with_its_runner_ups():
    found = size_deployment(
        "llama-3.1-8b",
        ["dgx-h100", "dgx-h200"],
        rate=1,
        limits={"tpot": 0.1},
        loads=LENGTHS,
        deployments={"tensor_parallel": [1, 2, 4]},
        top=2,
    )
    assert sorted(row["hardware"] for row in found) == ["dgx-h100"] * 2 + ["dgx-h200"] * 2
    assert [row["devices"] for row in found] == [1, 1, 2, 2]


def test_two_pools_are_matched():
    (found,) = size_deployment(
        "llama-3.1-8b",
        "dgx-h100",
        rate=4,
        limits=LIMITS,
        loads=LENGTHS,
        deployments={"tensor_parallel": 1, "prefill_tensor_parallel": 2},
        pools="two",
        max_devices=64,
    )
    assert found["prefill_workers"] >= 1
    assert found["devices"] == found["workers"] + 2 * found["prefill_workers"]
    assert found["time_to_first_token_p95"] <= 1.0


def test_what_cannot_be_kept_is_told_with_the_nearest():
    with pytest.raises(StrategyError, match="the nearest has time_to_first_token_p95"):
        size_deployment(
            "llama-3.1-8b",
            "dgx-h100",
            rate=1,
            limits={"ttft_p95": 1e-4},
            loads=LENGTHS,
            deployments={"tensor_parallel": 1},
            max_devices=8,
        )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 0.0}, "rate"),
        ({"limits": {"ttft_p96": 2}}, "did you mean"),
        ({"limits": {"ttft_p95": -1}}, "not a positive number"),
        ({"pools": "three"}, "not one of"),
        ({"top": 0}, "positive"),
        ({"loads": {"input_length": [1, 2]}}, "one load"),
        ({"loads": {"input_length": 10**6}}, "exceed the context"),
        ({"deployments": {"tensor_parallel": 8}, "max_devices": 4}, "at most 4 devices"),
    ],
)
def test_questions_that_mean_nothing_are_refused(given, said):
    asked = {"rate": 1.0, "limits": LIMITS, **given}
    with pytest.raises(StrategyError, match=said):
        size_deployment("llama-3.1-8b", "dgx-h100", **asked)
