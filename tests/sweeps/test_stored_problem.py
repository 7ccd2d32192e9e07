"""What was swept, rebuilt from what results keep."""

from __future__ import annotations

import numpy as np
import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.base.table import from_xarray
from perfmodel.sweeps.results import rows
from perfmodel.sweeps.stored_problem import stored_problem
from perfmodel.sweeps.sweep import sweep_table

AXES = {
    "sequence_length": 1024,
    "tensor_parallel": [1, 2],
    "pipeline_parallel": 2,
    "context_parallel": 1,
    "micro_batch_size": 1,
}


@pytest.fixture(scope="module", params=["one", "several"])
def table(request):
    if request.param == "one":
        grid = perfmodel.strategy_grid("gpt2", 8, global_batch_size=32, **AXES)
        return from_xarray(perfmodel.sweep("gpt2", grid, ["dgx-h100", "dgx-b200"]))
    return from_xarray(
        perfmodel.sweep_several("gpt2", "dgx-h100", (4, 8), global_batch_size=32, **AXES)
    )


def test_every_strategy_is_projected_again_to_the_same_numbers(table):
    flat = np.arange(0, table["step_time"].values.size, 3)
    for row in rows(table, flat):
        model, grid, hardware, framework = stored_problem(table, row)
        again = sweep_table(model, grid, hardware, framework=framework)
        for name in ("step_time", "memory_total"):
            assert float(again[name].values.ravel()[0]) == pytest.approx(row[name], rel=1e-6)


def test_results_without_provenance_are_refused(table):
    (row,) = rows(table, np.zeros(1, np.intp))
    bare = table.isel(strategy=[0])
    bare.attrs = {"devices": 8}
    with pytest.raises(DataError, match="do not say what was swept"):
        stored_problem(bare, row)
