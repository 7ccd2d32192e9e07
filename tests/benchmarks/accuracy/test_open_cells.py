"""Cells that rows state, hidden and chosen again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.measured.rows import MeasuredRow
from tests.benchmarks.accuracy.test_switches import HEADER, ROWS


def row(**cells: str) -> MeasuredRow:
    return MeasuredRow(
        dict(zip(HEADER.split(","), ROWS[0].split(","), strict=True)) | cells, "t", 2
    )


def test_rows_state_a_cell_where_it_is_about_them(script: Any) -> None:
    open_cells = script.load("accuracy.open_cells")
    rows = [row(vpp="2", pp="4"), row(vpp="1", pp="1"), row(vpp=">1", pp="4"), row(vpp="", pp="4")]
    assert open_cells.stating(rows, "vpp", "pp > 1") == rows[:1]
    assert open_cells.stating(rows, "mbs", "") == rows


def test_the_share_that_is_found_again(script: Any, tmp_path: Path, monkeypatch: Any) -> None:
    open_cells = script.load("accuracy.open_cells")
    (tmp_path / "t.csv").write_text("\n".join([HEADER, *ROWS]))
    monkeypatch.setattr(open_cells, "TABLES", {"training": "t.csv", "nanotron": "none.csv"})
    found = open_cells.evaluate(tmp_path, ["recompute", "vpp"])
    assert set(found["recompute"]) == {"all", "megatron-2021"}
    assert found["recompute"]["all"]["rows"] == 2
    assert 0.0 <= found["recompute"]["all"]["share"] <= 1.0
    assert "all" not in found["vpp"]
    (line,) = open_cells.markdown(found).splitlines()[2:]
    assert line.startswith("| `recompute` | 2 |")
    code, out, _ = script("accuracy.open_cells", tmp_path, "--column", "mbs")
    assert code == 0
    assert "| `mbs` | 2 |" in out
