"""What holds an operating point back."""

from __future__ import annotations

import pytest

from perfmodel.serving.limits import LIMITS, limit_of

ROW = {
    "workers": 2,
    "attention_data_parallel": 2,
    "length_spread": 1.0,
    "input_length": 1600,
    "output_length": 1600,
    "block_tokens": 16,
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
