"""Keys and titles of described figures."""

from __future__ import annotations

import csv
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

import perfmodel
from perfmodel.base import figures as style
from perfmodel.base.errors import DataError
from perfmodel.report.plots.figure import Plot, draw, split, svg_text
from perfmodel.report.plots.marks import Axis, Bars, Cells, Panel, Points, legend_of
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


pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")

NEUTRAL = {style.INK, style.GREY, style.SOFT, style.PALE, style.WHITE, style.BLACK}
COLOURS = {colour.lower() for colour in (*style.PALETTE, style.YELLOW, *NEUTRAL)}
SVG = "{http://www.w3.org/2000/svg}"


def texts_of(plot: Plot) -> list[str]:
    root = ElementTree.fromstring(svg_text(plot))
    return ["".join(item.itertext()).strip() for item in root.iter(f"{SVG}text")]


def words_of(figure):
    from matplotlib.text import Text

    return [it for it in figure.findobj(Text) if it.get_text() and it.get_visible()]


@pytest.mark.parametrize("name", EVERY)
def test_text_stays_text_with_the_units_of_the_axes(figures, name):
    plot = described(figures, name)
    texts = " ".join(texts_of(plot))
    for panel in plot.panels:
        for axis in (panel.x, panel.y):
            assert axis.label in texts
            assert f"({axis.unit})" in texts or not axis.unit


@pytest.mark.parametrize("name", EVERY)
def test_colours_are_those_of_the_palette(figures, name):
    plot = described(figures, name)
    svg = svg_text(plot)
    used = {it.lower() for it in re.findall(r"(?:fill|stroke): (#[0-9a-fA-F]{6})", svg)}
    shades = {
        style.shade(mark.share(value)).lower()
        for panel in plot.panels
        for mark in panel.marks
        if isinstance(mark, Cells)
        for line in mark.values
        for value in line
        if value == value
    }
    assert used <= COLOURS | shades


@pytest.mark.parametrize("name", EVERY)
def test_no_word_is_cut_off_or_lies_on_another(figures, name):
    plot = described(figures, name)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = draw(plot)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [(it.get_text(), it.get_window_extent(renderer)) for it in words_of(figure)]
    ticks = {text for panel in plot.panels for axis in (panel.x, panel.y) for _, text in axis.ticks}
    assert boxes
    for text, box in boxes:
        assert min(box.x0, box.y0) >= -0.5, text
        assert box.x1 <= figure.bbox.width + 0.5, text
        assert box.y1 <= figure.bbox.height + 0.5, text
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        if one == other and one in ticks:
            continue  # one object, found twice
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(width, height) < 0.12 * min(a.height, b.height), (one, other)


@pytest.mark.parametrize("name", ["breakdown", "pareto"])
def test_words_are_of_seven_or_eight_points(figures, name):
    figure = draw(described(figures, name))
    assert {it.get_fontsize() for it in words_of(figure)} == {style.SMALL, style.TEXT}


def test_pdfs_hold_their_fonts_and_figures_are_as_wide_as_asked(training, tmp_path):
    plot = perfmodel.plot(training, "heatmap", width=2.5)
    plot.save(tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/CIDFontType2" in content  # Type 42
    assert b"CreationDate" not in content
    assert b"/MediaBox [ 0 0 180" in content
    plot.save(tmp_path / "figure.png")
    width = int.from_bytes((tmp_path / "figure.png").read_bytes()[16:20], "big")
    assert width == 2.5 * style.DPI


def test_a_title_stands_where_one_is_asked_for(training):
    assert "Where time goes" in texts_of(
        perfmodel.plot(training, "breakdown", title="Where time goes")
    )


def test_drawing_leaves_the_settings_of_others_alone(training):
    import matplotlib

    with matplotlib.rc_context({"font.size": 31.0}):
        figure = draw(perfmodel.plot(training, "heatmap"))
        assert matplotlib.rcParams["font.size"] == 31.0
    assert all(label.get_fontsize() < 10 for label in figure.axes[0].get_xticklabels())


def test_labels_with_dollars_are_no_formulas():
    axis = Axis("x", "costs $a_1$", "USD", ticks=((0.5, "0.5"),))
    plot = Plot("any", (Panel(axis, axis, (Points([0.5], [0.5], style.BLUE),)),), 3.0, 2.0)
    assert texts_of(plot).count("costs $a_1$ (USD)") == 2


def test_columns_of_a_key_are_filled_as_matplotlib_fills_them():
    assert split(list("abcde"), 4) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert split(list("abcdef"), 3) == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_bars_are_where_they_are_said_to_be():
    x = Axis("time", "time", "ms", 1e-3, "linear", 0.0, 4e-3)
    y = Axis("row", "", "", 1.0, "category", 0.5, -0.5, ((0.0, "only"),))
    bars = Bars([0.0], [1e-3], [2e-3], style.BLUE, "part", height=0.5)
    figure = draw(Plot("any", (Panel(x, y, (bars,)),), 3.0, 2.0))
    (path,) = figure.axes[0].collections[0].get_paths()
    assert path.get_extents().bounds == pytest.approx((1.0, -0.25, 2.0, 0.5))
