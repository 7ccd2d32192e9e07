"""Layouts, and what moves from one to another."""

import numpy as np

from perfmodel.wafer.cores.instructions import COPY, MULTICAST, OPCODE
from perfmodel.wafer.cores.layout import along_snake, even_layout, overlaps, transfers


def test_a_snake_goes_to_neighbours() -> None:
    cores = along_snake((3, 4))
    assert sorted(cores.tolist()) == list(range(12))
    steps = abs(np.diff(cores // 4)) + abs(np.diff(cores % 4))
    assert (steps == 1).all()


def test_even_layouts_use_all_cores_that_they_can() -> None:
    assert (even_layout(5, 13, (2, 3)).elements(6) >= 10).all()
    narrow = even_layout(12, 2, (2, 3))
    assert narrow.elements(6).tolist() == [4] * 6
    assert even_layout(1, 2, (2, 3)).elements(6).sum() == 2


def test_what_lies_there_is_not_sent() -> None:
    layout = even_layout(4, 6, (2, 3))
    boxes = np.array([[core, 0, 4, 0, 6] for core in range(6)])
    moved = overlaps(layout, boxes, 6, 6)
    assert (moved == 4).all()
    sent = transfers(moved, [np.array([core]) for core in range(6)])
    assert (sent.lines[:, OPCODE] == COPY).all()
    assert len(sent.lines) == 30


def test_one_slot_of_several_cores_is_a_multicast() -> None:
    layout = even_layout(4, 6, (2, 3))
    moved = overlaps(layout, np.array([[0, 0, 4, 0, 6]]), 1, 6)
    sent = transfers(moved, [np.arange(6)])
    assert (sent.lines[:, OPCODE] == MULTICAST).all()
    assert sent.arguments[:, 3].tolist() == [5] * 6
    two = transfers(moved, [np.array([0, 1])])
    kinds = two.lines[:, OPCODE].tolist()
    assert (kinds.count(COPY), kinds.count(MULTICAST)) == (2, 4)
    assert len(transfers(moved * 0, [np.arange(6)]).lines) == 0
