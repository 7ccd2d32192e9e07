"""Two projections and two sweeps against each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.store.cost import add_cost
from perfmodel.store.difference import Change, difference, matched
from perfmodel.store.results import as_table

RUN = {"sequence_length": 4096, "global_batch_size": 64}
AXES = {"pipeline_parallel": [1, 2], "context_parallel": 1, "virtual_pipeline": 1, **RUN}


def swept(hardware: Any, model: str = "llama-3.1-8b", **axes: Any) -> Any:
    grid = perfmodel.strategy_grid(model, 16, **AXES | axes)
    return perfmodel.sweep(model, grid, hardware)


@pytest.fixture(scope="module")
def narrow() -> Any:
    return swept("dgx-h100", tensor_parallel=[1, 2, 4])


@pytest.fixture(scope="module")
def wide() -> Any:
    return swept("dgx-b200", tensor_parallel=[2, 4, 8])


def test_changes_are_the_difference_of_two_projections() -> None:
    a = perfmodel.project("llama-3.1-8b", "dgx-h100", 16, tensor_parallel=2, **RUN)
    b = perfmodel.project("llama-3.1-8b", "dgx-h100", 16, tensor_parallel=4, **RUN)
    found = difference(a, b)
    assert found.settings["tensor_parallel"] == (2, 4)
    assert found.settings["data_parallel"] == (8, 4)
    assert "hardware" not in found.settings
    step = found.changes["step_time"]
    assert step.absolute == b["step_time"] - a["step_time"]
    assert step.relative == pytest.approx(b["step_time"] / a["step_time"] - 1)
    assert not {"hardware", "fits", "status", "tensor_parallel"} & set(found.changes)


def test_equal_projections_differ_in_nothing() -> None:
    a = perfmodel.project("llama-3.1-8b", "dgx-h100", 16, **RUN)
    found = difference(a, a)
    assert not found.settings
    assert all(change.absolute == change.relative == 0 for change in found.changes.values())


def test_a_quantity_out_of_nothing_grows_without_bound() -> None:
    assert Change("pipeline_bubble", 0.0, 1.0).relative == math.inf
    assert Change("pipeline_bubble", 1.0, 0.0).relative == -1.0
    assert Change("pipeline_bubble", 0.0, 0.0).relative == 0.0


def test_what_one_side_lacks_is_left_out() -> None:
    a = {"step_time": 1.0, "cost_per_token": None, "memory_total": math.nan, "hardware": "x"}
    found = difference(a, {"step_time": 2.0, "cost_per_token": 1.0, "memory_total": 1.0})
    assert set(found.changes) == {"step_time"}
    assert found.settings == {}


def test_strategies_are_matched_by_all_their_fields(narrow: Any, wide: Any) -> None:
    found = matched(narrow, wide)
    a, b = as_table(narrow), as_table(wide)
    pairs = {}
    for table, at in ((a, 0), (b, 2)):
        columns = [table[spec.name].labelled()[found.strategies[:, at]] for spec in FIELDS]
        pairs[at] = list(zip(*(column.tolist() for column in columns), strict=True))
    assert pairs[0] == pairs[2]
    assert {row[0] for row in pairs[0]} == {2, 4}
    count = len(found.strategies)
    assert count == np.isin(a["tensor_parallel"].values, [2, 4]).sum()
    assert count + found.only_a == a.sizes["strategy"]
    assert count + found.only_b == b.sizes["strategy"]


def test_spreads_by_hand(narrow: Any, wide: Any) -> None:
    found = matched(narrow, wide)
    before = narrow["step_time"].values[found.strategies[:, 0], 0]
    after = wide["step_time"].values[found.strategies[:, 2], 0]
    relative = after / before - 1
    spread = found.spreads["step_time"]
    assert spread.median == pytest.approx(np.median(relative))
    assert (spread.lowest, spread.highest) == pytest.approx((relative.min(), relative.max()))
    assert (spread.better, spread.worse) == ((relative < 0).sum(), (relative > 0).sum())
    assert relative[spread.best] == relative.min()
    rate = found.spreads["tokens_per_second_per_device"]
    assert (rate.better, rate.worse) == (spread.better, spread.worse)
    assert found.spreads["memory_total"].same > 0
    fits = [narrow["fits"].values[:, 0], wide["fits"].values[:, 0]]
    gained = fits[1][found.strategies[:, 2]] & ~fits[0][found.strategies[:, 0]]
    assert found.gained == gained.sum() > 0
    assert found.lost == 0


def test_hardware_is_matched_by_name(narrow: Any) -> None:
    both = swept(["dgx-b200", "dgx-h100"], tensor_parallel=[1, 2, 4])
    found = matched(narrow, both)
    assert set(found.strategies[:, 3].tolist()) == {1}
    assert found.spreads["step_time"].same == len(found.strategies)
    assert found.only_b == np.isfinite(both["step_time"].values[:, 0]).sum()


def test_costs_are_compared_where_both_have_them(narrow: Any, wide: Any) -> None:
    assert "cost_per_token" not in matched(add_cost(narrow), wide).spreads
    spreads = matched(add_cost(narrow, price=2.0), add_cost(wide, price=2.0)).spreads
    assert spreads["cost_per_token"].median == pytest.approx(spreads["step_time"].median)


def test_sweeps_without_a_common_strategy_are_refused(narrow: Any) -> None:
    other = swept(["dgx-b200", "dgx-h200"], tensor_parallel=[1])
    with pytest.raises(DataError, match="share no possible strategy"):
        matched(narrow, other)
    with pytest.raises(DataError, match="share no possible strategy"):
        matched(narrow, swept("dgx-h100", tensor_parallel=[8]))


def test_sweeps_of_several_models_are_matched_model_by_model(narrow: Any) -> None:
    given = {**AXES, "tensor_parallel": [1, 2, 4]}
    several = perfmodel.sweep_several(
        ["llama-3.1-8b", "llama-2-7b"], "dgx-h100", 16, framework=["megatron", "fsdp"], **given
    )
    found = matched(narrow, several)
    assert len(found.strategies) == np.isfinite(narrow["step_time"].values).sum()
    assert found.spreads["step_time"].same == len(found.strategies)
    assert found.only_b >= 2 * len(found.strategies)
    other = swept("dgx-h100", tensor_parallel=[1, 2, 4], model="llama-2-7b")
    assert matched(narrow, other).spreads["step_time"].same == 0


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), True, "1", None])
def test_what_is_no_number_of_a_machine_is_not_compared(value: object) -> None:
    assert "step_time" not in difference({"step_time": value}, {"step_time": 1.0}).changes
