"""What the sides of ``perfmodel sensitivity`` name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from perfmodel.store.results import open_table
from tests.cli.core.diff_pairs import OPEN, RUN, SWEEP
from tests.cli.running import assert_one_line, document, run

BANDWIDTH = "system.network.0.bandwidth"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sensitivity") / "sweep.nc"
    assert run(*shlex.split(SWEEP), "-o", path).exit_code == 0
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "serve.nc"
    words = "serve --model llama-3.1-8b --hardware dgx-h200 --tp 1,2 --isl 1024 --osl 128"
    assert run(*shlex.split(words), "--concurrency", 8, "-o", path).exit_code == 0
    return path


def test_a_strategy_of_a_file_is_the_same_as_its_options(sweep: Path) -> None:
    stored = document("sensitivity", f"{sweep}#2", "--parameter", BANDWIDTH)
    second = document("best", sweep, "--top", 2)["strategies"][1]
    degree = f"tp={second['tensor_parallel']}"
    words = f"--zero {second['zero_stage']} --recompute {second['recompute']}"
    words += f" --micro-batch {second['micro_batch_size']}"
    named = document(
        "sensitivity", degree, *shlex.split(f"{OPEN} {words}"), "--parameter", BANDWIDTH
    )
    assert stored["parameters"][0]["elasticity"] == pytest.approx(
        named["parameters"][0]["elasticity"], rel=1e-9
    )


def test_the_best_of_a_file_is_chosen_anew(sweep: Path) -> None:
    found = document(
        "sensitivity", sweep, "--reoptimise", "--parameter", BANDWIDTH, "--what-if", "0.01,2"
    )
    assert found["mode"] == "reoptimised"
    (row,) = found["parameters"]
    assert row["low_value"] == pytest.approx(4.5e9)
    assert "tp=2" in row["low_strategy"]  # fewer bytes over a slow link


def test_served_models_have_sensitivities(served: Path) -> None:
    path = "device.memory.bandwidth"
    found = document("sensitivity", served, "--of", "tpot", "--parameter", path)
    assert found["variable"] == "time_per_output_token_mean"
    assert -1.0 < found["parameters"][0]["elasticity"] < -0.3  # decoding reads the weights
    again = document("sensitivity", served, "--reoptimise", "--of", "ttft", "--parameter", path)
    assert again["mode"] == "reoptimised"


def test_files_and_two_sides_that_cannot_be_are_one_line(sweep: Path, tmp_path: Path) -> None:
    assert_one_line(run("sensitivity", tmp_path / "none.nc"), "does not exist")
    assert_one_line(run("sensitivity", f"{sweep}#999"), "no #999")
    assert_one_line(run("sensitivity", sweep, "--devices", 8), "no effect")
    assert_one_line(run("sensitivity", sweep, f"{sweep}#2"), "--parameter")
    projected = tmp_path / "run.json"
    projected.write_text(json.dumps(document("project", *shlex.split(RUN))))
    assert_one_line(run("sensitivity", projected), "written as .nc")
    table = tmp_path / "sweep.csv"
    table.write_text("strategy\n1\n")
    assert_one_line(run("sensitivity", table), "netCDF")
    broken = run("sensitivity", sweep, "--parameter", BANDWIDTH, "-o", tmp_path / "x" / "y.nc")
    assert_one_line(broken, "cannot write")
    assert not list(tmp_path.glob("x*"))


def asked(*more: Any) -> list[Any]:
    return ["sensitivity", *shlex.split(RUN), *more]


def test_numbers_and_switches_are_sorted_by_what_they_do() -> None:
    found = document(*asked("--parameter", BANDWIDTH, "--parameter", "recompute"))
    assert found["variable"] == "step_time"
    assert found["base"] == document("project", *shlex.split(RUN))["step_time"]
    rows = {row["parameter"]: row for row in found["parameters"]}
    assert next(iter(rows)) == "recompute=full"
    assert rows[BANDWIDTH]["elasticity"] < 0
    assert rows[BANDWIDTH]["unit"] == "B/s"
    assert rows["recompute=full"]["high_change"] > 0
    text = run(*asked("--parameter", BANDWIDTH, "--parameter", "recompute")).stdout
    assert "450 GB/s" in text
    assert "elasticity" in text
    assert "full" in text


def test_sensitivities_are_written(sweep: Path, tmp_path: Path) -> None:
    path = tmp_path / "found.nc"
    result = run("sensitivity", sweep, "--parameter", BANDWIDTH, "-o", path)
    assert result.exit_code == 0, result.stderr
    assert open_table(path)["parameter"].values.tolist() == [BANDWIDTH]


def test_two_sides_break_even(sweep: Path) -> None:
    found = document(
        "sensitivity", f"{sweep}#1", "tp=4", *shlex.split(RUN), "--parameter", BANDWIDTH
    )
    (result,) = found["break_even"]
    assert result["path"] == BANDWIDTH
    for crossing in result["crossings"]:
        assert not crossing["exact"] or crossing["a"] == pytest.approx(crossing["b"], rel=1e-6)
    words = shlex.split(f"{RUN} --price dgx-h100=2.5,dgx-b200=4 --of cost_per_token")
    machines = ["hardware=dgx-h100", "hardware=dgx-b200"]
    text = run("sensitivity", *machines, *words, "--parameter", "system.price").stdout
    assert "of B alone" in text
    assert "A is better above" in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--parameter", "device.memory.bandwith"], "nearest: device.memory.bandwidth"),
        (["--of", "step_tim"], "did you mean step_time"),
        (["--kind", "hardwar"], "hardware"),
        (["--what-if", "2"], "0.5,2"),
        (["--step", "0.9"], "--step"),
        (["--range", "1:2"], "name B"),
        (["--of", "training_cost"], "--tokens"),
    ],
)
def test_bad_input_is_one_line(more: list[str], words: str) -> None:
    assert_one_line(run(*asked(*more)), words)
