"""Blocks of queries and keys that one launch works on."""

from __future__ import annotations

from perfmodel.kernels.attention.blocks import forward_tile
from tests.kernels.attention.calls import DEVICE, ONE_WAVE, forward


def test_long_caches_are_split_over_idle_units():
    for device in (DEVICE, ONE_WAVE):
        split = forward(device, 1, 1, 131072, 8, 1, 128, 128, True, 0)[0]
        whole = forward(device._replace(split_rule=0.0), 1, 1, 131072, 8, 1, 128, 128, True, 0)[0]
        assert split < whole / 10


def test_packed_heads_save_blocks():
    call = (64, 16, 16, 64, 1, 128, 128, True, 0)
    packed = forward(DEVICE, *call)[0]
    assert forward(DEVICE._replace(packs_groups=0.0), *call)[0] > 2 * packed


def test_narrow_heads_take_taller_tiles():
    tall = DEVICE._replace(narrow_query_tile=192.0)
    for width, rows in ((80, 192), (96, 192), (128, 128)):
        assert forward_tile(tall, 4096, 1, width, width, False)[0] == rows
