"""Stored results as cases: what is varied is what was projected."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel import PerfModelError, load_model, save_results
from perfmodel.analysis.stored_case import stored_case
from perfmodel.base.table import Table
from perfmodel.store.results import best, open_table
from perfmodel.strategy.enumerate import strategy_grid
from perfmodel.sweeps.serving import serve_table
from perfmodel.sweeps.sweep import sweep_table

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
