"""Pages to point in: every figure has one, and they ask no other machine for anything."""

from __future__ import annotations

import re

import pytest

import perfmodel
from perfmodel.report.plots.describe import Bars, Points
from tests.report.plots.test_kinds import EVERY, described

pytest.importorskip("plotly", reason="plotly (the extra 'interactive') is not installed")


@pytest.mark.parametrize("name", EVERY)
def test_every_mark_is_drawn_with_its_numbers(figures, name):
    from perfmodel.report.plots.draw_plotly import draw

    plot = described(figures, name)
    figure = draw(plot)
    for end, panel in zip(("", "2"), plot.panels, strict=False):
        titles = [figure.layout[f"{way}axis{end}"].title.text for way in "xy"]
        assert titles == [axis.title for axis in (panel.x, panel.y)]
        drawn = [trace for trace in figure.data if trace.xaxis == f"x{end}"]
        points = [mark for mark in panel.marks if isinstance(mark, Points)]
        dots = [it for it in drawn if it.type == "scatter" and it.mode == "markers"]
        for mark, trace in zip(points, dots, strict=True):
            assert list(trace.x) == pytest.approx([it / panel.x.factor for it in mark.x])
        bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
        for mark, trace in zip(bars, (it for it in drawn if it.type == "bar"), strict=False):
            assert list(trace.base) == pytest.approx([it / panel.x.factor for it in mark.start])
    ranges = figure.layout.xaxis.range
    axis = plot.panels[0].x
    if axis.scale == "log":
        assert [10**end for end in ranges] == pytest.approx([axis.low, axis.high])


def test_a_page_holds_all_that_it_needs_and_is_the_same_every_time(training, tmp_path):
    plot = perfmodel.plot(training, "pareto", title="<b>a & b</b>")
    plot.save(tmp_path / "first.html")
    plot.save(tmp_path / "second.html")
    text = (tmp_path / "first.html").read_text(encoding="utf-8")
    assert text == (tmp_path / "second.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert "<title>&lt;b>a &amp; b&lt;/b></title>" in text
    assert plot.notes[0] in text


def test_names_from_files_are_text_and_no_markup(compared):
    from perfmodel.report.plots.draw_plotly import _plain

    assert _plain("<a href='x'>&\n") == "&lt;a href='x'>&amp;<br>"
