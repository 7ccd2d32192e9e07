"""Ratios of two machines: the shipped table, and how a pair is scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel import strategy_grid, sweep
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
    assert "| mamf | 1 | 0 |" in lines
    assert pairs.block([found]).count("best matrix product") == 1


def test_a_pair_is_two_rows_of_one_kind(script: Any, tmp_path: Path) -> None:
    pairs = script.load("accuracy.pairs")
    file = tmp_path / "pairs.csv"
    file.write_text("pair,kind,hardware\na,mamf,dgx-h100\n")
    with pytest.raises(PerfModelError, match="pair 'a' needs two rows of one kind"):
        pairs.read_pairs(file)


CLAIM = (
    "pair,kind,source,url,family,hardware,n_gpus,seq,gbs,model,precision,framework,value\n"
    "a,claim,s,u,f,{},8,2048,8,llama-3-8b,bf16,megatron,2\n"
    "a,claim,s,u,f,dgx-h100,{},2048,8,llama-3-8b,bf16,megatron,1\n"
)


def test_claims_compare_the_fastest_strategies(script: Any, tmp_path: Path) -> None:
    pairs = script.load("accuracy.pairs")
    file = tmp_path / "pairs.csv"
    file.write_text(CLAIM.format("dgx-h100", 8))
    (found,) = pairs.evaluate(file)
    assert (found.ours, found.published) == (pytest.approx(1.0), 2.0)  # as fast as itself
    assert found.missed
    grid = strategy_grid("llama-3-8b", 8, sequence_length=2048, global_batch_size=8)
    rates = sweep("llama-3-8b", grid, "dgx-h100")["tokens_per_second_per_device"]
    fits = sweep("llama-3-8b", grid, "dgx-h100")["fits"]
    row = pairs.read_pairs(file)["a"][0]
    assert pairs.fastest(row) == pytest.approx(float(rates.where(fits).max()))


def test_a_claim_without_a_number_is_named(script: Any, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(CLAIM.format("dgx-a100", "many"))
    code, _, error = script("accuracy.pairs", file)
    assert code == 2
    assert "pair 'a': n_gpus is a number, not 'many'" in error
