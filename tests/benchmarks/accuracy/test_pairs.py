"""Ratios of two machines: the shipped table, and how a pair is scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import PerfModelError


def test_the_shipped_table_names_a_source_for_every_row(script: Any) -> None:
    pairs = script.load("accuracy.pairs")
    found = pairs.read_pairs(pairs.PAIRS)
    assert len(found) >= 20
    for rows in found.values():
        for row in rows:
            assert row["source"]
            assert row["url"].startswith("https://")
        assert rows[0]["hardware"] != rows[1]["hardware"]


def test_best_rates_are_compared_as_ratios(script: Any, tmp_path: Path) -> None:
    pairs = script.load("accuracy.pairs")
    file = tmp_path / "pairs.csv"
    file.write_text(
        "pair,kind,hardware,precision,value\na,mamf,dgx-h100,bf16,800\na,mamf,dgx-a100,bf16,400\n"
    )
    (found,) = pairs.evaluate(file)
    assert found.published == 2.0
    h100, a100 = (pairs.best_rate(name, "bf16") for name in ("dgx-h100", "dgx-a100"))
    assert found.error == pytest.approx(h100 / a100 / 2.0 - 1.0)
    assert 600e12 < h100 < 989.4e12
    lines = "\n".join(pairs.markdown([found]))
    assert "missed" in lines
    assert "mamf: 0 of 1 within 10%" in lines


def test_a_pair_is_two_rows_of_one_kind(script: Any, tmp_path: Path) -> None:
    pairs = script.load("accuracy.pairs")
    file = tmp_path / "pairs.csv"
    file.write_text("pair,kind,hardware\na,mamf,dgx-h100\n")
    with pytest.raises(PerfModelError, match="pair 'a' needs two rows of one kind"):
        pairs.read_pairs(file)
