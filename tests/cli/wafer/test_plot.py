"""``perfmodel plot wafer``: pictures of traces and of columns."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from perfmodel.wafer.system import WaferSystem
from tests.cli.running import assert_one_line, run
from tests.wafer.formats.systems import system_text

SYSTEM = WaferSystem(4, (2, 2), (2, 2), tensor_parallel=4, ffn_tensor_parallel=4)
CORES = shlex.split(
    "workload cores out --model llama-3.1-8b --node-grid 2x2 --core-grid 2x2 --tp 4 --tp-ffn 4 "
    "--batch 2 --isl 8 --layers decode0,decode1"
)


@pytest.fixture(autouse=True)
def _cores(folder: Path) -> None:
    """Write small traces into a folder of its own."""
    result = run(*CORES)
    assert result.exit_code == 0, result.stderr


def test_columns_and_text_are_the_same_picture() -> None:
    asked = ["plot", "wafer", "out", "--layer", "decode1", "--json"]
    columns = run(*asked, "-o", "columns.png")
    assert columns.exit_code == 0, columns.stderr
    Path("system.json").write_text(system_text({"decode": SYSTEM}))
    text = run(*asked, "--system", "system.json", "-o", "text.svg")
    first, second = json.loads(columns.stdout), json.loads(text.stdout)
    assert first.pop("output") == "columns.png"
    assert second.pop("output") == "text.svg"
    assert first == second
    assert first["busiest_link_bytes"] > 0
    assert Path("columns.png").stat().st_size < 300_000
    assert Path("text.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--operation", "nothing"], "no instruction of 'nothing'"),
        (["--operation", "wq"], "several layers"),
        (["--step", "decode7"], "no step 7"),
        (["--step", "later"], "as decode0 or prefill"),
        (["-o", "picture.bmp"], "a figure's name ends in"),
        (["--system", "none.json"], "none.json"),
    ],
)
def test_wrong_questions(more: list[str], part: str) -> None:
    assert_one_line(run("plot", "wafer", "out", *more), part)
    assert not list(Path().glob("wafer.*"))


def test_a_folder_without_anything() -> None:
    Path("empty").mkdir()
    assert_one_line(run("plot", "wafer", "empty"), "has no cores.nc")
