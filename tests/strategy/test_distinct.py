"""Distinct rows of columns, against NumPy's sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfmodel.strategy import distinct
from perfmodel.strategy.distinct import distinct_keys


def check(columns):
    """Keys are distinct, every row finds its own, and keys carry values of the columns."""
    names = tuple(columns)
    keys, index = distinct_keys(columns, names)
    stacked = np.stack([keys[name] for name in names], axis=1)
    expected = np.unique(np.stack([columns[name] for name in names], axis=1), axis=0)
    assert len(np.unique(stacked, axis=0)) == len(stacked) == len(expected)
    for name in names:
        np.testing.assert_array_equal(keys[name][index], columns[name])


small_columns = hnp.arrays(
    np.int64, st.tuples(st.integers(1, 60), st.just(3)), elements=st.integers(0, 5)
)


@given(small_columns)
def test_keys_reproduce_the_rows(table):
    check({f"c{i}": table[:, i].copy() for i in range(table.shape[1])})


@given(small_columns, st.sampled_from([2, 7, 40]))
def test_values_and_products_above_the_table_are_sorted_instead(table, limit):
    before, distinct.LARGEST_TABLE = distinct.LARGEST_TABLE, limit
    try:
        check({f"c{i}": table[:, i] * (1 + 3 * i) for i in range(table.shape[1])})
    finally:
        distinct.LARGEST_TABLE = before


def test_products_beyond_64_bits_are_compacted():
    generator = np.random.default_rng(1)
    columns = {f"c{i}": generator.integers(0, 2**40, 500) for i in range(9)}
    columns["c0"][250:] = columns["c0"][:250]
    check(columns)  # 500**9 is beyond 2**62


def test_input_is_left_alone_and_may_be_strided():
    column = np.arange(20, dtype=np.int64)[::2]
    before = column.copy()
    check({"a": column, "b": np.zeros(10, np.int64)})
    np.testing.assert_array_equal(column, before)


def test_no_rows_have_no_keys():
    keys, index = distinct_keys(
        {"a": np.zeros(0, np.int64), "b": np.zeros(0, np.int64)}, ("a", "b")
    )
    assert keys["a"].size == index.size == 0


@pytest.mark.parametrize("rows", [1, 1000])
def test_equal_rows_share_one_key(rows):
    keys, index = distinct_keys({"a": np.full(rows, 7), "b": np.full(rows, 2**30)}, ("a", "b"))
    assert keys["a"].tolist() == [7]
    assert keys["b"].tolist() == [2**30]
    assert not index.any()
