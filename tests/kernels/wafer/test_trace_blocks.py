"""Overlaps of blocks with boxes, links of trees."""

import numpy as np
import pytest

from perfmodel.kernels.wafer.trace_blocks import block_overlaps, tree_links


def test_overlaps_count_every_element_once() -> None:
    random = np.random.default_rng(3)
    rows, columns = np.array([0, 3, 3, 7]), np.array([0, 2, 5, 6])
    banks = random.integers(0, 4, (3, 3))
    owner = np.repeat(np.repeat(banks, np.diff(rows), axis=0), np.diff(columns), axis=1)
    boxes = np.array([[0, 1, 6, 1, 6], [1, 0, 7, 0, 6], [0, 6, 7, 0, 1], [2, 4, 4, 0, 3]])
    moved = np.zeros((4, 3), np.int64)
    block_overlaps(rows, columns, banks, boxes, moved)
    wanted = np.zeros_like(moved)
    for slot, top, bottom, left, right in boxes:
        np.add.at(wanted, (owner[top:bottom, left:right].ravel(), slot), 1)
    assert (moved == wanted).all()


@pytest.mark.parametrize(
    ("to", "links"),
    [
        ([0], 0),
        ([8], 4),
        ([2, 8], 4),
        ([2, 6], 2 + 2),
        ([1, 2, 5, 8, 3], 2 + 2 + 1),
        ([7, 1], 1 + 2),
    ],
)
def test_links_of_trees_on_three_by_three(to: list[int], links: int) -> None:
    place = np.arange(9)
    found = tree_links(np.array([0]), np.array([0, len(to)]), np.array(to), place // 3, place % 3)
    assert found.tolist() == [links]


def test_links_of_a_tree_are_no_more_than_of_single_ways() -> None:
    random = np.random.default_rng(5)
    place = np.arange(48)
    rows, columns = place // 8, place % 8
    for _ in range(20):
        to = random.choice(48, 6, replace=False)
        source = np.array([int(random.integers(48))])
        tree = int(tree_links(source, np.array([0, 6]), to, rows, columns)[0])
        alone = abs(rows[to] - rows[source]) + abs(columns[to] - columns[source])
        assert alone.max() <= tree <= alone.sum()
