"""Rows of stored results are taken up as they were projected."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel import sweep_several
from perfmodel.analysis.projection import project_strategy
from perfmodel.base.errors import DataError
from perfmodel.base.table import from_xarray
from perfmodel.hwprofiles import load_hardware
from perfmodel.serving.enumerate import load_grid, serving_grid
from perfmodel.store.recalled import recalled_point, recalled_strategy
from perfmodel.store.results import best, rows
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.sweeps.serving import serve_table
from perfmodel.sweeps.sweep import sweep_table

ROWS = [
    {"tensor_parallel": 2, "global_batch_size": 32, "sequence_length": 2048},
    {"pipeline_parallel": 2, "global_batch_size": 32, "sequence_length": 2048, "zero_stage": 2},
]


@pytest.fixture(scope="module")
def table(llama_8b):
    # Not as the profile has it: what is taken up is what was swept.
    hardware = load_hardware("dgx-h100", {"device.memory.bandwidth": 3e12})
    return sweep_table(llama_8b, strategies_from_rows(llama_8b, 8, ROWS), hardware, threads=1)


def test_a_strategy_projects_the_same(table, llama_8b):
    for row in best(table, 2, fitting=False):
        found = recalled_strategy(table.attrs, row, "sweep.nc")
        assert found.model == llama_8b
        again = project_strategy(*found)
        for name in ("step_time", "memory_total", "pipeline_bubble"):
            assert again[name] == pytest.approx(row[name], rel=1e-6)


def test_each_of_several_sweeps_projects_the_same():
    axes = {"sequence_length": 1024, "pipeline_parallel": 2, "micro_batch_size": 1}
    several = sweep_several("gpt2", "dgx-h100", (4, 8), global_batch_size=32, **axes)
    table = from_xarray(several)
    found = list(rows(table, np.arange(0, table["step_time"].values.size, 9)))
    assert {row["devices"] for row in found} == {4, 8}
    for row in found:
        again = project_strategy(*recalled_strategy(table.attrs, row))
        assert again["step_time"] == pytest.approx(row["step_time"], rel=1e-6)


def test_an_operating_point_projects_the_same():
    hardware = load_hardware("dgx-h200")
    grid = serving_grid("llama-3.1-8b", hardware, engine="sglang", tensor_parallel=[1, 2])
    loads = load_grid(input_length=512, output_length=32, concurrency=[2, 8], prefix=0.25)
    table = serve_table(grid.model, grid, loads, [hardware])
    for row in best(table, 4, by="request_time_mean"):
        found = recalled_point(table.attrs, row, "serve.nc")
        assert found.method == "closed"
        again = serve_table(found.grid.model, found.grid, found.loads, [found.hardware])
        wanted = row["request_time_mean"]
        assert float(again["request_time_mean"].values.item()) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", ["hardware", "model", "framework"])
def test_results_that_do_not_say_what_they_are_of(table, kind):
    (row,) = best(table, 1, fitting=False)
    provenance = json.loads(table.attrs["provenance"])
    del provenance[kind]
    attributes = {**table.attrs, "provenance": json.dumps(provenance)}
    with pytest.raises(DataError, match=r"'sweep\.nc' does not say what was swept"):
        recalled_strategy(attributes, row, "sweep.nc")
    with pytest.raises(DataError, match="the results do not say what was swept"):
        recalled_strategy(attributes, row)
    with pytest.raises(DataError, match="does not say what was served"):
        recalled_point({}, row, "serve.nc")


def test_a_schedule_of_a_file_is_not_kept(table):
    (row,) = best(table, 1, fitting=False)
    with pytest.raises(DataError, match="--schedule-file"):
        recalled_strategy(table.attrs, {**row, "pipeline_schedule": "table"}, "sweep.nc")
