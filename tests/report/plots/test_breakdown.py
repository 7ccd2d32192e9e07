"""Bars of times add up: to the time of a step, to the latency of a wafer."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.report.plots.describe import Text
from perfmodel.store.results import best
from tests.report.plots.adding import sums


def test_times_add_up_to_the_step(training):
    rows = best(training, 5)
    plot = perfmodel.plot(training, "breakdown", top=5)
    assert sums(plot) == pytest.approx([row["step_time"] for row in rows], rel=1e-5)


def test_latencies_of_wafers_add_up(wafer):
    rows = best(wafer, 4)
    plot = perfmodel.plot(wafer, "breakdown", top=4)
    assert sums(plot) == pytest.approx([row["latency"] for row in rows], rel=1e-5)


def test_totals_stand_beside_their_bars(served):
    plot = perfmodel.plot(served, "breakdown", each="hardware")
    texts = [mark for mark in plot.panels[0].marks if isinstance(mark, Text)]
    assert [text.x for text in texts] == pytest.approx(sums(plot))
