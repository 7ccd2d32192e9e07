"""Results as rows: every answer once, with its choices, figures and the reasons of the others."""

import numpy as np
import pytest

from perfmodel import PerfModelError, best
from perfmodel.base.table import from_xarray
from perfmodel.base.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.report.results import population_of


@pytest.fixture(scope="module")
def table(swept):
    return from_xarray(swept)


def test_every_answer_is_a_row(table, swept):
    found = population_of(table)
    assert found.total == swept["step_time"].size
    assert found.count == int(np.isfinite(swept["step_time"].values).sum())
    assert found.total == found.count + sum(found.left_out.values())
    assert found.left_out  # by the rule that they break, in words
    assert all(" " in reason for reason in found.left_out)


def test_the_best_row_is_that_of_best(table, swept):
    (first,) = best(swept, 1)
    found = population_of(table)
    row = found.best_first(found.fitting(), found.kind.rank)[0]
    for name in ("hardware", "tensor_parallel", "pipeline_parallel", "recompute", "zero_stage"):
        it = found.choices[name]
        assert it.labels[it.codes[row]] == str(first[name])
    for name in ("step_time", "memory_total", "tokens_per_second_per_device"):
        assert found.figures[name].values[row] == pytest.approx(first[name], rel=1e-6)


def test_parts_add_up_to_the_whole(table):
    found = population_of(table).figures
    for whole, parts in (("step_time", TIME_COMPONENTS), ("memory_total", MEMORY_COMPONENTS)):
        total = sum(found[name].values.astype(float) for name in parts)
        np.testing.assert_allclose(total, found[whole].values, rtol=2e-6)
    share = found["communication_share"].values
    assert ((share >= 0) & (share < 1)).all()


def test_a_filter_keeps_what_best_keeps(table):
    found = population_of(table, "tp == 2 and hardware == 'dgx-h100'")
    assert set(np.unique(found.choices["tensor_parallel"].codes)) == {0}
    assert found.choices["hardware"].labels == ["dgx-h100"]
    with pytest.raises(PerfModelError, match="filter"):
        population_of(table, "tp <")


def test_choices_say_how_a_command_names_them(table):
    found = population_of(table).choices
    assert found["tensor_parallel"].option == "tp"
    assert found["tensor_parallel"].default == "1"
    assert found["sequence_parallel"].labels == ["no", "yes"]
    assert found["sequence_parallel"].default == "yes"
    assert found["data_parallel"].option == ""  # what the others leave
    assert found["devices"].labels == ["16"]


def test_capacity_is_the_limit_of_memory(table, swept):
    limits = population_of(table).limits["memory_total"]
    assert list(limits) == ["dgx-h100", "dgx-b200"]
    assert list(limits.values()) == swept["memory_capacity"].values.tolist()


def test_a_mean_pass_of_a_served_model_is_the_sum_of_its_parts(served):
    found = population_of(from_xarray(served))
    assert found.kind.name == "serving"
    parts = found.kind.waterfalls[0].parts
    total = sum(found.figures[name].values for name in parts)
    np.testing.assert_allclose(found.figures["pass_time"].values, total)
    assert found.choices["devices"].option == ""
