"""Words find places beside their points, on nothing."""

from __future__ import annotations

from perfmodel.report.plots.describe import Axis
from perfmodel.report.plots.placing import Box, Wanted, placed, text_size

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
