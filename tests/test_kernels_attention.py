"""Tile counts, schedules and properties of the attention kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.attention import (
    AttentionDevice,
    attention_backward,
    attention_columns,
    attention_forward,
)
from perfmodel.kernels.attention_tiles import (
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
    input_bytes=2.0,
    output_bytes=2.0,
    query_tile=128.0,
    key_tile=128.0,
    backward_query_tile=64.0,
    backward_key_tile=128.0,
    matrix_efficiency=0.8,
    backward_matrix_efficiency=0.7,
    wide_backward=0.65,
    softmax_operations=6.0,
    backward_operations=10.0,
    overlap=0.7,
    backward_overlap=0.4,
    tail=0.3,
    memory_efficiency=0.85,
    block_latency=2e-6,
    launch_latency=3e-6,
)

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
    flops = attention_forward(DEVICE, 1, 2048, 2048, 96, 96, 128, 128, True, 0)[1]
    assert flops == 4 * 96 * 128 * 2048 * 2049 // 2


def test_backward_executes_five_products_for_two():
    call = (2, 4096, 4096, 32, 8, 128, 128, True, 0)
    forward, backward = attention_forward(DEVICE, *call), attention_backward(DEVICE, *call)
    assert backward[1] == pytest.approx(2.5 * forward[1], rel=1e-12)


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
    kernel = attention_backward if backward else attention_forward
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


@given(calls, st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_more_work_never_takes_less_time(call, backward):
    time = priced(call, backward=backward)[0] * (1 - 1e-12)
    batch, queries, cached, kv_heads, _, _, _, window = call
    assert priced(call, backward=backward, batch=batch + 1)[0] >= time
    assert priced(call, backward=backward, kv_heads=kv_heads + 1)[0] >= time
    if not (backward and window):  # tiles and the window's edge may align better
        assert priced(call, backward=backward, cached=cached + 512)[0] >= time
    assert priced(call, backward=backward, widths=(256, 256))[0] >= time
    assert priced(call, backward=backward, causal=False)[0] >= time
    assert priced(call, backward=backward, window=0)[0] >= time
    if window:
        assert priced(call, backward=backward, window=2 * window)[0] >= time
    if queries >= 256:
        assert priced(call, backward=backward, queries=2 * queries)[0] >= time


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
    times = [
        attention_forward(DEVICE._replace(overlap=overlap), *call)[0] for overlap in (0.0, 0.5, 1.0)
    ]
    assert times[0] > times[1] > times[2] > times[0] / 2


def test_narrow_heads_are_bound_by_the_softmax():
    assert attention_forward(DEVICE, 4, 8192, 8192, 32, 8, 32, 32, True, 0)[3] == 1
    assert attention_forward(DEVICE, 4, 8192, 8192, 32, 8, 128, 128, True, 0)[3] == 0


def test_decode_streams_the_keys_and_values():
    time, _, traffic, bound = attention_forward(DEVICE, 64, 1, 8192, 32, 8, 128, 128, True, 0)
    assert bound == 2
    assert traffic == pytest.approx(64 * 8192 * 8 * 2 * 128 * 2, rel=0.01)
    assert 0.7 < traffic / time / DEVICE.bandwidth < 0.86


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
    attention_columns(DEVICE, *shape, backward, time, flops, traffic, bound)
    for row in range(rows):
        kernel = attention_backward if backward[row] else attention_forward
        alone = kernel(DEVICE, *(column[row] for column in shape))
        assert alone == (time[row], flops[row], traffic[row], bound[row])
