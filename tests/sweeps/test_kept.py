"""What a sweep keeps: all strategies, or the best of them (`tests/sweeps/test_ranking.py`)."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.strategy.enumerate import strategy_grid
from perfmodel.sweeps.kept import sweep
from perfmodel.sweeps.sweep import sweep_table


@pytest.fixture(scope="module")
def grid():
    return strategy_grid(
        "llama-3.1-8b", 8, sequence_length=2048, global_batch_size=[16, 32], micro_batch_size=1
    )


def test_all_is_every_strategy(grid):
    found = sweep("llama-3.1-8b", grid, "dgx-h100")
    table = sweep_table("llama-3.1-8b", grid, "dgx-h100", dtype="float32")
    assert found.sizes["strategy"] == len(grid)
    np.testing.assert_array_equal(found.step_time.values, table["step_time"].values)


def test_the_best_are_as_many_as_asked_for(grid):
    whole = sweep("llama-3.1-8b", grid, "dgx-h100").step_time.where(lambda it: it > 0)
    few = sweep("llama-3.1-8b", grid, "dgx-h100", keep="best", top=3, by="step_time")
    assert few.sizes["strategy"] == 3
    assert (whole.dtype, few.step_time.dtype) == ("float32", "float64")
    assert float(few.step_time.min()) >= float(whole.min()) * (1.0 - 1e-7)
    assert few.fits.all()


def test_nothing_else_can_be_kept(grid):
    with pytest.raises(DataError, match="keep: 'some' is not one of all, best"):
        sweep("llama-3.1-8b", grid, "dgx-h100", keep="some")
