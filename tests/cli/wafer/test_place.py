"""``perfmodel wafer place``."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.running import assert_one_line, document, run

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
