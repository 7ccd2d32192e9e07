"""Cells that a spreadsheet would run."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base import cells


def test_texts_are_escaped_and_numbers_stay() -> None:
    given = ["=1+1", "+A1", "-x", "@SUM(A1)", "\tx", "'=x", "-1.5", "+3e4", -2, "plain", "'plain"]
    made = ["'=1+1", "'+A1", "'-x", "'@SUM(A1)", "'\tx", "''=x", *given[6:]]
    assert cells.written(given) == made


@given(st.lists(st.text("'=+-@\t\ra1.,\"", max_size=6), min_size=1))
def test_what_is_written_is_read(texts: list[str]) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow(cells.written(texts))
    stream.seek(0)
    assert cells.read(next(csv.reader(stream))) == texts
    for cell in cells.written(texts):
        assert cell[:1] not in ("=", "@", "\t", "\r")
