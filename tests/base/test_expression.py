"""Filters: what they understand, and that nothing else gets through."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.expression import evaluate_mask
from tests.data import table_of

COLUMNS = {
    "tensor_parallel": np.array([1, 2, 4]),
    "recompute": np.array(["none", "full", "none"]),
    "fits": np.array([True, False, True]),
    "step_time": np.array([1.0, 2.0, np.nan]),
    "system.network.1.bandwidth": np.array([25e9, 50e9, 100e9]),
}


def mask(text: str) -> list[bool]:
    return evaluate_mask(text, COLUMNS.__getitem__, COLUMNS, 3).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensor_parallel <= 2", [True, True, False]),
        ("1 < tensor_parallel < 4", [False, True, False]),
        ('recompute == "none" and tensor_parallel > 1', [False, False, True]),
        ("recompute in ['full', 'selective']", [False, True, False]),
        ("tensor_parallel not in (1, 4)", [False, True, False]),
        ("not fits", [False, True, False]),
        ("fits or tensor_parallel == 2", [True, True, True]),
        ("fits == false", [False, True, False]),
        ("2 * step_time >= tensor_parallel + 1", [True, True, False]),
        ("tensor_parallel % 2 == 0", [False, True, True]),
        ("-tensor_parallel < -1", [False, True, True]),
        ("system.network.1.bandwidth > 30e9", [False, True, True]),
    ],
)
def test_filters_mean_what_they_say(text: str, expected: list[bool]) -> None:
    assert mask(text) == expected


@pytest.mark.parametrize("text", ["1 / 0 > tensor_parallel", "9**9**9 > 1", "2**-1 < 1"])
def test_arithmetic_with_extreme_constants_neither_fails_nor_hangs(text: str) -> None:
    assert mask(text) == [True, True, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *table_of(__file__, "anything_else_is_an_error_that_says_why"),
        ("-" * 3000 + "1", "too long"),
        ("(" * 500 + "1" + ")" * 500, "filter"),
    ],
)
def test_anything_else_is_an_error_that_says_why(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        mask(text)
