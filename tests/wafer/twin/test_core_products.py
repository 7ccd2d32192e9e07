"""Products and attention tile by tile: nothing is left out, nothing done twice."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.instructions import ADD, GEMM, READ, WRITE
from perfmodel.wafer.twin.core_products import CoreNode, attention_pieces, product_pieces
from perfmodel.wafer.twin.core_tiles import product_tile

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
