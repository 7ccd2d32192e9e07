"""Keys and titles of described figures."""

from __future__ import annotations

from perfmodel.report.plots.describe import Axis, Panel, Points, legend_of

X = Axis("x_name", "x", "ms", 1e-3)


def test_a_key_explains_every_label_once():
    marks = (
        Points([], [], "#000000", "a"),
        Points([], [], "#000000", "a"),
        Points([], [], "#000000", "b", keyed=False),
    )
    assert [mark.label for mark in legend_of([Panel(X, X, marks)])] == ["a"]


def test_units_take_a_line_of_their_own_where_they_have_no_room():
    assert X.title_in(100.0) == "x (ms)"
    assert X.title_in(10.0) == "x\n(ms)"
