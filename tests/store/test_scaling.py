"""Curves over the number of devices."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.base.variables import RATE
from tests.sweeps.test_several import AXES

DEVICES = (4, 8, 16)


@pytest.fixture(scope="module", params=["strong", "weak"])
def curve(request):
    results = perfmodel.sweep_several(
        "gpt2", "dgx-h100", DEVICES, global_batch_size=32, scaling=request.param, **AXES
    )
    return request.param, results, perfmodel.scaling(results)


def test_every_number_of_devices_has_its_best_strategy(curve):
    _, results, rows = curve
    assert [row["devices"] for row in rows] == list(DEVICES)
    assert results.perfmodel.scaling() == rows
    for row in rows:
        top = perfmodel.best(results, 1, where=f"devices == {row['devices']}")[0]
        assert row["step_time"] == top["step_time"]
        tokens = row["global_batch_size"] * row["sequence_length"]
        assert row["tokens_per_second"] == pytest.approx(tokens / row["step_time"])


def test_efficiency_is_that_of_a_device_against_the_smallest_run(curve):
    _, _, rows = curve
    assert rows[0]["scaling_efficiency"] == 1.0
    for row in rows:
        assert row["scaling_efficiency"] == row[RATE] / rows[0][RATE]


def test_strong_keeps_the_batch_and_weak_lets_it_grow(curve):
    kind, _, rows = curve
    batches = [row["global_batch_size"] for row in rows]
    assert batches == ([32, 32, 32] if kind == "strong" else [32, 64, 128])


def test_every_batch_and_hardware_has_a_curve_of_its_own():
    results = perfmodel.sweep_several(
        "gpt2", ["dgx-h100", "dgx-b200"], [4, 8], global_batch_size=[32, 64], **AXES
    )
    rows = perfmodel.scaling(results)
    curves = [(row["hardware"], row["global_batch_size"], row["devices"]) for row in rows]
    assert len(curves) == len(set(curves)) == 8
    assert curves[0][2] < curves[1][2]
    assert perfmodel.scaling(results, where="devices > 100") == []


def test_a_sweep_of_one_number_is_a_point():
    grid = perfmodel.strategy_grid("gpt2", 4, global_batch_size=32, **AXES)
    point = perfmodel.scaling(perfmodel.sweep("gpt2", grid, "dgx-h100"))
    assert [row["devices"] for row in point] == [4]
