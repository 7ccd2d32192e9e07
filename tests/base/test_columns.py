"""Columns that are given together: made alike, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfmodel.base import columns as module
from perfmodel.base.columns import Texts, broadcast, check_least, distinct_keys, plain_values
from perfmodel.base.errors import DataError, StrategyError


def test_numbers_and_arrays_become_rows_with_their_own_memory():
    given = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = broadcast("thing", {"a": given, "b": 5})
    assert found["a"].tolist() == [1, 2, 3, 4]
    assert found["b"].tolist() == [5, 5, 5, 5]
    assert all(column.flags.c_contiguous and column.flags.writeable for column in found.values())
    found["a"][0] = 9
    assert given[0, 0] == 1
    assert broadcast("thing", {"a": 1, "b": 2})["a"].shape == (1,)


def test_every_column_keeps_its_type_if_none_is_wanted():
    found = broadcast("thing", {"a": [1, 2], "b": 0.5, "c": True}, dtype=None)
    assert [column.dtype.kind for column in found.values()] == ["i", "f", "b"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, 2], "b": [1, 2, 3]}, r"thing: shapes do not .* together: a \(2,\), b \(3,\)"),
        ({"a": 1, "b": "many"}, "thing: b should be numbers"),
        ({"a": [[1], [1, 2]]}, "thing: a should be numbers"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(columns, message):
    with pytest.raises(StrategyError, match=message):
        broadcast("thing", columns, error=StrategyError)


@pytest.mark.parametrize(
    ("column", "whole", "message"),
    [
        ([1, 0.5], False, "thing 1: n is 0.5; it must be a finite number of at least 1"),
        ([np.inf, 1], False, "thing 0: n is inf; it must be a finite number of at least 1"),
        ([2, 2, 1.5], True, "thing 2: n is 1.5; it must be a whole number of at least 1"),
        ([np.nan], True, "thing 0: n is nan; it must be a whole number of at least 1"),
    ],
)
def test_the_first_wrong_row_is_named(column, whole, message):
    columns = {"m": np.ones(len(column)), "n": np.array(column)}
    with pytest.raises(DataError, match=f"^{message}$"):
        check_least("thing {row}", columns, 1.0, whole=whole)
    check_least("thing {row}", {"m": columns["m"]}, 1.0, whole=whole)


def test_single_precision_has_the_digits_that_it_has():
    assert plain_values(np.array([0.1, 8030527488.0], np.float32)) == [0.1, 8030527500.0]
    assert np.float32(8030527500.0) == np.float32(8030527488.0)
    assert plain_values(np.array([0.1])) == [0.1]
    assert plain_values(np.array(["a", "b"])) == ["a", "b"]


WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=6)


@given(WORDS)
def test_texts_come_back(words):
    texts = Texts.of(words)
    assert (len(texts), list(texts)) == (len(words), words)
    assert texts == words
    assert texts == tuple(words)
    assert texts == Texts.of(iter(words))
    assert Texts.of(texts) is texts
    assert texts[1:] == tuple(words[1:])
    assert [texts[-1 - i] for i in range(len(words))] == words[::-1]
    assert hash(texts) == hash(Texts.of(words))


def test_other_texts_are_not_equal():
    assert Texts.of(["ab", "c"]) != Texts.of(["a", "bc"])
    assert Texts.of(["ab"]) != ["ac"]
    assert Texts.of([]) != "text"
    assert repr(Texts.of(["é"])) == "Texts.of(('é',))"


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_out_of_range(index):
    with pytest.raises(IndexError):
        Texts.of(["a", "b"])[index]


def test_half_a_pair_is_no_text():
    with pytest.raises(UnicodeEncodeError):
        Texts.of(["\ud800"])


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
    before, module.LARGEST_TABLE = module.LARGEST_TABLE, limit
    try:
        check({f"c{i}": table[:, i] * (1 + 3 * i) for i in range(table.shape[1])})
    finally:
        module.LARGEST_TABLE = before


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
