"""``perfmodel wafer collective``."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.running import assert_one_line, changed, document, run

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
