"""The numbers behind a figure, as rows, CSV and JSON."""

from __future__ import annotations

import csv
import json

import pytest

import perfmodel
from perfmodel.base.errors import DataError
from perfmodel.report.plots.describe import Axis, Cells, Panel, Points
from perfmodel.report.plots.figure import Plot
from tests.report.plots.test_kinds import EVERY, described

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


def test_missing_libraries_are_named_with_what_installs_them(training, tmp_path, monkeypatch):
    import sys

    plot = perfmodel.plot(training, "heatmap")
    for module, suffix, extra in (
        ("matplotlib", ".svg", "plot"),
        ("plotly", ".html", "interactive"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(DataError, match=rf"pip install 'perfmodel\[{extra}\]'"):
                plot.save(tmp_path / f"figure{suffix}")
    assert not list(tmp_path.iterdir())


def test_notebooks_show_the_drawing(training):
    pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")
    assert "<svg" in perfmodel.plot(training, "heatmap")._repr_svg_()
