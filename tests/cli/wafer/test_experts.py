"""``perfmodel wafer experts``: tokens of experts on a wafer's links."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.running import assert_one_line, changed, run

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
