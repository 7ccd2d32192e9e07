"""Curves over devices: throughput of the best strategies beside the ideal."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.report.plots.marks import Line, Points
from perfmodel.store.results import scaling


def test_curves_are_those_of_scaling_and_the_ideal_grows_with_devices(growing):
    rows = scaling(growing)
    above, below = perfmodel.plot(growing, "scaling").panels
    (points,) = [mark for mark in above.marks if isinstance(mark, Points)]
    assert points.x == [8, 16, 32]
    assert points.y == [row["tokens_per_second"] for row in rows]
    ideal = next(mark for mark in above.marks if isinstance(mark, Line) and mark.dashed)
    assert ideal.y == pytest.approx([rows[0]["tokens_per_second"] * it for it in (1, 2, 4)])
    (efficiency,) = [mark for mark in below.marks if isinstance(mark, Points)]
    assert efficiency.y == [row["scaling_efficiency"] for row in rows]
    assert below.x.ticks == ((8.0, "8"), (16.0, "16"), (32.0, "32"))
