"""Measured attention of DeepSeek-V4: reading rows, the fastest of a shape, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.compute.sparse_attention import sparse_attention_times
from perfmodel.measured.compare import Comparison, compare_file, statistics
from tests.data import SHARED, needed

HEADER = "hardware,model,heads,seq,mbs,compress_ratio,pass,backend,ms,index_topk"
V4 = SHARED / "primus/measured_v4_attention_mi355x.csv"


def compared(tmp_path: Path, *rows: str) -> Comparison:
    """Compare a table of the given rows."""
    path = tmp_path / "v4.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return compare_file("sparse-attention", path)


def test_rows_that_the_model_made_have_no_error(tmp_path: Path) -> None:
    rows = []
    for ratio, selected, phase, name in (
        (0, 0, "forward", "fwd"),
        (4, 512, "backward", "bwd"),
        (128, 0, "decode", "decode"),
    ):
        (time,) = sparse_attention_times(
            "mi355x-server",
            "bf16",
            batch=2,
            query_length=1 if phase == "decode" else 8192,
            key_length=8192,
            heads=64,
            head_dim_qk=512,
            head_dim_v=512,
            window=128,
            compression=ratio,
            selected=selected,
            phase=phase,
        ).time
        rows.append(f"MI355X,deepseek-v4-flash,64,8192,2,{ratio},{name},x,{time * 1e3:.12f},")
    found = compared(tmp_path, *rows)
    assert [row.error for row in found.rows] == pytest.approx([0.0] * 3, abs=1e-8)
    assert found.by == ("fastest", "pass", "compress_ratio", "backend")


def test_the_fastest_of_each_shape_is_known_and_how_far_others_are_behind(tmp_path: Path) -> None:
    found = compared(
        tmp_path,
        "MI355X,deepseek-v4-pro,128,4096,1,0,fwd,a,0.6,",
        "MI355X,deepseek-v4-pro,128,4096,1,0,fwd,b,0.4,",
        "MI355X,deepseek-v4-pro,128,4096,1,0,bwd,a,1.5,",
        "MI355X,deepseek-v4-pro,128,4096,1,0,bwd,b,,",
    )
    cells = [(row.cells["fastest"], row.cells["of_fastest"]) for row in found.rows]
    assert cells == [("no", "1.5"), ("yes", "1"), ("yes", "1"), ("no", "")]
    assert found.skipped() == {"no usable measurement": 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("MI355X,deepseek-v4-pro,64,4096,1,4,infer,x,1,", "unknown pass"),
        ("MI355X,,64,4096,1,4,fwd,x,1,", "shape not stated"),  # how many keys are chosen
        ("MI355X,deepseek-v4-pro,64,4096,1,,fwd,x,1,", "shape not stated"),
        ("Z80,deepseek-v4-pro,64,4096,1,4,fwd,x,1,", "no hardware profile"),
    ],
)
def test_rows_that_cannot_be_scored_are_counted_by_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    assert compared(tmp_path, row).skipped() == {reason: 1}


def test_chosen_keys_may_be_stated(tmp_path: Path) -> None:
    found = compared(tmp_path, *(f"MI355X,,64,4096,1,4,fwd,x,1,{k}" for k in (256, 1024)))
    few, many = (row.outcome.projected for row in found.rows)
    assert few is not None
    assert many is not None
    assert many > 1.5 * few


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("MI355X,,64,4096,1,4.5,fwd,x,1,", "line 2.*compress_ratio"),
        ("MI355X,,6.4,4096,1,4,fwd,x,1,", "line 2.*heads"),
        ("MI355X,,64,4096,1,4,fwd,x,fast,", "line 2.*ms"),
    ],
)
def test_broken_cells_name_their_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        compared(tmp_path, row)


def test_the_published_table_is_met_without_a_fit() -> None:
    rows = compare_file("sparse-attention", needed(V4)).rows
    assert len(rows) == 102
    fastest = [row for row in rows if row.cells["fastest"] == "yes"]
    assert {row.cells["backend"] for row in fastest} == {"_turbo_flydsl"}
    assert len(fastest) == 12
    assert statistics(fastest)["median_absolute_error"] < 0.15
    assert statistics(fastest)["worst_absolute_error"] < 0.25
    backward = [row for row in fastest if row.cells["pass"] == "bwd"]
    assert statistics(backward)["median_absolute_error"] < 0.1
    # nothing else is faster than predicted by more than the fastest is
    errors = np.array([row.error for row in rows if row.cells["fastest"] == "no"], float)
    assert (errors < 0.0).all()
