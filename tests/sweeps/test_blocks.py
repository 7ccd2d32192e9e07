"""The tables of blocks are those of the whole sweep, cut into pieces."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.store.cost import add_cost
from perfmodel.store.results import decide_safely
from perfmodel.sweeps.several import enumerate_problems
from perfmodel.sweeps.stored import joined
from tests.sweeps.block_sweeps import AXES, BLOCK, asked, assert_same, at_once, blocks, whole


def test_blocks_are_the_sweep_cut_into_pieces():
    sweep = blocks()
    assert sweep.count == whole().sizes["strategy"] > 2 * BLOCK
    assert sweep.count % BLOCK  # so that the last is shorter, and problems begin within blocks
    tables = [sweep.table(*sweep.bounds(number)) for number in range(sweep.blocks)]
    assert_same(joined(tables), whole())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_costs_safety_and_number_types_hold_in_every_block(dtype):
    costs = {"tokens": 1e12, "price": {"dgx-h100": 2.5}, "goodput": True}
    sweep = blocks(costs=costs, safe=True, dtype=dtype)
    expected = at_once(dtype=dtype)
    decide_safely(expected)
    expected = add_cost(expected, **costs)
    tables = [sweep.table(*sweep.bounds(number)) for number in range(sweep.blocks)]
    assert_same(joined(tables), expected)


def test_one_problem_has_no_coordinates_of_problems():
    one = {"frameworks": asked()["frameworks"][:1], "devices": [8], "keep_impossible": True}
    sweep = blocks(**one)
    expected = at_once(**one)
    del expected.attrs["scaling"]
    tables = [sweep.table(*sweep.bounds(number)) for number in range(sweep.blocks)]
    assert_same(joined(tables), expected)
    assert "framework" not in tables[0]


def test_numbers_that_need_64_bits_have_them_in_every_block():
    axes = {**AXES, "global_batch_size": [64, 2**32]}
    one = {"axes": axes, "frameworks": asked()["frameworks"][:1], "devices": [8]}
    sweep = blocks(**one)
    assert sweep.table(0, 1)["global_batch_size"].values.dtype == np.int64
    assert sweep.table(0, 1)["tensor_parallel"].values.dtype == np.int8
    assert sweep.table(0, 1)["tensor_parallel"].labelled().dtype == np.int32


def test_what_is_impossible_is_counted_as_by_one_enumeration():
    given = asked(axes={**AXES, "tensor_parallel": [3, 16], "pipeline_parallel": 1})
    sweep, found = blocks(axes=given["axes"]), enumerate_problems(**given)
    assert sweep.rejected == found.rejected
    assert sweep.possible == found.possible
    assert set(sweep.empty) == set(found.empty) == {("llama-3.1-8b", 8)}


def test_it_is_small_to_send():
    assert len(pickle.dumps(blocks())) < 300_000


def test_models_of_one_name_are_refused():
    with pytest.raises(StrategyError, match="two models are called"):
        blocks(models=asked()["models"] * 2)
