"""The time of one pass from tables: lines between knots, sizes of graphs, waits for the host."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.serving.passes import captured_size, pass_times
from perfmodel.kernels.serving.tables import PARTS, PassTables


def linear_tables(**changes: float) -> PassTables:
    """One layout whose parts are linear in everything, so that knots don't matter."""
    knots = np.array([1.0, 8.0, 64.0, 512.0])
    body = np.zeros((1, 4, len(PARTS)))
    body[0, :, 1] = 1e-3 + 1e-6 * knots
    numbers = {
        "eager_time": 0.0,
        "graph_time": 0.0,
        "graph_limit": 0.0,
        "graph_step": 8.0,
        "mixed_graph_limit": 0.0,
        "piecewise_time": 0.0,
        "pass_host": 0.0,
        "sequence_host": 0.0,
        "host_hidden": 0.0,
        "half_width": 0.0,
    }
    return PassTables(
        tokens=knots,
        body=body,
        sequences=knots,
        head=1e-7 * knots[None],
        batches=knots,
        contexts=knots,
        decode=1e-9 * knots[None, :, None] * knots[None, None, :],
        chunks=knots,
        before=np.concatenate(([0.0], knots)),
        prefill=1e-8 * knots[None, :, None] * np.ones((1, 1, 5)),
        draft=np.zeros((1, 4)),
        **{name: np.array([changes.get(name, value)]) for name, value in numbers.items()},
    )


def test_a_pass_is_the_sum_of_its_parts() -> None:
    time, *parts = pass_times(linear_tables(), 0, 2.0, 100.0, 0.0, 5.0, 300.0, 1.0, 1.0)
    assert time == pytest.approx(sum(parts), rel=1e-15)
    assert parts[1] == pytest.approx(1e-3 + 1e-6 * 205)
    assert parts[0] == pytest.approx(1e-8 * 200 + 1e-9 * 5 * 300)
    assert parts[4] == pytest.approx(1e-7 * 6)


def test_lines_go_on_beyond_the_last_knot() -> None:
    found = pass_times(linear_tables(), 0, 1.0, 5000.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    assert found[2] == pytest.approx(1e-3 + 1e-6 * 5000)


def test_a_captured_pass_runs_at_the_next_size() -> None:
    sizes = [captured_size(n, 32.0, 8.0) for n in (1.0, 3.0, 5.0, 17.0, 32.0, 33.0)]
    assert sizes == [1.0, 4.0, 8.0, 24.0, 32.0, 33.0]


def test_the_device_waits_for_a_host_that_takes_longer() -> None:
    slow = linear_tables(eager_time=0.5)
    assert pass_times(slow, 0, 1.0, 8.0, 0.0, 0.0, 1.0, 1.0, 1.0)[0] == pytest.approx(0.5)
    hidden = linear_tables(pass_host=0.5, host_hidden=1.0)
    assert pass_times(hidden, 0, 1.0, 8.0, 0.0, 0.0, 1.0, 1.0, 1.0)[0] == pytest.approx(0.5)
    apart = linear_tables(pass_host=0.5)
    assert pass_times(apart, 0, 1.0, 8.0, 0.0, 0.0, 1.0, 1.0, 1.0)[0] > 0.501
