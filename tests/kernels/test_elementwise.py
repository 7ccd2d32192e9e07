"""Kernels over columns: as they are for each number."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels import elementwise
from perfmodel.kernels.elementwise import chosen, larger, over_columns, smaller, square_root
from perfmodel.kernels.matmul.candidates import ceiling, heated_time

NUMBERS = st.floats(0, 2.0**51)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9))
def test_choices_are_made_for_each(pairs):
    a, b = np.array(pairs).T
    for choice in (larger, smaller):
        expected = [choice(*pair) for pair in pairs]
        assert elementwise._OVER_COLUMNS[choice.__name__](a, b).tolist() == expected
    assert [chosen(x < y, x, y) for x, y in pairs] == np.minimum(a, b).tolist()


def test_the_second_of_equals_and_of_what_is_no_number_is_taken():
    assert math.copysign(1.0, larger(0.0, -0.0)) == -1.0
    assert larger(math.nan, 1.0) == smaller(math.nan, 1.0) == 1.0
    assert square_root(2.0) == math.sqrt(2.0)


@given(st.lists(NUMBERS, min_size=1, max_size=9))
def test_what_a_kernel_calls_is_over_columns_too(values):
    column = np.array(values)
    assert over_columns(ceiling)(column).tolist() == [math.ceil(value) for value in values]
    assert over_columns(heated_time)(column, 0.5, 1.0).tolist() == [
        heated_time(value, 0.5, 1.0) for value in values
    ]
