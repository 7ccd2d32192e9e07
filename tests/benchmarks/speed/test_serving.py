"""The speed of served models: every call answers all that it counts, and says its unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def speed(script: Any) -> Any:
    return script.load("speed.serving")


def test_tables_and_deployments_are_those_of_the_axes(speed: Any) -> None:
    tables, deployments = speed.ready(tensor_parallel=[2, 4], max_sequences=[16, 32])
    assert deployments.layout.size == 4
    assert tables.body.shape[0] == 2
    assert sorted(deployments.max_sequences) == [16, 16, 32, 32]


def test_every_point_that_is_counted_is_filled(speed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(speed, "close", lambda *given, **_: seen.append(given[3]))
    count, call = speed.points_call(
        "closed", speed.load_grid(concurrency=[1, 8]), tensor_parallel=4
    )
    call()
    assert count == seen[0][0].size == 2


def test_a_rate_is_the_count_over_the_median(speed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setitem(speed.KINDS, "closed", (lambda: (50, lambda: calls.append(1)), "points/s"))
    times = iter(np.repeat([0.0, 1.0, 2.0, 4.0, 5.0], 2) + np.tile([0.0, 0.5], 5))
    monkeypatch.setattr(speed.time, "process_time", lambda: float(next(times)))
    found = speed.measure("closed")
    assert found["rate_per_core"] == 100.0
    assert found["unit"] == "points/s"
    assert len(calls) == speed.REPEATS + 1
