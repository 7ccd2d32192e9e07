"""Links of a wafer: collectives, places, experts, pictures."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from perfmodel.wafer.system import WaferSystem
from tests.cli.running import assert_one_line, changed, document, run
from tests.wafer.systems import system_text

ROW = ("wafer", "collective", "all_reduce", "--hardware", "wse-2", "--grid", "1x8", "--size", "32")


def test_every_algorithm_is_shown() -> None:
    text = run(*ROW, "--simulate").stdout
    assert "simulated" in text
    assert all(name in text for name in ("chain", "ring", "star", "two_level"))
    plain = ("--set", "constants.stage_latency=0", "--simulate", "--algorithm", "two_level")
    (one,) = document(*ROW, *plain)["collectives"]
    assert one["cycles"] == one["simulated_cycles"]


def test_wrong_input_is_one_line() -> None:
    assert_one_line(run(*ROW[:3], "--hardware", "dgx-h100", *ROW[5:]), "no mesh of cores")
    assert_one_line(run(*ROW, "--algorithm", "twolevel"), "did you mean two_level")
    assert_one_line(run(*ROW[:6], "x8", *ROW[7:]), "grid: 'x8'")


ASKED = "wafer place --model llama-3-70b"


def test_places_are_all_nodes_and_no_worse() -> None:
    found = document(*shlex.split(f"{ASKED} --tp 8 --pp 4 --node-grid 4x8 --batch 16"))
    assert sorted(found["places"]) == list(range(32))
    assert found["sent"]["tensor"] == 16 * 8192 * 2
    assert found["found"]["busiest_link"] <= found["given"]["busiest_link"]
    assert found["units"]["busiest_link"] == "B"


def test_the_wafer_is_drawn_by_the_numbers_of_nodes() -> None:
    result = run(*shlex.split(f"{ASKED} --tp 4 --node-grid 2x2"))
    assert result.exit_code == 0
    assert "tensor      4           2 × 2" in result.stdout
    drawn = result.stdout.split("by number:")[1].split()
    assert sorted(drawn) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--tp 7 --node-grid 4x8", "key 'node_grid': 4 x 8 nodes are not the 7"),
        ("--tp 4096", "key 'nodes': 4096 exceed 2048"),
        ("--tp 2 --node-grid 2by1", "--node-grid: rows x columns"),
        ("--system absent.json", "absent.json"),
        ("--phase train", "--phase"),
    ],
)
def test_what_is_refused(more: str, named: str) -> None:
    assert_one_line(run(*shlex.split(f"{ASKED} {more}")), named)


SMALL = shlex.split(
    "wafer experts --model mixtral-8x7b --hardware wse-2 --node-grid 2x4 --core-grid 4x4 --ep 8 "
    "--tp 8 --batch 16 --isl 100 --routing two_level"
)


def test_every_exchange_and_placement() -> None:
    result = run(*SMALL)
    assert result.exit_code == 0, result.stderr
    rows = [line.split()[:2] for line in result.stdout.splitlines()[1:]]
    assert rows == [
        [kind, place]
        for place in ("contiguous", "balanced")
        for kind in ("each", "deduplicated", "tree")
    ]
    layers = run(*SMALL, "--by-layer", "--exchange", "tree", "--placement", "strided")
    assert len(layers.stdout.splitlines()) == 33
    assert " to " in layers.stdout


def test_json_has_every_layer() -> None:
    document = json.loads(run(*SMALL, "--json", "--exchange", "each").stdout)
    first, second = document["results"]
    assert (first["exchange"], second["placement"]) == ("each", "balanced")
    assert first["layers"] == list(range(32))
    assert min(first["hottest_link"]) > 0


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--model", "llama-3.1-8b"], "has no experts"),
        (["--exchange", "trees"], "unknown 'trees'"),
        (["--placement", "random"], "unknown placement 'random'"),
        (["--hardware", "wse-9"], "wse-9"),
        (["--ep", "3"], "'nodes'"),
    ],
)
def test_wrong_questions(more: list[str], part: str) -> None:
    assert_one_line(run(*changed(SMALL, *more)), part)


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
def test_what_cannot_be_drawn(more: list[str], part: str) -> None:
    assert_one_line(run("plot", "wafer", "out", *more), part)
    assert not list(Path().glob("wafer.*"))


def test_a_folder_without_anything() -> None:
    Path("empty").mkdir()
    assert_one_line(run("plot", "wafer", "empty"), "has no cores.nc")
