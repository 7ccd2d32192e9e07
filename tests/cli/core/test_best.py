"""``perfmodel best``: what ranks, filters and fronts print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from perfmodel.kernels.variables import SCHEMA_VERSION
from tests.cli.running import assert_one_line, document, run
from tests.cli.serving import GRID, serve


def best(file: Path, *arguments: str) -> Any:
    result = run("best", str(file), *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_best_ranks_filters_and_limits(file: Path) -> None:
    document = best(file, "--top", "4", "--by", "step_time", "--where", "tp == 2 and pp == 1")
    rows = document["strategies"]
    assert len(rows) == min(4, document["selected"])
    assert [row["step_time"] for row in rows] == sorted(row["step_time"] for row in rows)
    assert {row["tensor_parallel"] for row in rows} == {2}
    assert document["total"] > document["selected"]
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["units"]["step_time"] == "s"


def test_best_prints_one_table_per_question(file: Path) -> None:
    result = run("best", str(file), "--top", "2")
    assert result.exit_code == 0
    assert "Training step of llama-3.1-8b on 16 devices" in result.stdout
    assert "tok/s/device" in result.stdout
    assert "Share of the step" in result.stdout
    assert "\x1b" not in result.stdout


def test_pareto_shows_the_front_in_order(file: Path) -> None:
    rows = best(file, "--pareto", "step_time,memory_total")["strategies"]
    assert [row["step_time"] for row in rows] == sorted(row["step_time"] for row in rows)
    sizes = [row["memory_total"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert len(best(file, "--pareto", "step_time, memory_total", "--top", "1")["strategies"]) == 1


def test_a_filter_that_nothing_passes_is_exit_code_3(file: Path) -> None:
    result = run("best", str(file), "--where", "tp == 7")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "passes the filter" in result.stderr
    empty = run("best", str(file), "--where", "tp == 7", "--json")
    assert empty.exit_code == 3
    assert json.loads(empty.stdout)["strategies"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "step_tim"], "did you mean step_time"),
        (["--by", "recompute"], "holds text"),
        (["--where", "tp <"], "at its end"),
        (["--where", "recompute == none"], "text needs quotes"),
        (["--pareto", "step_time"], "two or more"),
        (["--pareto", "step_time,memory"], "no variable 'memory'"),
        (["--top", "0"], "--top"),
    ],
)
def test_bad_queries_are_one_line(file: Path, arguments: list[str], message: str) -> None:
    result = run("best", str(file), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_the_band_of_the_step_time_is_shown_where_a_file_has_one(
    file: Path, tmp_path: Path
) -> None:
    assert "step (10–90 %)" in run("best", str(file)).stdout
    older = tmp_path / "older.nc"
    with xr.open_dataset(file) as dataset:
        dataset.drop_vars(["step_time_low", "step_time_high"]).to_netcdf(older)
    text = run("best", str(older)).stdout
    assert "step" in text
    assert "10–90 %" not in text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored grid of served models."""
    path = tmp_path_factory.mktemp("serve") / "serve.nc"
    result = serve(GRID, "-o", str(path))
    assert result.exit_code == 0, result.stderr
    return path


def test_served_models_are_ranked_filtered_and_priced(served: Path) -> None:
    shown = run("best", served, "--by", "tpot", "--where", "ttft_p95 < 2 and tp <= 2")
    assert shown.exit_code == 0, shown.stderr
    assert "operating points are fitting and selected" in shown.stdout
    assert "Best by time per token behind the first, mean (tpot)" in shown.stdout
    found = document("best", served, "--by", "tpot", "--top", 4)["points"]
    times = [row["time_per_output_token_mean"] for row in found]
    assert times == sorted(times)
    priced = document("best", served, "--price", "dgx-h100=2,dgx-h200=3", "--by", "cost_per_token")
    assert priced["points"][0]["cost_per_token"] > 0.0
    assert priced["units"]["cost_per_token"] == "USD"


def test_the_front_of_served_models_trades_throughput_for_speed(served: Path) -> None:
    rate, user = "tokens_per_second_per_device", "tokens_per_second_per_user"
    rows = document("best", served, "--pareto", f"{rate},{user}")["points"]
    assert len(rows) > 1
    assert [row[rate] for row in rows] == sorted((row[rate] for row in rows), reverse=True)
    assert [row[user] for row in rows] == sorted(row[user] for row in rows)
    assert_one_line(run("best", served, "--by", "tpott"), "no variable 'tpott'", "tpot")
    nothing = run("best", served, "--where", "ttft < 0")
    assert nothing.exit_code == 3
    assert "no operating point fits in memory and passes the filter" in nothing.stderr


def test_a_safe_choice_fits_at_its_ninetieth_percentile(tmp_path: Path) -> None:
    path = str(tmp_path / "sweep.nc")
    problem = "--model llama-3.1-8b --hardware dgx-h100 --devices 8 --seq-len 8192"
    run("sweep", *problem.split(), "--global-batch", "16", "--micro-batch", "1,2", "-o", path)

    def selected(*words: str) -> int:
        return int(json.loads(run("best", path, "--json", *words).stdout)["selected"])

    high = selected("--where", "memory_high <= memory_capacity")
    assert 0 < selected("--safe") == high < selected()
