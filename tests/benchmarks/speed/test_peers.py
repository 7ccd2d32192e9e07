"""Others side by side: what both are given, and what is said where one cannot be had."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def peers(script: Any) -> Any:
    return script.load("speed.peers")


def test_all_batches_have_the_strategies_of_the_first(peers: Any) -> None:
    from perfmodel import strategy_grid

    rows = peers.strategies()
    sizes = {"sequence_length": peers.SEQUENCE, "global_batch_size": peers.BATCHES[:3]}
    grid = strategy_grid("gpt3-175b", peers.DEVICES, **sizes, **peers.AXES)
    assert len(grid) == 3 * len(rows)
    for row in rows:
        degrees = (row[f"{name}_parallel"] for name in ("tensor", "pipeline", "data"))
        assert next(degrees) * next(degrees) * next(degrees) == peers.DEVICES


def test_others_work_batch_by_batch_until_time_is_over(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"fits": True}, {"fits": False}]))
    times = iter([0.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr(peers.time, "process_time", lambda: next(times))

    def one(row: dict[str, Any], batch: int) -> None:
        assert batch in peers.BATCHES
        assert row["fits"]

    found = peers.until({"rows": str(rows), "seconds": 1.5}, one)
    assert found == {"count": 4, "answered": 2, "batches": 2}


def test_own_work_is_that_of_the_other(peers: Any) -> None:
    found = peers.training_work({"batches": 1})()
    assert found["count"] == found["answered"] == len(peers.strategies())
    points = [(1, 1, 1, 8, 2048, 1024, 256), (2, 1, 1, 16, 2048, 1024, 256)]
    assert peers.serving_work({"points": points})()["count"] == 4  # layouts and batches, combined


def test_a_line_is_the_median_of_what_processes_took(peers: Any) -> None:
    lines = [{"first": {"count": 8, "cpu": cpu, "wall": 3.0}} for cpu in (1.0, 2.0, 8.0)]
    (line,) = peers.medians("it", [{"version": "1", "lines": one} for one in lines])
    assert (line["cpu_seconds"], line["rate_per_core"]) == (2.0, 4.0)
    assert "| it 1 | first | 8 | 2.00 | 3.00 | 4 |" in peers.table([line])


def test_who_cannot_be_had_is_a_line_with_its_reason(
    peers: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert peers.main(["--only", "calculon", "--environments", str(tmp_path)]) == 0
    assert "| calculon | not installed: calculon 1.1.1" in capsys.readouterr().out


def test_a_process_that_fails_says_why(peers: Any) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'points'"):
        peers.asked(sys.executable, "serving", {"times": 1})


def test_work_is_done_and_answered_in_a_process(peers: Any) -> None:
    found = peers.asked(sys.executable, "training", {"times": 2, "batches": 1})
    assert set(found["lines"]) == {"first", "again"}
    assert found["lines"]["first"]["cpu"] > 0.0
