"""What may be chosen of a served model."""

from __future__ import annotations

from perfmodel.base.serving_variables import ALIASES as METRICS
from perfmodel.serving.fields import (
    ALIASES,
    DEGREES,
    DEPLOYMENT_FIELD_BY_NAME,
    DEPLOYMENT_FIELDS,
    LOAD_FIELD_BY_NAME,
    LOAD_FIELDS,
)
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
