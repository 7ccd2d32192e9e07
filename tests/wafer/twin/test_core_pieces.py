"""Products and attention tile by tile: nothing is left out, nothing done twice."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.instructions import ADD, COPY, GEMM, READ, TILE, WRITE
from perfmodel.wafer.twin.core_lines import product_tile, tile_traffic
from perfmodel.wafer.twin.core_pieces import (
    CoreNode,
    all_reduce_pieces,
    attention_pieces,
    copy_piece,
    multicast_piece,
    product_pieces,
    sum_piece,
)
from perfmodel.wafer.twin.layouts import concatenated, fresh, sliced

NODE = CoreNode(16, 16, 2)


def arguments(pieces, opcode):
    """Return the arguments of all instructions of a kind."""
    rows = [one.instructions.arguments[one.instructions.lines[:, 0] == opcode] for one in pieces]
    return np.concatenate(rows)


@pytest.mark.parametrize("dims", [(8, 7168, 576), (5, 33, 70), (4, 9, 12, 20), (3, 1, 50, 7)])
def test_products_are_whole(dims):
    tile = product_tile(dims, NODE.cores)
    source = NODE.fresh(dims[:-1], tile[:-1])
    pieces = product_pieces("x", NODE, source, dims, tile)
    group = dims[0] if len(dims) == 4 else 1
    m, k, n = dims[-3:]
    counts = [-(-side // part) for side, part in zip(dims[-3:], tile[-3:], strict=True)]
    assert arguments(pieces, GEMM)[:, :3].prod(axis=1).sum() == group * m * k * n
    partial = counts[1] * m * n if counts[1] > 1 else 0
    read = counts[2] * m * k + counts[0] * k * n + partial
    assert arguments(pieces, READ)[:, 1].sum() == 2 * group * read
    assert arguments(pieces, WRITE)[:, 1].sum() == 2 * group * (m * n + partial)
    added = arguments(pieces, ADD)
    sides = 3 if len(dims) == 4 else 2
    assert added[:, :sides].prod(axis=1).sum() == group * (counts[1] - 1) * m * n
    assert arguments(pieces, READ)[:, 0].min() >= 16
    assert arguments(pieces, READ)[:, 0].max() < 32


def test_tiles_are_those_of_the_generator():
    # out_deepseekv3/logs/core_level_node0.log
    assert product_tile((147, 7168, 576), 36) == (147, 448, 288)
    assert product_tile((147, 7168, 1536), 36) == (147, 896, 384)
    assert product_tile((147, 1536, 6144), 36) == (147, 768, 384)
    assert product_tile((32, 147, 128, 512), 36) == (1, 147, 128, 512)


@pytest.mark.parametrize(("context", "split"), [(1024, 2), (512, 1), (300, 1), (1100, 3)])
def test_attention_is_whole(context, split):
    sequences, heads, latent, rotary = 5, 4, 16, 8
    width = latent + rotary
    source = NODE.fresh((sequences, 1, heads, width), (1, 1, heads, width))
    dims = (sequences, heads, context, latent, rotary)
    tiles = (1, 1, heads, latent), (1, 512, latent)
    pieces = attention_pieces("x", NODE, source, dims, *tiles)
    macs = sequences * heads * context * (width + latent)
    assert arguments(pieces, GEMM)[:, :3].prod(axis=1).sum() == macs
    out = sequences * heads * latent
    queries, keys = split * sequences * heads * width, sequences * context * width
    partial = split * out if split > 1 else 0
    assert arguments(pieces, READ)[:, 1].sum() == 2 * (queries + keys + partial)
    assert arguments(pieces, WRITE)[:, 1].sum() == 2 * (out + partial)
    assert len(arguments(pieces, ADD)) == (split - 1) * sequences


@pytest.mark.parametrize(
    ("query", "key", "message"),
    [
        ((1, 2, 4, 16), (1, 512, 16), "1 position"),
        ((1, 1, 4, 8), (1, 512, 16), "all of 16"),
        ((1, 1, 4, 16), (2, 512, 16), "1 and 2 sequences"),
    ],
)
def test_refuses_tiles_that_the_generator_refuses(query, key, message):
    source = NODE.fresh((4, 1, 4, 24), (1, 1, 4, 24))
    with pytest.raises(DataError, match=message):
        attention_pieces("x", NODE, source, (4, 4, 64, 16, 8), query, key)


SENDER = CoreNode(0, 4, 2)
OTHER = CoreNode(4, 4, 2)


def test_copies_move_what_is_not_there_yet():
    sent = SENDER.fresh((2, 1, 6), (1, 1, 3))
    piece = copy_piece("x", SENDER, [(sent, OTHER.fresh((2, 1, 6), (1, 1, 3))), (sent, sent)])
    assert arguments([piece], COPY)[:, :3].tolist() == [[at, at + 4, 6] for at in range(4)]
    tiles = [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
    assert piece.numbers.tolist() == 2 * tiles
    assert piece.instructions.lines[:, TILE].tolist() == [0, 1, 2, 3]
    assert not len(copy_piece("x", SENDER, []).instructions.lines)


def test_a_tile_of_a_slice_is_no_larger_than_its_row():
    row = sliced(SENDER.fresh((4, 1, 6), (4, 1, 3)), 0, 2, 3)
    found = tile_traffic(concatenated([row, row], 0), 2)
    assert found.bank.tolist() == [0, 1, 0, 1]
    assert found.size.tolist() == [6, 6, 6, 6]


def test_multicasts_name_the_same_tile_of_every_node():
    sent = SENDER.fresh((2, 4), (1, 4))
    piece = multicast_piece(
        "x", SENDER, sent, [OTHER.fresh((2, 4), (1, 4)), fresh((2, 4), (1, 4), 8, 4)]
    )
    made = piece.instructions
    assert made.arguments.tolist() == [[0, 8, 0, 2], [1, 8, 2, 2]]
    assert made.destinations.tolist() == [4, 8, 5, 9]


def test_sums_read_every_row():
    source = SENDER.fresh((3, 1, 8), (1, 1, 4))
    (piece,) = sum_piece("x", SENDER, source)
    assert arguments([piece], READ)[:, 1].sum() == 3 * 8 * 2
    assert arguments([piece], WRITE)[:, 1].sum() == 8 * 2
    assert arguments([piece], ADD)[:, :3].tolist() == [[1, 1, 4]] * 4
    assert piece.instructions.lines[:, 1].max() == 1


@pytest.mark.parametrize("members", [2, 3, 4])
def test_all_reduce_sends_each_chunk_twice_around(members):
    group = list(range(members))
    layout = SENDER.fresh((2, 1, 4 * members), (1, 1, members))
    pieces = all_reduce_pieces("x", SENDER, layout, OTHER.fresh(layout.dims, layout.tile), group, 0)
    total = 2 * 4 * members * 2
    assert arguments(pieces, COPY)[:, 2].sum() == 2 * (members - 1) * total // members
    assert arguments(pieces, WRITE)[:, 1].sum() == (members - 1) * total // members
    assert arguments(pieces, READ)[:, 1].sum() == 2 * (members - 1) * total // members
    assert [piece.comment for piece in pieces[:2]] == ["x_stage1", "x_barrier_stage1"]


def test_columns_that_the_group_does_not_divide_are_left_out():
    layout = SENDER.fresh((1, 7), (1, 7))
    pieces = all_reduce_pieces("x", SENDER, layout, OTHER.fresh((1, 7), (1, 7)), [0, 1, 2], 0)
    assert set(arguments(pieces, COPY)[:, 2].tolist()) == {4}


def test_refuses_what_stops_the_generator():
    layout = SENDER.fresh((1, 2), (1, 2))
    with pytest.raises(DataError, match="fewer than 3 nodes"):
        all_reduce_pieces("x", SENDER, layout, layout, [0, 1, 2], 0)
    layout = SENDER.fresh((1, 4), (1, 4))
    other = OTHER.fresh((1, 4), (1, 1))
    with pytest.raises(DataError, match="other banks"):
        all_reduce_pieces("x", SENDER, layout, other, [0, 1], 0)
    with pytest.raises(DataError, match="three axes"):
        sum_piece("x", SENDER, layout)
