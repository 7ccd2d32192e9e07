"""Tile counts, schedules and properties of the attention kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.attention.blocks import forward_tile
from perfmodel.kernels.attention.columns import (
    AttentionDevice,
    attention_backward,
    attention_columns,
    attention_forward,
    attention_ragged,
)
from perfmodel.kernels.attention.device import ONE_WAVE_SPLIT, SPREAD_SPLIT
from perfmodel.kernels.attention.forward import cached_share
from perfmodel.kernels.attention.portable import portable_splits
from perfmodel.kernels.attention.tiles import (
    floor_sum,
    list_schedule_time,
    longest_key_block,
    longest_query_block,
    visited_tiles,
)

# round numbers of an H100-like device
DEVICE = AttentionDevice(
    matrix_rate=1e15,
    exponential_rate=3.9e12,
    vector_rate=67e12,
    units=132.0,
    bandwidth=3.35e12,
    cache_bandwidth=4e12,
    cache_capacity=50e6,
    scratchpad=228.0 * 1024,
    power_limit=0.0,
    query_bytes=2.0,
    key_bytes=2.0,
    output_bytes=2.0,
    query_tile=128.0,
    narrow_query_tile=128.0,
    smallest_query_tile=64.0,
    key_tile=128.0,
    decode_key_tile=128.0,
    accumulators=32768.0,
    packs_groups=1.0,
    pairs_units=0.0,
    split_rule=SPREAD_SPLIT,
    most_splits=128.0,
    residents=1.0,
    decode_residents=1.0,
    backward_query_tile=64.0,
    backward_key_tile=128.0,
    matrix_efficiency=0.8,
    backward_matrix_efficiency=0.7,
    wide_backward=0.65,
    latent_efficiency=0.9,
    latent_memory=0.9,
    latent_splits=128.0,
    head_step=32.0,
    latent_key_time=0.0,
    portable=0.0,
    masked_tile=0.0,
    windowed_tile=1.0,
    cache_port=2.0,
    product_operations=0.0,
    softmax_operations=6.0,
    backward_operations=10.0,
    conversion_operations=0.0,
    overlap=0.7,
    backward_overlap=0.4,
    lone_tile=1.1,
    tail=0.9,
    memory_efficiency=0.88,
    unit_bandwidth=1.5,
    cache_share=0.5,
    block_latency=2.5e-6,
    decode_latency=2e-6,
    width_latency=0.2,
    exposed_latency=0.5,
    split_latency=2e-6,
    split_block_latency=0.0,
    launch_latency=2e-6,
    energy_per_flop=1e-12,
    power_exponent=0.55,
    heat_time=1e-3,
)
ONE_WAVE = DEVICE._replace(
    split_rule=ONE_WAVE_SPLIT, packs_groups=0.0, pairs_units=1.0, query_tile=256.0
)


def forward(device, *call, latent=False, cached=False, prefill=False):
    """Forward pass of a plain call."""
    return attention_forward(device, *call, latent, cached, prefill)


lengths = st.integers(1, 48)
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
@settings(max_examples=200, deadline=None, derandomize=True)
def test_floor_sum_equals_the_loop(n, m, a, b):
    assert floor_sum(n, m, a, b) == sum((a * t + b) // m for t in range(n))


@given(lengths, lengths, tiles, tiles, st.booleans(), windows)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_visited_tiles_equal_enumeration(queries, keys, query_tile, key_tile, causal, window):
    by_hand = counted_by_hand(queries, keys, query_tile, key_tile, causal, window)
    assert visited_tiles(queries, keys, query_tile, key_tile, causal, window) == sum(by_hand)
    assert max(by_hand) <= longest_query_block(queries, keys, query_tile, key_tile, causal, window)


@given(lengths, lengths, tiles, tiles, st.booleans(), windows)
@settings(max_examples=200, deadline=None, derandomize=True)
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


def test_forward_flops_of_gpt3_layer():
    # 2 products x 2 FLOP x 96 heads x 128 wide on 2048 x 2049 / 2 pairs
    flops = forward(DEVICE, 1, 2048, 2048, 96, 96, 128, 128, True, 0)[1]
    assert flops == 4 * 96 * 128 * 2048 * 2049 // 2


def test_backward_executes_five_products_for_two():
    call = (2, 4096, 4096, 32, 8, 128, 128, True, 0)
    whole = attention_backward(DEVICE, *call)
    assert whole[1] == pytest.approx(2.5 * forward(DEVICE, *call)[1], rel=1e-12)


def test_backward_flops_with_unequal_widths():
    # S, dQ, dK are 192 wide, dP and dV 128 (multi-head latent attention)
    flops = attention_backward(DEVICE, 1, 1024, 1024, 16, 16, 192, 128, False, 0)[1]
    assert flops == 2 * (3 * 192 + 2 * 128) * 16 * 1024**2


def test_schedule_between_grahams_bounds():
    assert list_schedule_time(264.0, 264.0, 1.0, 132.0, 1.0) == 2.0  # two full waves
    assert list_schedule_time(133.0, 133.0, 1.0, 132.0, 1.0) == 2.0  # one block more than a wave
    assert list_schedule_time(133.0, 133.0, 1.0, 132.0, 0.0) == pytest.approx(133 / 132)
    assert list_schedule_time(3.0, 3.0, 1.5, 132.0, 1.0) == 1.5  # the longest block


calls = st.tuples(
    st.integers(1, 16),  # batch
    st.integers(1, 6000),  # queries
    st.integers(0, 4000),  # cached keys
    st.integers(1, 8),  # key-value heads
    st.sampled_from([1, 2, 4, 8]),  # group
    st.sampled_from([(64, 64), (128, 128), (192, 128), (256, 256)]),
    st.booleans(),
    st.sampled_from([0, 0, 128, 1024]),
)


def priced(call, device=DEVICE, backward=False, **changes):
    """Result of a call with some of its parts changed."""
    names = ("batch", "queries", "cached", "kv_heads", "group", "widths", "causal", "window")
    part = dict(zip(names, call, strict=True)) | changes
    kernel = attention_backward if backward else forward
    return kernel(
        device,
        part["batch"],
        part["queries"],
        part["queries"] + part["cached"],
        part["kv_heads"] * part["group"],
        part["kv_heads"],
        *part["widths"],
        part["causal"],
        part["window"],
    )


@given(calls, st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_time_is_above_the_roofline(call, backward):
    time, flops, traffic, _ = priced(call, backward=backward)
    assert math.isfinite(time)
    assert time >= flops / DEVICE.matrix_rate
    assert time >= traffic / DEVICE.bandwidth


# A library cuts keys by rules of thumb, so a little more work may suit the units better;
# see `test_one_more_sequence_may_take_less_time`.
UNLUCKY = 0.85


@given(calls, st.booleans(), st.sampled_from([DEVICE, ONE_WAVE]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_twice_the_work_never_takes_less_time(call, backward, device):
    time = priced(call, device, backward)[0] * (1 - 1e-12 if backward and not call[7] else UNLUCKY)
    batch, queries, _, kv_heads, *_ = call
    assert priced(call, device, backward, batch=2 * batch)[0] >= time
    assert priced(call, device, backward, kv_heads=2 * kv_heads)[0] >= time
    if queries >= 256:
        assert priced(call, device, backward, queries=2 * queries)[0] >= time


@given(calls, st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_more_work_never_takes_less_time_where_the_units_are_full(call, backward):
    full = (16, 2048 + call[1], call[2], 8, *call[4:])
    time = priced(full, backward=backward)[0] * (1 - 1e-12)
    assert priced(full, backward=backward, batch=17)[0] >= time
    assert priced(full, backward=backward, kv_heads=9)[0] >= time
    if not call[7]:  # tiles and the window's edge may align better
        assert priced(full, backward=backward, cached=call[2] + 512)[0] >= time
    assert priced(full, backward=backward, causal=False)[0] >= time


def test_one_more_sequence_may_take_less_time():
    # FlashAttention-3: 16 sequences make 7 parts each, 112 blocks on 108 units and so two
    # waves; 17 make 6 parts each, 102 blocks and one wave (A100, SGLang: 681 and 961 GB/s
    # from 16 sequences of 32768 and 32 of 8192 keys)
    small = DEVICE._replace(units=108.0, decode_key_tile=112.0)
    sixteen = forward(small, 16, 1, 32768, 8, 1, 128, 128, True, 0)[0]
    assert forward(small, 17, 1, 32768, 8, 1, 128, 128, True, 0)[0] < sixteen


@given(calls)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_backward_takes_longer_than_forward_in_self_attention(call):
    if call[1] >= DEVICE.query_tile:
        backward = priced(call, backward=True, cached=0)
        assert backward[0] >= priced(call, cached=0)[0]


@given(calls, st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_shared_key_values_never_move_more_bytes(call, backward):
    _, _, _, kv_heads, group, *_ = call
    own = priced(call, backward=backward, kv_heads=kv_heads * group, group=1)
    assert priced(call, backward=backward)[2] <= own[2]


@given(
    calls,
    st.booleans(),
    st.sampled_from(["matrix_rate", "exponential_rate", "vector_rate", "bandwidth"]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_faster_device_is_never_slower(call, backward, rate):
    faster = DEVICE._replace(**{rate: 1.7 * getattr(DEVICE, rate)})
    slow, fast = priced(call, backward=backward), priced(call, faster, backward)
    assert fast[0] <= slow[0] * (1 + 1e-12)
    assert fast[1:3] == slow[1:3]


def test_overlap_lies_between_sum_and_maximum():
    call = (1, 16384, 16384, 32, 8, 128, 128, True, 0)
    times = [forward(DEVICE._replace(overlap=overlap), *call)[0] for overlap in (0.0, 0.5, 1.0)]
    assert times[0] > times[1] > times[2] > times[0] / 2


def test_narrow_heads_are_bound_by_the_softmax():
    assert forward(DEVICE, 4, 8192, 8192, 32, 8, 32, 32, True, 0)[3] == 1
    assert forward(DEVICE, 4, 8192, 8192, 32, 8, 128, 128, True, 0)[3] == 0


def test_decode_streams_the_keys_and_values():
    time, _, traffic, bound = forward(DEVICE, 64, 1, 8192, 32, 8, 128, 128, True, 0)
    assert bound == 2
    assert traffic == pytest.approx(64 * 8192 * 8 * 2 * 128 * 2, rel=0.01)
    assert 0.7 < traffic / time / DEVICE.bandwidth < 0.88


def test_columns_equal_scalars_for_rows_of_all_kinds():
    rng = np.random.default_rng(7)
    rows = 300
    batch, kv_heads = rng.integers(1, 9, rows), rng.integers(1, 9, rows)
    queries = rng.integers(1, 3000, rows)
    keys = queries + rng.integers(0, 3000, rows)
    heads = kv_heads * rng.choice([1, 2, 8], rows)
    width_qk, width_v = rng.choice([64, 128, 192], rows), rng.choice([64, 128], rows)
    causal, backward = rng.random(rows) < 0.5, rng.random(rows) < 0.5
    window = rng.choice([0, 0, 512], rows)
    time, flops, traffic = np.empty(rows), np.empty(rows), np.empty(rows)
    bound = np.empty(rows, dtype=np.uint8)
    shape = (batch, queries, keys, heads, kv_heads, width_qk, width_v, causal, window)
    flags = [rng.random(rows) < 0.3 for _ in range(3)]  # latent, cached, prefill
    attention_columns(DEVICE, *shape, *flags, backward, time, flops, traffic, bound)
    for row in range(rows):
        call = [column[row] for column in shape]
        if backward[row]:
            alone = attention_backward(DEVICE, *call)
        else:
            alone = attention_forward(DEVICE, *call, *(flag[row] for flag in flags))
        assert alone == (time[row], flops[row], traffic[row], bound[row])


@given(calls, st.sampled_from([DEVICE, ONE_WAVE]))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_sequences_of_one_length_are_a_batch(call, device):
    batch, queries, cached, kv_heads, group, widths, causal, window = call
    together = priced(call, device)
    lengths = np.full(batch, queries), np.full(batch, queries + cached)
    heads = (kv_heads * group, kv_heads)
    apart = attention_ragged(device, *lengths, *heads, *widths, causal, window, False, False, False)
    assert apart[:3] == pytest.approx(together[:3], rel=1e-9)
    assert apart[3] == together[3]


def test_sequences_of_mixed_lengths_lie_between_their_extremes():
    heads = (32, 8, 128, 128, True, 0, False, False, False)
    short, long = np.full(8, 512), np.full(8, 8192)
    mixed = np.where(np.arange(8) < 4, 512, 8192)
    times = [attention_ragged(DEVICE, each, each, *heads)[0] for each in (short, mixed, long)]
    assert times[0] < times[1] < times[2]
    flops = [attention_ragged(DEVICE, each, each, *heads)[1] for each in (short, mixed, long)]
    assert flops[1] == pytest.approx((flops[0] + flops[2]) / 2)


@given(calls)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_window_of_all_keys_is_no_window(call):
    everything = 2 * (call[1] + call[2])
    assert priced(call, window=everything) == priced(call, window=0)


@given(calls)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_what_is_in_the_cache_is_read_faster(call):
    batch, queries, cached, kv_heads, group, widths, causal, window = call
    shape = (batch, queries, queries + cached, kv_heads * group, kv_heads, *widths)
    cold = forward(DEVICE, *shape, causal, window)
    warm = forward(DEVICE, *shape, causal, window, cached=True)
    assert warm[0] <= cold[0] * (1 + 1e-12)
    assert warm[1:3] == cold[1:3]


def test_the_cache_keeps_small_data_and_no_large_data():
    share, capacity = DEVICE.cache_share, DEVICE.cache_capacity
    assert cached_share(DEVICE, 0.9 * share * capacity, True) == 1.0
    assert 0.0 < cached_share(DEVICE, 1.1 * share * capacity, True) < 1.0
    assert cached_share(DEVICE, capacity, True) == 0.0
    assert cached_share(DEVICE, 1.0, False) == 0.0


def test_a_cache_of_half_the_bytes_decodes_faster():
    narrow = DEVICE._replace(key_bytes=1.0, matrix_rate=2e15, query_bytes=1.0)
    call = (64, 1, 16384, 32, 8, 128, 128, True, 0)
    ratio = forward(narrow, *call)[0] / forward(DEVICE, *call)[0]
    assert 0.5 <= ratio < 0.6


def test_absorbed_latent_attention_reads_one_row_per_key_and_is_bound_by_products():
    # DeepSeek-V3, 128 heads on one device: 576 elements of 2 B for each key
    few, _, traffic, bound = forward(DEVICE, 64, 1, 8192, 16, 1, 576, 512, True, 0, latent=True)
    assert traffic == pytest.approx(64 * 8192 * 576 * 2, rel=0.05)
    assert bound == 2
    # more heads than a tile holds read the cache again, here from a fast shared cache
    near = DEVICE._replace(cache_bandwidth=8e12)
    many = forward(near, 64, 1, 8192, 128, 1, 576, 512, True, 0, latent=True)
    assert many[3] == 0
    assert many[0] > few


def test_long_caches_are_split_over_idle_units():
    for device in (DEVICE, ONE_WAVE):
        split = forward(device, 1, 1, 131072, 8, 1, 128, 128, True, 0)[0]
        whole = forward(device._replace(split_rule=0.0), 1, 1, 131072, 8, 1, 128, 128, True, 0)[0]
        assert split < whole / 10


def test_packed_heads_save_blocks():
    call = (64, 16, 16, 64, 1, 128, 128, True, 0)
    packed = forward(DEVICE, *call)[0]
    assert forward(DEVICE._replace(packs_groups=0.0), *call)[0] > 2 * packed


def test_a_long_product_slows_down_at_the_power_limit():
    call = (16, 16384, 16384, 64, 8, 128, 128, True, 0)
    free = forward(DEVICE, *call)[0]
    limited = forward(DEVICE._replace(power_limit=400.0), *call)[0]
    watts = DEVICE.energy_per_flop * forward(DEVICE, *call)[1] / free
    assert limited / free == pytest.approx((watts / 400.0) ** DEVICE.power_exponent, rel=0.02)


PORTABLE = DEVICE._replace(
    portable=1.0,
    smallest_query_tile=16.0,
    decode_key_tile=32.0,
    split_rule=0.0,
    most_splits=8.0,
    packs_groups=0.0,
    masked_tile=0.7,
    windowed_tile=2.0,
    unit_bandwidth=0.5,
    conversion_operations=45.0,
    decode_latency=3e-7,
)


@pytest.mark.parametrize(
    ("keys", "blocks", "splits"),
    # SGLang get_num_kv_splits_triton, 132 units: min(8, ceil(132 max(log2(keys / 64), 1) / blocks))
    [(64, 1, 8), (64, 66, 2), (64, 132, 1), (1024, 132, 4), (1024, 100, 6), (10**6, 5000, 1)],
)
def test_portable_kernels_split_keys_as_their_library_does(keys, blocks, splits):
    assert portable_splits(132.0, float(keys), float(blocks), 8.0) == splits


def test_portable_decode_is_paced_by_its_gathers_until_blocks_fill_the_units():
    time = [forward(PORTABLE, b, 1, 131072, 2, 1, 128, 128, True, 0)[0] for b in (1, 2, 16, 64)]
    assert time[1] == pytest.approx(time[0], rel=0.02)
    assert time[2] == pytest.approx(time[0], rel=0.05)
    assert time[3] > 1.5 * time[0]


def test_portable_decode_sees_the_window_only():
    call = (8, 1, 65536, 8, 2, 128, 128, True)
    windowed = forward(PORTABLE, *call, 1024)
    assert windowed[2] == 8 * 1024 * 2 * 256 * 2
    assert windowed[0] < 0.2 * forward(PORTABLE, *call, 0)[0]
    assert windowed[0] == forward(PORTABLE, 8, 1, 1024, 8, 2, 128, 128, True, 0)[0]


def test_a_narrow_cache_costs_portable_kernels_conversions():
    call = (512, 1, 4096, 8, 1, 128, 128, True, 0)
    narrow = PORTABLE._replace(key_bytes=1.0, conversion_operations=0.0)
    free = forward(narrow, *call)[0]
    assert free < 0.6 * forward(PORTABLE, *call)[0]
    costly = forward(narrow._replace(conversion_operations=200.0), *call)[0]
    assert costly > 2 * free


def test_portable_prefill_walks_over_masked_tiles():
    call = (4, 8192, 8192, 8, 8, 128, 128, True)
    whole = forward(PORTABLE, *call, 0, prefill=True)
    windowed = forward(PORTABLE, *call, 512, prefill=True)
    assert 0.6 < windowed[0] / whole[0] < 1.0
    assert windowed[1] < 0.2 * whole[1]  # executed FLOP count what is unmasked


SERIAL = DEVICE._replace(latent_key_time=1e-7, units=108.0)


@pytest.mark.parametrize(
    ("batch", "heads", "waves"),
    # two blocks per sequence and 64 heads, two per unit; one that shares its unit takes 1.42
    [
        (1, 16, 1.0),
        (54, 64, 1.0),
        (55, 64, 1.42),
        (108, 16, 1.42),
        (162, 16, 2.42),
        (54, 128, 1.42),
    ],
)
def test_a_serial_latent_kernel_takes_whole_waves(batch, heads, waves):
    found = forward(SERIAL, batch, 1, 65536, heads, 1, 576, 512, True, 0, latent=True)[0]
    block = SERIAL.decode_latency + 65536 * SERIAL.latent_key_time
    assert found == pytest.approx(SERIAL.launch_latency + waves * block)


def test_narrow_heads_take_taller_tiles():
    tall = DEVICE._replace(narrow_query_tile=192.0)
    for width, rows in ((80, 192), (96, 192), (128, 128)):
        assert forward_tile(tall, 4096, 1, width, width, False)[0] == rows
