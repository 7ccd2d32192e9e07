"""What the sides of ``perfmodel sensitivity`` name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.core.diff.pairs import RUN
from tests.cli.running import assert_one_line, document, run

BANDWIDTH = "system.network.0.bandwidth"


def test_a_strategy_of_a_file_is_the_same_as_its_options(sweep: Path) -> None:
    stored = document("sensitivity", f"{sweep}#2", "--parameter", BANDWIDTH)
    second = document("best", sweep, "--top", 2)["strategies"][1]
    degree = f"tp={second['tensor_parallel']}"
    words = f"--zero {second['zero_stage']} --recompute {second['recompute']}"
    words += f" --micro-batch {second['micro_batch_size']}"
    named = document(
        "sensitivity", degree, *shlex.split(RUN), *shlex.split(words), "--parameter", BANDWIDTH
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
