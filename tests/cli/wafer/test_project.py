"""``perfmodel wafer --map search``."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from perfmodel.wafer.search import search_mapping
from tests.cli.running import assert_one_line, document, run

ASKED = "wafer --model llama-3-8b --hardware wse-2 --map search --context 2048 --grid 300,360,420"


def test_the_mapping_is_that_of_python() -> None:
    found = document(*shlex.split(f"{ASKED} --phase decode,prefill --collective two_level,chain"))
    assert [row["phase"] for row in found["mappings"]] == ["decode", "prefill"]
    for row, search in zip(found["mappings"], found["searches"], strict=True):
        expected = search_mapping(
            "llama-3-8b",
            "wse-2",
            phase=row["phase"],
            context=2048,
            grid=[300, 360, 420],
            collective=("two_level", "chain"),
        )
        assert row["latency"] == search["latency"] == expected.latency
        assert [row["grid_rows"], row["grid_columns"]] == search["grid"] == list(expected.grid)
        assert row["collective"] == expected.collective
        assert search["mappings"] == expected.mappings
        assert row["fits"]


def test_the_terminal_names_the_mapping_and_what_it_took() -> None:
    result = run(*shlex.split(f"{ASKED} --explain"))
    assert result.exit_code == 0
    assert re.search(r"found: \d+ × \d+ cores, \d regions, sums by \w+, cache", result.stdout)
    assert "mlp" in result.stdout
    assert "decode on wse-2: the best of 228 mappings, all timed" in result.stderr


def test_all_names_are_those_that_a_search_takes() -> None:
    narrowed = document(*shlex.split(f"{ASKED} --phase prefill --product all --collective chain"))
    assert narrowed["searches"][0]["product"] != "distance_blind"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--top 3", "--map search does not go with --output, --top,"),
        ("--grid 300x200", "'300x200': a search takes sides"),
        ("--batch 1,2", "--batch: a search takes one value"),
        ("--regions 1", " fits the memory of wse-2"),
        ("--hardware n150", "hardware: "),
    ],
)
def test_what_is_refused(more: str, named: str) -> None:
    result: Any = run(*shlex.split(f"{ASKED} {more}"))
    assert result.exit_code == 2
    assert_one_line(result, named)


def test_shapes_are_of_searches() -> None:
    result = run(*shlex.split("wafer --model llama-3-8b --hardware wse-2 --shape square"))
    assert_one_line(result, "--shape goes with --map search")


def test_a_request_has_the_best_mapping_of_either_phase() -> None:
    words = ASKED.replace("--context 2048", "--isl 1024 --osl 16")
    found = document(*shlex.split(words))
    assert found["fits"]
    assert found["prefill"]["phase"] == "prefill"
    assert found["last_token"]["context"] == 1040
    searched = search_mapping("llama-3-8b", "wse-2", context=1040, grid=[300, 360, 420])
    assert found["last_token"]["latency"] == searched.latency
