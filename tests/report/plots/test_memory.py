"""Bars of memory add up to a device's, with a line where it ends."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.report.plots.describe import Line
from perfmodel.store.results import best, best_of_each
from tests.report.plots.adding import sums


def test_memory_adds_up_and_capacity_is_a_line(training):
    rows = best_of_each(training, ["hardware"])
    rows.sort(key=lambda row: row["hardware"])
    plot = perfmodel.plot(training, "memory", each="hardware")
    assert sums(plot) == pytest.approx([row["memory_total"] for row in rows], rel=1e-5)
    lines = [mark for mark in plot.panels[0].marks if isinstance(mark, Line)]
    assert [line.x[0] for line in lines] == [row["memory_capacity"] for row in rows]
    names = [text for _, text in plot.panels[0].y.ticks]
    assert names == ["dgx-b200", "dgx-h100"]


def test_one_capacity_is_one_line(training):
    plot = perfmodel.plot(training, "memory", where="hardware == 'dgx-h100'")
    (line,) = [mark for mark in plot.panels[0].marks if isinstance(mark, Line)]
    assert line.y == [-0.5, 5.5]


def test_memory_of_stages_is_that_of_the_fullest_at_its_peak(training):
    plot = perfmodel.plot(training, "memory", stages=True, where="pp == 2")
    (row,) = best(training, 1, where="pp == 2")
    assert max(sums(plot)) == pytest.approx(row["memory_total"], rel=1e-5)
    assert len(sums(plot)) == 8  # two stages at four moments
