"""Random served loads: what is drawn can run, and errors are counted as they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.serving.cases import pass_tables


@pytest.fixture
def held(script: Any) -> Any:
    return script.load("accuracy.serving_recursion")


def test_random_points_hold_at_least_two_requests_and_repeat(held: Any) -> None:
    tables = [("llama-3.1-8b", pass_tables(), (1, 1))]
    points = list(held.random_points(tables, 30, seed=5))
    again = list(held.random_points(tables, 30, seed=5))
    assert [point.text() for point in points] == [point.text() for point in again]
    for point in points:
        whole = point.load["input_length"] + point.load["output_length"]
        assert point.deployment["blocks"] * point.deployment["block_tokens"] >= 2 * whole
        assert 1 <= point.load["concurrency"] <= 512


def test_the_summary_tells_the_worst_load(held: Any) -> None:
    tables = [("llama-3.1-8b", pass_tables(), (1, 1))]
    points = list(held.random_points(tables, 3, seed=1))
    rows = [
        (point, dict.fromkeys(held.VARIABLES, error))
        for point, error in zip(points, (0.01, -0.5, 0.03), strict=True)
    ]
    told = held.summary({"open, replay": rows}, worst=1)["open, replay"]
    one = told["time_to_first_token_mean"]
    assert one["median"] == pytest.approx(0.03)
    assert one["worst"] == pytest.approx(0.5)
    assert one["within"] == pytest.approx(2 / 3)
    assert one["worst_loads"] == [{"error": -0.5, "load": points[1].text()}]
