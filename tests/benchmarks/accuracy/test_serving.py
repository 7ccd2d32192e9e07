"""Accuracy of served models: tables, bounds, and what projected throughput chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.measured.rows import ComparedRow, Outcome

HEADER = (
    "hardware,n_gpus,engine,version,model,precision,tp,isl,osl,concurrency,ttft_ms,tpot_ms,"
    "out_tok_s,is_latest_in_group"
)
ROWS = (
    "H100,2,vLLM,0.12.0,Qwen3-32B,,2,1024,128,16,187,17.4,850,yes",
    "H100,4,vLLM,0.12.0,Qwen3-32B,,4,1024,128,16,149,11.4,1300,yes",
)


def row(measured: float, projected: float, **cells: str) -> ComparedRow:
    bounds = {"time_low": 0.8 * projected, "time_high": 1.25 * projected}
    return ComparedRow(cells, 2, Outcome(measured, projected, details=bounds))


def test_the_best_projected_layout_is_held_against_the_best_measured(script: Any) -> None:
    serving = script.load("accuracy.serving")
    rows = [
        row(100.0, 90.0, model="a", tp="1"),
        row(104.0, 80.0, model="a", tp="2"),
        row(100.0, 90.0, model="b", tp="1"),
        row(200.0, 80.0, model="b", tp="2"),
        row(1.0, 1.0, model="c", tp="1"),
    ]
    found = serving.selection(rows)
    assert found["count"] == 2
    assert found["share_within"] == 0.5
    assert found["mean_loss"] == pytest.approx((4 / 104 + 0.5) / 2)
    assert found["worst_loss"] == 0.5


def test_bounds_hold_what_lies_between_them(script: Any) -> None:
    serving = script.load("accuracy.serving")
    rows = [row(1.0, 1.0), row(0.7, 1.0), row(2.0, 1.0), row(1.2, 1.0)]
    assert serving.within_bounds(rows, "time") == {"inside": 0.5, "below": 0.25, "above": 0.25}


def test_both_tables_are_read(script: Any, tmp_path: Path) -> None:
    (tmp_path / "e2e").mkdir()
    text = "\n".join([HEADER, *ROWS])
    for name in ("dev_serving_runs.csv", "dev_inference_runs.csv"):
        (tmp_path / "e2e" / name).write_text(text, encoding="utf-8")
    code, out, _ = script("accuracy.serving", "--data", tmp_path, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["serving"]["tpot"]["all"]["count"] == 2
    assert document["serving"]["selection"]["count"] == 1
    assert document["inference"]["ttft"]["closed loop"]["count"] == 2
    serving = script.load("accuracy.serving")
    assert "| aggregated | 2 | 100.0% |" in serving.markdown(document)


def test_missing_tables_are_said(script: Any, tmp_path: Path) -> None:
    code, _, err = script("accuracy.serving", "--data", tmp_path)
    assert code == 2
    assert "dev_serving_runs.csv" in err
