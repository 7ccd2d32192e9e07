"""Tiles of an attention mask, counted, and their schedule over the units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.compute.attention_device import attention_device
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.attention.forward import register_time
from perfmodel.kernels.attention.tiles import (
    floor_sum,
    forward_tile,
    list_schedule_time,
    longest_key_block,
    longest_query_block,
    visited_tiles,
)
from tests.amount import cases
from tests.kernels.attention.calls import DEVICE, ONE_WAVE, forward, lengths

tiles = st.integers(1, 9)
windows = st.sampled_from([0, 0, 1, 2, 5, 17])


def seen_keys(queries, keys, causal, window, query):
    """Keys that a query sees, by the definition of the mask."""
    position = query + keys - queries
    return [
        key
        for key in range(keys)
        if not (causal and key > position) and not (window and abs(position - key) >= window)
    ]


def counted_by_hand(queries, keys, query_tile, key_tile, causal, window):
    """Distinct key tiles of each query tile."""
    blocks = []
    for first in range(0, queries, query_tile):
        rows = range(first, min(first + query_tile, queries))
        blocks.append(
            len({k // key_tile for i in rows for k in seen_keys(queries, keys, causal, window, i)})
        )
    return blocks


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_floor_sum_equals_the_loop(n, m, a, b):
    assert floor_sum(n, m, a, b) == sum((a * t + b) // m for t in range(n))


@given(lengths, lengths, tiles, tiles, st.booleans(), windows)
@settings(max_examples=cases(400), deadline=None, derandomize=True)
def test_visited_tiles_equal_enumeration(queries, keys, query_tile, key_tile, causal, window):
    by_hand = counted_by_hand(queries, keys, query_tile, key_tile, causal, window)
    assert visited_tiles(queries, keys, query_tile, key_tile, causal, window) == sum(by_hand)
    assert max(by_hand) <= longest_query_block(queries, keys, query_tile, key_tile, causal, window)


@given(lengths, lengths, tiles, tiles, st.booleans(), windows)
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_longest_key_block_bounds_enumeration(queries, keys, query_tile, key_tile, causal, window):
    visits = np.zeros((keys - 1) // key_tile + 1, dtype=int)
    for first in range(0, queries, query_tile):
        rows = range(first, min(first + query_tile, queries))
        seen = {k // key_tile for i in rows for k in seen_keys(queries, keys, causal, window, i)}
        for tile in seen:
            visits[tile] += 1
    bound = longest_key_block(queries, keys, query_tile, key_tile, causal, window)
    assert visits.max() <= bound


def test_causal_square_has_s_times_s_plus_1_half_pairs():
    for length in (1, 7, 4096, 131072, 1 << 20):
        assert visited_tiles(length, length, 1, 1, True, 0) == length * (length + 1) // 2


def test_schedule_between_grahams_bounds():
    assert list_schedule_time(264.0, 264.0, 1.0, 132.0, 1.0) == 2.0  # two full waves
    assert list_schedule_time(133.0, 133.0, 1.0, 132.0, 1.0) == 2.0  # one block more than a wave
    assert list_schedule_time(133.0, 133.0, 1.0, 132.0, 0.0) == pytest.approx(133 / 132)
    assert list_schedule_time(3.0, 3.0, 1.5, 132.0, 1.0) == 1.5  # the longest block


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
