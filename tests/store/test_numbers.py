"""Types of numbers: as small as what they hold allows."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.store.numbers import narrow, number_type, or_single, whole_kind


@pytest.mark.parametrize(
    ("largest", "kind"),
    [
        (0, np.int8),
        (127, np.int8),
        (128, np.int16),
        (32_767, np.int16),
        (32_768, np.int32),
        (2**31 - 1, np.int32),
        (2**31, np.int64),
        (2**40, np.int64),
    ],
)
def test_whole_numbers_have_the_smallest_type_that_holds_them(largest: int, kind: type) -> None:
    assert whole_kind(largest) is kind
    column = np.array([0, largest])
    assert narrow(column).dtype == kind
    np.testing.assert_array_equal(narrow(column), column)


def test_results_have_one_of_two_types() -> None:
    assert number_type(np.float32) == number_type("float32") == np.dtype("f4")
    assert or_single("float32") == ""
    assert or_single("float64") == ", or dtype float32"
    for other in ("float16", "int64", "no such type"):
        with pytest.raises(DataError, match=f"dtype: '{other}' is not one of float32, float64"):
            number_type(other)
