"""Which strategies have a bar, and what it is called."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.report.plots.bars import MEMORY, TIMES
from perfmodel.report.plots.marks import Line, Text
from perfmodel.store.results import best, best_of_each
from perfmodel.store.subject import subjects
from tests.report.plots.adding import sums


def test_names_say_what_differs(training):
    plot = perfmodel.plot(training, "breakdown", top=6, where="hardware == 'dgx-h100'")
    names = [text for _, text in plot.panels[0].y.ticks]
    assert len(set(names)) == 6
    assert not any("dgx-h100" in name for name in names)
    assert any("dgx-h100" in note for note in plot.notes)


def test_the_best_for_each_value_is_called_by_it_in_order(training):
    plot = perfmodel.plot(training, "breakdown", each="tp,pp", where="hardware == 'dgx-b200'")
    names = [text for _, text in plot.panels[0].y.ticks]
    assert names == [f"TP{tensor}, PP{stages}" for tensor in (1, 2, 4) for stages in (1, 2)]


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


@pytest.mark.parametrize("verb", TIMES)
def test_parts_of_times_are_the_components_told_apart_by_their_looks(verb):
    (subject,) = (it for it in subjects() if it.verb == verb)
    assert {part.name for part in TIMES[verb].parts} == set(subject.parts)
    for whole in (TIMES[verb], MEMORY[verb]):
        looks = [(part.colour, part.hatch) for part in whole.parts]
        assert len(looks) == len(set(looks))
