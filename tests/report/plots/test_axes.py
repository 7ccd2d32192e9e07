"""Axes: round ticks between their ends, and units that people read."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.report.plots.axes import (
    Box,
    Wanted,
    category_axis,
    linear_ticks,
    log_ticks,
    number_axis,
    placed,
    short_number,
    shown_unit,
    text_size,
    variable_axis,
)
from perfmodel.report.plots.marks import Axis
from tests.data import table_of


@pytest.mark.parametrize(
    ("name", "units", "largest", "unit"),
    [
        *table_of(__file__, "units_are_those_that_people_read"),
        ("training_time", "s", 30 * 86400.0, "days"),
    ],
)
def test_units_are_those_that_people_read(name, units, largest, unit):
    assert shown_unit(name, units, largest)[1] == unit


def test_percentiles_have_their_words():
    words = shown_unit("time_to_first_token_p95", "s", 1.0)
    assert words == ("time to first token, 95th percentile", "s", 1.0)


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.sampled_from([1.0, 1e-3, 2.0**30, 0.01]))
def test_linear_ticks_are_some_between_the_ends_and_evenly_spaced(low, spread, factor):
    high = low + spread + abs(low) * 1e-6
    ticks = [at for at, _ in linear_ticks(low, high, factor)]
    width = high - low
    assert 2 <= len(ticks) <= 8
    assert all(low - 1e-6 * width <= at <= high + 1e-6 * width for at in ticks)
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert max(steps) - min(steps) <= 1e-3 * max(steps)


@given(st.floats(1e-12, 1e12), st.floats(1.5, 1e9))
def test_logarithmic_ticks_are_some_between_the_ends(low, ratio):
    ticks = [at for at, _ in log_ticks(low, low * ratio)]
    assert 1 <= len(ticks) <= 10
    assert all(low * (1 - 1e-9) <= at <= low * ratio * (1 + 1e-9) for at in ticks)
    assert ticks == sorted(ticks)


@pytest.mark.parametrize("end", [0.0, 5e-324])
def test_an_axis_without_length_has_one_tick(end):
    assert linear_ticks(0.0, end) == ((0.0, "0"),)


def test_texts_of_ticks():
    assert [it for _, it in linear_ticks(0.0, 1.0)] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [it for _, it in linear_ticks(-20.0, 2000.0)] == ["0", "500", "1,000", "1,500", "2,000"]
    assert [it for _, it in linear_ticks(-0.1, 0.1, 0.01)] == ["−10", "−5", "0", "5", "10"]
    assert [it for _, it in log_ticks(0.5, 200.0, wanted=4)] == ["1", "10", "100"]
    assert next(it for _, it in log_ticks(1e-7, 1e-4)) == "10⁻⁷"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (7.98, "7.98"), (17.04, "17.0"), (99.96, "100"), (1104.2, "1,104"),
     (25432.0, "25.4k"), (123456.0, "123k"), (3.0, "3"), (math.nan, "")],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert short_number(value) == text


def test_values_fill_an_axis_and_zero_begins_it_where_asked():
    axis = number_axis("step_time", "s", [2.0, math.nan, 4.0, math.inf])
    assert axis.low < 2.0 < 4.0 < axis.high
    assert number_axis("step_time", "s", [2.0, 4.0], zero=True).low == 0.0
    alone = number_axis("step_time", "s", [2.0])
    assert alone.low < 2.0 < alone.high
    log = number_axis("step_time", "s", [0.0, 1e-3, 1.0], log=True)
    assert log.share(1e-3) == pytest.approx(1.0 - log.share(1.0))


def test_categories_run_down():
    axis = category_axis("kind", ["a", "b"])
    assert (axis.share(0.0), axis.share(1.0)) == (0.75, 0.25)
    assert axis.category(1.0) == "b"


def test_results_say_units_and_words(wafer, training):
    assert variable_axis(training, "tp", [1, 8]).name == "tensor_parallel"
    assert variable_axis(wafer, "tokens_per_second", [1e4]).label == "speed of one user"


X = Axis("x", "x", low=0.0, high=100.0)
PAPER = (200.0, 150.0)


def box_of(text, paper=PAPER) -> Box:
    wide, high = text_size(text.text)
    left = text.x / 100 * paper[0] + text.dx
    left -= {"left": 0.0, "center": wide / 2, "right": wide}[text.align]
    bottom = text.y / 100 * paper[1] + text.dy
    bottom -= {"bottom": 0.0, "center": high / 2, "top": high}[text.valign]
    return Box(left, bottom, left + wide, bottom + high)


def test_words_stand_to_the_right_where_nothing_is():
    (text,) = placed([Wanted("name", "#000000", [(50.0, 50.0)])], X, X, PAPER)
    assert (text.align, text.valign, text.dy) == ("left", "center", 0.0)
    assert text.dx > 0.0


def test_words_stay_on_the_paper():
    for point in ((99.0, 99.0), (1.0, 1.0), (99.0, 1.0), (1.0, 99.0)):
        (text,) = placed([Wanted("a long name", "#000000", [point])], X, X, PAPER)
        box = box_of(text)
        assert box.left >= 0.0
        assert box.bottom >= 0.0
        assert box.right <= PAPER[0]
        assert box.top <= PAPER[1]


def test_words_do_not_lie_on_words_or_points():
    wanted = [Wanted(f"name {at}", "#000000", [(50.0, 50.0 + at)]) for at in range(4)]
    dots = [(58.0, 50.0)]
    texts = placed(wanted, X, X, PAPER, dots)
    boxes = [box_of(text) for text in texts]
    for at, box in enumerate(boxes):
        assert all(box.overlap(other) == 0.0 for other in boxes[:at])
        assert not (box.left < 116.0 < box.right and box.bottom < 75.0 < box.top)


def test_words_without_a_place_are_left_out_where_they_may_be():
    crowd = [(float(x), float(y)) for x in range(0, 101, 2) for y in range(0, 101, 2)]
    wanted = [Wanted("name", "#000000", [(50.0, 50.0)])]
    assert placed(wanted, X, X, PAPER, crowd, must=False) == []
    assert len(placed(wanted, X, X, PAPER, crowd)) == 1
    assert len(placed(wanted, X, X, PAPER, (), crowd, must=False)) == 1  # faint ones may be covered
