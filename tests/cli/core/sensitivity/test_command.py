"""``perfmodel sensitivity``: what users read, files, break-evens, wrong input."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from perfmodel.store.results import open_table
from tests.cli.core.diff.pairs import RUN
from tests.cli.running import assert_one_line, document, run

BANDWIDTH = "system.network.0.bandwidth"


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
