"""Written values as numbers of columns, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.axes import LEAST, axis_values, columns_from_rows, decode, encode
from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS


def values_of(spec):
    """Hypothesis strategy for the values of a field."""
    if spec.kind == "choice":
        return st.sampled_from(spec.choices)
    if spec.kind == "bool":
        return st.booleans()
    if spec.kind == "float":
        return st.floats(max(spec.minimum, LEAST), spec.maximum)
    return st.integers(spec.minimum, 2**40)


@given(st.sampled_from(FIELDS).flatmap(lambda spec: st.tuples(st.just(spec), values_of(spec))))
def test_decoding_undoes_encoding(case):
    spec, value = case
    assert decode(spec.name, encode(spec.name, value)) == value
    assert type(decode(spec.name, encode(spec.name, value))) is type(value)


def test_axis_takes_one_value_or_many_and_drops_repeats():
    assert axis_values("tensor_parallel", 4).tolist() == [4]
    assert axis_values("tensor_parallel", (8, 2, 8)).tolist() == [8, 2]
    assert axis_values("recompute", "full").tolist() == [2]
    assert axis_values("recompute", ["none", "full"]).tolist() == [0, 2]
    assert axis_values("tensor_parallel", range(1, 4)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("values", [[], (), [4, "x"], [0], ["full"]])
def test_bad_axes_are_refused(values):
    with pytest.raises(StrategyError, match=r"^tensor_parallel: "):
        axis_values("tensor_parallel", values)


def test_rows_become_columns_with_defaults():
    columns = columns_from_rows([{"tensor_parallel": 4, "recompute": "full"}, {}])
    assert set(columns) == set(FIELD_BY_NAME)
    assert columns["tensor_parallel"].tolist() == [4, 1]
    assert columns["recompute"].tolist() == [2, 0]
    assert columns["zero_stage"].tolist() == [1, 1]
    for name, column in columns.items():
        assert column.dtype == (np.float64 if FIELD_BY_NAME[name].kind == "float" else np.int64)


def test_rows_with_an_unknown_field_are_refused():
    with pytest.raises(StrategyError, match="unknown strategy field 'tensor_paralel'"):
        columns_from_rows([{}, {"tensor_paralel": 2}])


def test_a_number_too_small_for_any_run_is_refused():
    with pytest.raises(StrategyError, match=r"padding: 5e-324 is below .*, but not 0"):
        encode("padding", 5e-324)
    assert encode("padding", 0.0) == 0.0
