"""Counts of files, as they are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def count(script: Any) -> Any:
    return script.load("oracle.count")


def test_runs_of_equal_layers_are_one_word(count: Any) -> None:
    assert count.grouped([5000, 5000, 7, 5000]) == "2 × 5,000, 1 × 7, 1 × 5,000"


def test_a_line_says_what_varies_and_what_lies_apart(count: Any) -> None:
    entry = {"config": "a.json", "architecture": "A", "text": 10, "layers": [10]}
    assert "active varies, towers 3;" in count.line({**entry, "towers": 3, "active": None})
    assert "active 9; layers" in count.line({**entry, "towers": 0, "active": 9})


def test_a_file_that_cannot_be_counted_says_why(script: Any, tmp_path: Path) -> None:
    code, out, _ = script("oracle_transformers", "count", tmp_path / "absent.json", "--json")
    (entry,) = json.loads(out)
    assert code == 1
    assert "No such file" in entry["no_oracle"]
