"""Layouts, and what moves from one to another."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.wafer.cores.instructions import ADD, COPY, CORE, MULTICAST, OPCODE
from perfmodel.wafer.cores.layout import (
    along_snake,
    cast_rows,
    chosen_rows,
    even_layout,
    overlaps,
    ring_all_reduce,
    rows_in_blocks,
    send_rows,
    sums_of_rows,
    transfers,
)
from tests.wafer.cores.examples import assert_sound


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


GRID = (2, 3)


@pytest.mark.parametrize("group", [(0, 4), (5, 1, 3), (0, 1, 2, 3, 4)])
def test_a_ring_ends_with_the_sum_of_all_on_all(group: tuple[int, ...]) -> None:
    """Follow sizes: chunks differ in size, so that a wrong chunk would be seen."""
    layout = even_layout(1, 6 * (2 * len(group) + 1), GRID)
    count = len(group)
    elements = 2 * count + 1
    chunks = np.diff(elements * np.arange(count + 1) // count).tolist()
    made = {node: ring_all_reduce(layout, group, node, 6, 2.0) for node in group}
    for place, node in enumerate(group):
        lines, arguments, _ = made[node]
        assert_sound(made[node])
        # Copies of the first core of the node: which chunk is sent to whom, step by step.
        mine = (lines[:, OPCODE] == COPY) & (lines[:, CORE] == node * 6)
        sent = arguments[mine, 2].tolist()
        wanted = [chunks[(place - step) % count] for step in range(count - 1)]
        wanted += [chunks[(place + 1 - step) % count] for step in range(count - 1)]
        assert sent == [2 * one for one in wanted]
        assert set(arguments[mine, 1].tolist()) == {group[(place + 1) % count] * 6}
        adds = (lines[:, OPCODE] == ADD) & (lines[:, CORE] == node * 6)
        assert arguments[adds, 0].tolist() == [
            chunks[(place - step - 1) % count] for step in range(count - 1)
        ]
    sums = [[{node} for _ in range(count)] for node in group]
    for step in range(2 * count - 2):
        before = [[set(one) for one in row] for row in sums]
        for place in range(count):
            chunk = (place - step + (step >= count - 1) * count) % count
            to = (place + 1) % count
            reduced = before[place][chunk]
            sums[to][chunk] = before[to][chunk] | reduced if step < count - 1 else set(reduced)
    assert all(one == set(group) for row in sums for one in row)


def test_bytes_of_a_ring_are_those_of_a_ring() -> None:
    layout = even_layout(7, 100, GRID)
    copies = [
        made.arguments[made.lines[:, OPCODE] == COPY, 2].sum()
        for made in (ring_all_reduce(layout, (0, 1, 2), node, 6, 2.0) for node in range(3))
    ]
    assert sum(copies) == 2 * 2 * 700 * 2


def test_rows_arrive_whole_and_go_nowhere_else() -> None:
    layout = even_layout(9, 50, GRID)
    rows = rows_in_blocks(layout, np.array([0, 2, 2, 9]))
    made = send_rows(layout, rows, np.array([0, 1, 2]), 1, GRID, 2.0)
    copies = made.arguments[made.lines[:, OPCODE] == COPY]
    by_node = np.bincount(copies[:, 1] // 6, weights=copies[:, 2], minlength=3)
    assert by_node.tolist() == [2 * 50 * 2, 0, 7 * 50 * 2]
    assert set((copies[:, 0] // 6).tolist()) == {1}


def test_rows_are_cast_once_for_all() -> None:
    layout = even_layout(9, 50, GRID)
    made = cast_rows(layout, np.diff(layout.rows), (0, 1, 2), 1, GRID, 2.0)
    assert (made.lines[:, OPCODE] == MULTICAST).all()
    assert made.arguments[:, 1].sum() == 9 * 50 * 2
    assert made.arguments[:, 3].tolist() == [2] * len(made.lines)
    one = cast_rows(layout, np.diff(layout.rows), (1, 2), 1, GRID, 2.0)
    assert (one.lines[:, OPCODE] == COPY).all()
    assert len(cast_rows(layout, np.diff(layout.rows), (1,), 1, GRID, 2.0).lines) == 0


def test_chosen_rows_move_to_where_they_are_used() -> None:
    layout = even_layout(9, 50, GRID)
    made, target = chosen_rows(layout, (2, 5), 2, GRID, 2.0)
    # Equal pieces of the same columns: all rows are there already.
    assert len(made.lines) == 0
    assert target.shape == (4, 50)
    narrow = even_layout(12, 3, GRID)
    made, target = chosen_rows(narrow, (0, 1), 1, GRID, 2.0)
    assert target.shape == (2, 3)
    assert made.arguments[:, 2].sum() == 3 * 2


def test_sums_add_one_less_than_there_are_terms() -> None:
    made, layout = sums_of_rows(4, 60, 9, GRID, 2.0)
    added = made.arguments[made.lines[:, OPCODE] == ADD, :2].prod(axis=1).sum()
    assert added == 4 * 60 * 8
    assert layout.shape == (4, 60)
