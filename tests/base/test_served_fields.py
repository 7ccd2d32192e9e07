"""What may be chosen of a served model."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_grid
from perfmodel.base.served_fields import (
    ALIASES,
    DEGREES,
    DEPLOYMENT_FIELD_BY_NAME,
    DEPLOYMENT_FIELDS,
    LOAD_FIELD_BY_NAME,
    LOAD_FIELDS,
    WHERE_UNSET,
    is_closed_loop,
    is_stated,
)
from perfmodel.kernels.serving.variables import ALIASES as METRICS
from perfmodel.serving.layouts import LAYOUT_FIELDS


def test_names_and_options_are_unique_and_short_ones_mean_no_other_field():
    fields = (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)
    names = [item.name for item in fields]
    assert len(set(names)) == len(names)
    assert len({item.option for item in fields}) == len(fields)
    assert not set(ALIASES) & set(names)
    assert not set(ALIASES) & set(METRICS)
    assert (ALIASES["isl"], ALIASES["dp_attention"]) == ("input_length", DEGREES[3])


def test_every_field_of_a_layout_may_be_chosen_and_degrees_for_both_pools():
    assert set(LAYOUT_FIELDS) - {"engine"} <= DEPLOYMENT_FIELD_BY_NAME.keys()
    assert {f"prefill_{name}" for name in DEGREES} <= DEPLOYMENT_FIELD_BY_NAME.keys()


def test_defaults_are_within_their_limits():
    for item in (*DEPLOYMENT_FIELD_BY_NAME.values(), *LOAD_FIELD_BY_NAME.values()):
        if item.kind == "choice":
            assert item.default in item.choices
        else:
            assert item.minimum <= item.default <= item.maximum


def test_help_says_what_holds_where_nothing_is_stated():
    fields = DEPLOYMENT_FIELD_BY_NAME | LOAD_FIELD_BY_NAME
    for name, words in WHERE_UNSET.items():
        assert fields[name].description.endswith(f"; 0: {words}")
        assert fields[name].default == 0
    others = [name for name, item in fields.items() if "; 0: " in item.description]
    assert set(others) - WHERE_UNSET.keys() == {"prefill_workers"}  # no worker is a number


def test_loops_are_closed_or_open_and_only_fields_that_may_be_unstated_are_asked():
    loads = load_grid(concurrency=[1, 8], arrival_rate=2.0)
    assert loads.is_closed_loop.tolist() == [True, True, False]
    assert [bool(is_closed_loop(loads.row(i))) for i in range(3)] == [True, True, False]
    assert (is_stated(loads, "arrival_rate") == ~loads.is_closed_loop).all()
    assert np.isinf(loads.kernel_columns().rounds).all()
    with pytest.raises(KeyError, match="prefix"):
        is_stated(loads, "prefix")
