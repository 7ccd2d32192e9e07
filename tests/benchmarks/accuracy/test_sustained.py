"""Published sustained rates: the shipped table, and what ours is compared with."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from perfmodel.hwprofiles import load_hardware


def test_the_shipped_table_names_sources_and_rates_below_the_peak(script: Any) -> None:
    sustained = script.load("accuracy.sustained")
    with sustained.RATES.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) >= 15
    for row in rows:
        assert row["source"]
        assert row["url"].startswith("https://")
        device = load_hardware(row["profile"]).device
        assert float(row["rate"]) * 1e12 < device.peak(row["precision"])
        assert not row["power"] or float(row["power"]) <= device.tdp


def test_a_product_alone_is_held_by_the_board_and_a_step_by_more(
    script: Any, tmp_path: Path
) -> None:
    sustained = script.load("accuracy.sustained")
    file = tmp_path / "rates.csv"
    file.write_text(
        "source,hardware,profile,precision,shape,rate\na,H100,dgx-h100,bf16,8192x8192x8192,700\n"
    )
    (found,) = sustained.evaluate(file)
    h100 = load_hardware("dgx-h100")
    ratio = h100.calibrated("gemm", "steady_energy_ratio")
    exponent = h100.calibrated("gemm", "power_exponent")
    assert found.in_step < found.alone < h100.device.peak("bf16")
    # The main loop slows by the ratio to the power of the rule; launch and ends do not.
    assert found.alone / found.in_step == pytest.approx(ratio**exponent, rel=0.05)
    assert found.error("alone") == pytest.approx(found.alone / 700e12 - 1.0)
    lines = "\n".join(sustained.markdown([found]))
    assert "| H100 · bf16 | 8192x8192x8192 | 700 |" in lines
    assert sustained.main([str(file)]) == 0


def test_a_missing_table_is_one_line(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.load("accuracy.sustained").main(["none.csv"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
