"""Measured exchanges of tokens between experts: reading rows, what is left out, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import DataError
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.compare import Comparison, compare_file, statistics
from perfmodel.network.expert_exchange import moe_exchange_times

HEADER = "hardware,mode,phase,nodes,ep,tokens_per_rank,hidden,topk,experts,sms,time_us"


def exchanged(tmp_path: Path, *rows: str) -> Comparison:
    """Compare a table of exchanges of the given rows."""
    path = tmp_path / "exchange.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return compare_file("moe-alltoall", path)


def test_exchanges_that_the_model_made_have_no_error(tmp_path: Path) -> None:
    hardware = load_hardware("dgx-h100")
    rows = []
    for mode, phase in (("normal", "dispatch"), ("low_latency", "combine")):
        (time,) = moe_exchange_times(hardware, phase, mode, 128, 7168, 8, 256, 16, compute_units=24)
        rows.append(f"H100_SXM,deepep_{mode},{phase},2,16,128,7168,8,256,24,{time * 1e6:.9f}")
    found = exchanged(tmp_path, *rows)
    assert [row.error for row in found.rows] == pytest.approx([0.0, 0.0], abs=1e-8)
    assert found.by == ("hardware", "mode", "phase", "nodes", "regime")
    assert {row.cells["regime"] for row in found.rows} == {"middle"}  # 14 MiB


def test_a_table_may_say_among_how_many_nodes_tokens_choose(tmp_path: Path) -> None:
    path = tmp_path / "exchange.csv"
    row = "H100_SXM,deepep_normal,combine,8,64,8192,7168,8,256,24,8742"
    lines = [f"{HEADER},topk_groups", f"{row},", f"{row},8", f"{row},4", f"{row},20"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    free, eight, four, more = (
        row.outcome.projected for row in compare_file("moe-alltoall", path).rows
    )
    assert free == eight == more
    assert four == pytest.approx(0.757 * free, rel=0.02)  # 4 nodes a token instead of 5.3
    path.write_text("\n".join([lines[0], f"{row},x"]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="topk_groups"):
        compare_file("moe-alltoall", path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("H100_SXM,pplx,dispatch,1,8,128,7168,8,256,,50", "unknown mode of exchange"),
        ("H100_SXM,deepep_normal,notify,1,8,128,7168,8,256,,50", "unknown phase of exchange"),
        ("Z80,deepep_normal,dispatch,1,8,128,7168,8,256,,50", "no hardware profile"),
        (
            "H100_SXM,deepep_normal,dispatch,3,8,128,7168,8,256,,50",
            "members spread unevenly over nodes",
        ),
        (
            "H100_SXM,deepep_normal,dispatch,1,8,128,7168,8,4,,50",
            "too few experts for the ranks or choices",
        ),
        ("H100_SXM,deepep_normal,dispatch,1,8,,7168,8,256,,50", "shape not stated"),
        ("H100_SXM,deepep_normal,dispatch,1,8,128,7168,8,256,,", "no usable measurement"),
    ],
)
def test_exchanges_that_cannot_be_scored_are_counted_by_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    assert exchanged(tmp_path, row).skipped() == {reason: 1}


def test_broken_cells_of_exchanges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2, column 'topk': 'two' should be"):
        exchanged(tmp_path, "H100_SXM,deepep_normal,dispatch,1,8,128,7168,two,256,,50")


@pytest.mark.in_sample("exchange-h100", "exchange-b200")
def test_measured_exchanges(development_table: Any) -> None:
    found = compare_file("moe-alltoall", development_table("measured/moe_alltoall.csv"))
    errors = statistics(found.rows)
    assert errors["count"] == 2235
    assert errors["median_absolute_error"] <= 0.15
