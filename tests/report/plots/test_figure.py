"""Keys and titles of described figures."""

from __future__ import annotations

import csv
import json
import re

import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Axis, Cells, Panel, Points, legend_of
from tests.report.plots.test_kinds import EVERY, described

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


X = Axis("x_name", "x", "ms", 1e-3)


@pytest.mark.parametrize("name", EVERY)
def test_data_is_what_is_drawn(figures, name, tmp_path):
    plot = described(figures, name)
    plot.save_data(tmp_path / "data.csv")
    with (tmp_path / "data.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(plot.rows()) > 0
    for axis in (plot.panels[0].x, plot.panels[0].y):
        assert axis.name in rows[0]


@pytest.mark.parametrize("name", EVERY)
def test_the_json_document_has_axes_and_series(figures, name):
    plot = described(figures, name)
    document = json.loads(json.dumps(plot.to_json_dict()))
    assert document["kind"] == plot.kind
    assert len(document["panels"]) == len(plot.panels)
    assert all(panel["series"] for panel in document["panels"])
    assert document["notes"] == list(plot.notes)


def test_numbers_are_in_si_units_and_categories_by_name():
    y = Axis("row", "", "", 1.0, "category", 1.5, -0.5, ((0.0, "first\nline"), (1.0, "second")))
    points = Points([1e-3], [0.0], "#000000", "series")
    plot = Plot("any", (Panel(X, y, (points,)),), 3.0, 2.0)
    assert plot.rows() == [{"series": "series", "x_name": 1e-3, "row": "first line"}]


def test_empty_cells_have_no_number():
    axis = Axis("a", "", "", 1.0, "category", -0.5, 0.5, ((0.0, "only"),))
    cells = Cells([[float("nan")]], [["–"]], (), X)
    plot = Plot("any", (Panel(axis, axis, (cells,)),), 3.0, 2.0)
    assert plot.rows() == [{"a": "only", "x_name": None, "text": "–"}]


@pytest.mark.parametrize("name", ["figure.gif", "figure", "missing/figure.svg"])
def test_unwritable_figures_are_refused_and_leave_nothing(training, tmp_path, name):
    plot = perfmodel.plot(training, "heatmap")
    with pytest.raises(DataError):
        plot.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named_with_what_installs_it(training, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DataError, match=r"pip install 'perfmodel\[plot\]'"):
        perfmodel.plot(training, "heatmap").save(tmp_path / "figure.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", EVERY)
def test_the_description_has_every_number_that_is_drawn(figures, name):
    plot = described(figures, name)
    found = json.loads(json.dumps(plot.described(), allow_nan=False))
    for panel, document in zip(plot.panels, found["panels"], strict=True):
        titles = [document[axis]["title"] for axis in "xy"]
        assert titles == [axis.title for axis in (panel.x, panel.y)]
        for mark, it in zip(panel.marks, document["marks"], strict=True):
            assert it.pop("mark") == type(mark).__name__.lower()
            assert it.keys() == set(type(mark).__dataclass_fields__)
            for column in ("x", "y", "start", "length"):
                if hasattr(mark, column):
                    assert it[column] == getattr(mark, column)


def test_a_page_holds_all_that_it_needs_and_is_the_same_every_time(training, tmp_path):
    plot = perfmodel.plot(training, "pareto", title="<b>a & b</b>")
    plot.save(tmp_path / "first.html")
    plot.save(tmp_path / "second.html")
    text = (tmp_path / "first.html").read_text(encoding="utf-8")
    assert text == (tmp_path / "second.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert "<title>&lt;b&gt;a &amp; b&lt;/b&gt;</title>" in text
    assert plot.notes[0] in text


def test_notebooks_show_the_drawing(training):
    pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")
    assert "<svg" in perfmodel.plot(training, "heatmap")._repr_svg_()
