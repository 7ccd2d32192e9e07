"""Rows of results have names, states have meanings."""

from __future__ import annotations

from perfmodel.kernels.serving import tables


def test_rows_are_numbered_in_order() -> None:
    assert list(tables.ROWS) == list(range(len(tables.ROWS)))


def test_codes_have_names() -> None:
    assert tables.PARTS[tables.EXPERTS] == "experts"
    assert tables.SCHEDULERS[tables.PREFILL_FIRST] == "prefill_first"
    assert tables.ADMISSIONS[tables.ESTIMATE] == "estimate"
    assert tables.STATES[tables.UNSTABLE] == "rate_above_capacity"
