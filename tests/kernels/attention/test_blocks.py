"""Blocks of queries and keys that one launch works on."""

from __future__ import annotations

import pytest

from perfmodel.compute.attention_device import attention_device
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.attention.blocks import forward_tile
from perfmodel.kernels.attention.forward import register_time
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


def test_libraries_for_mma_sync_take_the_tiles_of_their_sources():
    # FlashInfer: FA2DetermineCtaTileQ and DISPATCH_NUM_MMA_KV with 164 KB (A100) and 100 KB (L40S)
    # of a unit for two blocks; FlashAttention 2: run_mha_fwd_splitkv_dispatch
    for library, hardware, width, tile in (
        ("flashinfer", "dgx-a100", 128, (128, 64)),
        ("flashinfer", "dgx-a100", 256, (64, 32)),
        ("flashinfer", "l40s-server", 128, (128, 32)),
        ("flashinfer", "l40s-server", 256, (64, 16)),
        ("fa2", "l40s-server", 64, (64, 256)),
        ("fa2", "l40s-server", 128, (64, 128)),
        ("fa2", "l40s-server", 192, (64, 64)),
        ("fa2", "l40s-server", 256, (64, 64)),
    ):
        device = attention_device(load_hardware(hardware), "bf16", library=library)
        packed = 1 if library == "flashinfer" else 0
        assert forward_tile(device, 4096, packed, width, width, False)[:2] == tile


def test_some_pack_and_split_only_heads_that_share_keys_without_a_window():
    picky = ONE_WAVE._replace(packs_groups=0.0, packs_always=0.0)
    for heads, window in ((1, 0), (8, 4096)):
        call = (1, 1, 131072, heads, 1, 128, 128, True, window)
        assert forward(picky, *call)[0] > forward(ONE_WAVE, *call)[0]
    call = (1, 1, 131072, 8, 1, 128, 128, True, 0)
    assert forward(picky, *call) == forward(ONE_WAVE._replace(packs_groups=0.0), *call)


def test_small_tiles_read_more_operands_into_registers():
    # 4 warps: 64 keys of 256 elements of 2 B each, and 128 queries of 128, at 128 B per clock; O
    # 128 x 128 rescaled by 67e12 / 132 FLOP/s
    device = DEVICE._replace(tile_readers=4.0)
    read = (4 * 64 * 256 + 128 * 128) * 2 / (128 * 1.98e9)
    rescaled = 2 * 128 * 128 * 132 / 67e12
    assert register_time(device, 128, 64, 128, 128) == pytest.approx(read + rescaled)
    assert register_time(DEVICE, 128, 64, 128, 128) == 0.0
    times = [register_time(device, 128, keys, 128, 128) / keys for keys in (16, 32, 64, 128)]
    assert times == sorted(times, reverse=True)
    narrow = device._replace(key_bytes=1.0, conversion_operations=10.0)
    assert register_time(narrow, 128, 64, 128, 128) > register_time(device, 128, 64, 128, 128)
