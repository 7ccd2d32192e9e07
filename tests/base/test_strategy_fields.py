"""Fields of a strategy: what each may hold."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from perfmodel.base.axes import axis_values, decode, encode
from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS

INTEGER_FIELDS = [spec.name for spec in FIELDS if spec.kind == "int"]
CHOICE_FIELDS = [spec.name for spec in FIELDS if spec.kind == "choice"]


def test_every_field_is_described_and_has_a_valid_default():
    assert len({spec.name for spec in FIELDS}) == len(FIELDS)
    assert len({spec.option for spec in FIELDS}) == len(FIELDS)
    for spec in FIELDS:
        assert spec.kind in ("int", "float", "bool", "choice")
        assert len(spec.description) > 10
        assert decode(spec.name, encode(spec.name, spec.default, FIELD_BY_NAME)) == spec.default


@pytest.mark.parametrize("name", INTEGER_FIELDS)
@pytest.mark.parametrize(
    "value", [-1, True, False, 1.0, 2.5, math.nan, math.inf, "4", None, b"4", [4], 2**40 + 1]
)
def test_integers_refuse_everything_else(name, value):
    with pytest.raises(StrategyError, match=f"^{name}: "):
        encode(name, value, FIELD_BY_NAME)


@pytest.mark.parametrize("name", INTEGER_FIELDS)
def test_zero_is_refused_where_it_means_nothing(name):
    if FIELD_BY_NAME[name].minimum == 0:
        assert encode(name, 0, FIELD_BY_NAME) == 0
    else:
        with pytest.raises(StrategyError, match=f"{name}: 0 is below 1"):
            encode(name, 0, FIELD_BY_NAME)


@pytest.mark.parametrize("value", ["yes", 2, -1, None, math.nan, "true"])
def test_truth_values_refuse_everything_else(value):
    with pytest.raises(StrategyError, match=r"sequence_parallel: .* is neither true nor false"):
        encode("sequence_parallel", value, FIELD_BY_NAME)


@pytest.mark.parametrize("name", CHOICE_FIELDS)
@pytest.mark.parametrize("value", ["nothing", 0, None, True, math.nan])
def test_choices_list_what_is_right(name, value):
    spec = FIELD_BY_NAME[name]
    with pytest.raises(StrategyError, match=f"^{name}: .* is not {re.escape(spec.expected)}"):
        encode(name, value, FIELD_BY_NAME)
    assert all(label in spec.expected for label in spec.choices) or spec.form


def test_all_stands_for_every_label():
    assert axis_values("mapping", "all", FIELD_BY_NAME).tolist() == list(range(24))
    assert axis_values("recompute", "all", FIELD_BY_NAME).tolist() == [0, 1, 2]
    with pytest.raises(StrategyError, match="recompute: 'all' is not one of none"):
        axis_values("recompute", ["all"], FIELD_BY_NAME)  # a list names its labels
    with pytest.raises(StrategyError, match="'all' is not a whole number"):
        axis_values("tensor_parallel", "all", FIELD_BY_NAME)


def test_unknown_field_gets_a_suggestion():
    with pytest.raises(StrategyError, match="unknown strategy field 'recomput'; did you mean reco"):
        encode("recomput", "full", FIELD_BY_NAME)


def test_numpy_numbers_are_numbers():
    assert encode("tensor_parallel", np.int64(8), FIELD_BY_NAME) == 8
    assert encode("sequence_parallel", np.bool_(True), FIELD_BY_NAME) == 1
    assert axis_values("pipeline_parallel", np.array([1, 2, 4]), FIELD_BY_NAME).tolist() == [
        1,
        2,
        4,
    ]
