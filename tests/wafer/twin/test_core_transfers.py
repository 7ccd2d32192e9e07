"""Sums and transfers between nodes, tile by tile."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.instructions import ADD, COPY, READ, TILE, WRITE
from perfmodel.wafer.twin.core_lines import tile_traffic
from perfmodel.wafer.twin.core_products import CoreNode
from perfmodel.wafer.twin.core_transfers import (
    all_reduce_pieces,
    copy_piece,
    multicast_piece,
    sum_piece,
)
from perfmodel.wafer.twin.layouts import concatenated, fresh, sliced
from tests.wafer.twin.test_core_products import arguments

NODE = CoreNode(0, 4, 2)
OTHER = CoreNode(4, 4, 2)


def test_copies_move_what_is_not_there_yet():
    sent = NODE.fresh((2, 1, 6), (1, 1, 3))
    piece = copy_piece("x", NODE, [(sent, OTHER.fresh((2, 1, 6), (1, 1, 3))), (sent, sent)])
    assert arguments([piece], COPY)[:, :3].tolist() == [[at, at + 4, 6] for at in range(4)]
    tiles = [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
    assert piece.numbers.tolist() == 2 * tiles
    assert piece.instructions.lines[:, TILE].tolist() == [0, 1, 2, 3]
    assert not len(copy_piece("x", NODE, []).instructions.lines)


def test_a_tile_of_a_slice_is_no_larger_than_its_row():
    row = sliced(NODE.fresh((4, 1, 6), (4, 1, 3)), 0, 2, 3)
    found = tile_traffic(concatenated([row, row], 0), 2)
    assert found.bank.tolist() == [0, 1, 0, 1]
    assert found.size.tolist() == [6, 6, 6, 6]


def test_multicasts_name_the_same_tile_of_every_node():
    sent = NODE.fresh((2, 4), (1, 4))
    piece = multicast_piece(
        "x", NODE, sent, [OTHER.fresh((2, 4), (1, 4)), fresh((2, 4), (1, 4), 8, 4)]
    )
    made = piece.instructions
    assert made.arguments.tolist() == [[0, 8, 0, 2], [1, 8, 2, 2]]
    assert made.destinations.tolist() == [4, 8, 5, 9]


def test_sums_read_every_row():
    source = NODE.fresh((3, 1, 8), (1, 1, 4))
    (piece,) = sum_piece("x", NODE, source)
    assert arguments([piece], READ)[:, 1].sum() == 3 * 8 * 2
    assert arguments([piece], WRITE)[:, 1].sum() == 8 * 2
    assert arguments([piece], ADD)[:, :3].tolist() == [[1, 1, 4]] * 4
    assert piece.instructions.lines[:, 1].max() == 1


@pytest.mark.parametrize("members", [2, 3, 4])
def test_all_reduce_sends_each_chunk_twice_around(members):
    group = list(range(members))
    layout = NODE.fresh((2, 1, 4 * members), (1, 1, members))
    pieces = all_reduce_pieces("x", NODE, layout, OTHER.fresh(layout.dims, layout.tile), group, 0)
    total = 2 * 4 * members * 2
    assert arguments(pieces, COPY)[:, 2].sum() == 2 * (members - 1) * total // members
    assert arguments(pieces, WRITE)[:, 1].sum() == (members - 1) * total // members
    assert arguments(pieces, READ)[:, 1].sum() == 2 * (members - 1) * total // members
    assert [piece.comment for piece in pieces[:2]] == ["x_stage1", "x_barrier_stage1"]


def test_columns_that_the_group_does_not_divide_are_left_out():
    layout = NODE.fresh((1, 7), (1, 7))
    pieces = all_reduce_pieces("x", NODE, layout, OTHER.fresh((1, 7), (1, 7)), [0, 1, 2], 0)
    assert set(arguments(pieces, COPY)[:, 2].tolist()) == {4}


def test_refuses_what_stops_the_generator():
    layout = NODE.fresh((1, 2), (1, 2))
    with pytest.raises(DataError, match="fewer than 3 nodes"):
        all_reduce_pieces("x", NODE, layout, layout, [0, 1, 2], 0)
    layout = NODE.fresh((1, 4), (1, 4))
    other = OTHER.fresh((1, 4), (1, 1))
    with pytest.raises(DataError, match="other banks"):
        all_reduce_pieces("x", NODE, layout, other, [0, 1], 0)
    with pytest.raises(DataError, match="three axes"):
        sum_piece("x", NODE, layout)
