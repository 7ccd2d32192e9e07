"""Rows of measured tables: cells, lines, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.compare import compare_file
from perfmodel.measured.rows import MeasuredRow, read_rows
from tests.measured.korthikanti import KORTHIKANTI_TABLE_5


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(KORTHIKANTI_TABLE_5, encoding="utf-8")
    return path


def test_bad_files_are_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    with pytest.raises(DataError, match=r"cannot read .*runs\.csv': No such file"):
        compare_file("training", path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="empty"):
        compare_file("training", path)
    path.write_bytes(b"hardware,\xff\xfe\n")
    with pytest.raises(DataError, match="not UTF-8"):
        compare_file("training", path)
    path.write_text("hardware,hardware\n", encoding="utf-8")
    with pytest.raises(DataError, match="stands there twice"):
        compare_file("training", path)
    path.write_text(KORTHIKANTI_TABLE_5.replace(",gbs,", ",batch,", 1), encoding="utf-8")
    with pytest.raises(DataError, match="line 1: no column 'gbs'"):
        compare_file("training", path)
    path.write_text(KORTHIKANTI_TABLE_5.replace("meas_iter_s", "seconds"), encoding="utf-8")
    with pytest.raises(DataError, match="none of the columns meas_iter_s"):
        compare_file("training", path)
    path.write_text(KORTHIKANTI_TABLE_5.replace("18.13", "18,13,1"), encoding="utf-8")
    with pytest.raises(DataError, match="line 4: 25 cells"):
        compare_file("training", path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("no,18.13", "no,fast", "line 4, column 'meas_iter_s': 'fast' should be a number"),
        ("no,18.13", "no,-3", "line 4, column 'meas_iter_s'"),
        ("no,18.13", "no,0", "line 4, column 'meas_iter_s': '0' should be a number > 0"),
        ("1,64,no,18.13", "1,64.5,no,18.13", "line 4, column 'gbs': '64.5' should be a whole"),
        ("1,64,no,18.13", "zero,64,no,18.13", "line 4, column 'mbs'"),
    ],
)
def test_broken_numbers_are_errors_with_file_and_line(
    table: Path, old: str, new: str, message: str
) -> None:
    text = KORTHIKANTI_TABLE_5
    assert text.count(old) == 1
    table.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        compare_file("training", table)


def test_empty_cells_are_not_stated(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n1, ,nan\n\n2,3\n", encoding="utf-8")
    _, rows = read_rows(path, ["a"])
    assert [item.line for item in rows] == [2, 4]
    assert rows[0].whole("b") is None
    assert rows[0].number("c") is None
    assert rows[1].text("c") == ""
    assert MeasuredRow({"a": "7"}, "f", 2).whole("a") == 7


@pytest.mark.parametrize(("text", "wanted"), [("1e99", "up to 9.0072e"), ("1.5", "a whole")])
def test_counts_are_whole_and_bounded(text: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        MeasuredRow({"rows": text}, "runs.csv", 2).whole("rows")
    with pytest.raises(DataError, match="a number from 0 to 1e"):
        MeasuredRow({"rows": "1e308"}, "runs.csv", 2).number("rows")
