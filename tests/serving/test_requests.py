"""Traces of requests: what they must have, and random ones."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.serving.requests import RequestTrace, random_trace


def test_random_requests_come_at_their_rate() -> None:
    trace = random_trace(20_000, 5.0, (100, 200), 7, seed=3)
    assert len(trace) / trace.arrival[-1] == pytest.approx(5.0, rel=0.03)
    gaps = np.diff(trace.arrival)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert (trace.input_length.min(), trace.input_length.max()) == (100, 200)
    assert set(trace.output_length.tolist()) == {7}
    again = random_trace(20_000, 5.0, (100, 200), 7, seed=3)
    assert np.array_equal(trace.input_length, again.input_length)


@pytest.mark.parametrize(
    ("arrival", "inputs", "outputs", "message"),
    [
        ([], [], [], "no requests"),
        ([1.0, 0.5], [1, 1], [1, 1], "never fall"),
        ([0.0, np.nan], [1, 1], [1, 1], "finite"),
        ([0.0], [1, 1], [1], "1 arrivals and 2 input_lengths"),
        ([0.0], [1], [0], "output_length should be 1 to"),
    ],
)
def test_what_is_refused(arrival, inputs, outputs, message: str) -> None:
    with pytest.raises(DataError, match=message):
        RequestTrace(np.array(arrival), np.array(inputs), np.array(outputs))


def test_blocks_are_told_for_every_request() -> None:
    with pytest.raises(DataError, match="block_starts"):
        RequestTrace(np.zeros(1), np.ones(1), np.ones(1), np.zeros(1, np.int64), np.arange(3))


def test_random_requests_of_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="above 0"):
        random_trace(0, 1.0, 5, 5)
    with pytest.raises(DataError, match="input_length 9 to 3"):
        random_trace(5, 1.0, (9, 3), 5)
