"""Rows of stored results are taken up as they were projected."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from perfmodel import PerfModelError, load_model, save_results, sweep_several
from perfmodel.analysis.projection import project_strategy
from perfmodel.analysis.recalled import recalled_point, recalled_strategy, stored_case
from perfmodel.base.errors import DataError
from perfmodel.base.table import Table, from_xarray
from perfmodel.hwprofiles import load_hardware
from perfmodel.serving.enumerate import load_grid, serving_grid
from perfmodel.store.results import best, open_table, rows
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
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
        assert found.method == row["method"] == "recursion"
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


LENGTHS: dict[str, Any] = {"sequence_length": 4096, "global_batch_size": 64}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = tmp_path_factory.mktemp("case") / "sweep.nc"
    axes: dict[str, Any] = {"virtual_pipeline": 1, "context_parallel": 1, "micro_batch_size": 1}
    grid = strategy_grid("llama-3.1-8b", 16, hardware="dgx-h100", **LENGTHS, **axes)
    save_results(sweep_table(load_model("llama-3.1-8b"), grid, "dgx-h100"), path)
    return open_table(path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = tmp_path_factory.mktemp("case") / "serve.nc"
    loads = {"input_length": 1024, "output_length": 128, "concurrency": [4, 16]}
    table = serve_table("llama-3.1-8b", {"tensor_parallel": [1, 2]}, loads, "dgx-h200")
    save_results(table, path)
    return open_table(path)


def test_every_strategy_comes_out_as_it_is_stored(sweep: Table) -> None:
    for row in best(sweep, 12):
        assert stored_case(sweep, row).base().value == pytest.approx(row["step_time"], rel=1e-12)


def test_the_best_of_all_is_the_best_of_the_file(sweep: Table) -> None:
    rows = best(sweep, 5, by="step_time")
    case = stored_case(sweep, rows[4], reoptimise=True)
    found = case.base()
    assert found.value == pytest.approx(rows[0]["step_time"], rel=1e-12)
    assert found.chosen["tensor_parallel"] == rows[0]["tensor_parallel"]


def test_served_points_come_out_as_they_are_stored(served: Table) -> None:
    for row in best(served, 4):
        case = stored_case(served, row, by="ttft_p95")
        assert case.base().value == pytest.approx(row["time_to_first_token_p95"], rel=1e-9)
    rows = best(served, 4, by="tpot")
    case = stored_case(served, rows[-1], by="tpot", reoptimise=True)
    same = [row for row in rows if row["concurrency"] == rows[-1]["concurrency"]]
    assert case.base().value == pytest.approx(same[0]["time_per_output_token_mean"], rel=1e-9)


def test_results_that_do_not_say_what_was_projected_are_refused(
    sweep: Table, served: Table
) -> None:
    for table in (sweep, served):
        row = best(table, 1)[0]
        attrs = {name: it for name, it in table.attrs.items() if name != "provenance"}
        bare = Table(table.data_vars, table.coords, attrs, table.sizes)
        with pytest.raises(PerfModelError, match="do not say what was") as caught:
            stored_case(bare, row)
        assert "\n" not in str(caught.value)
