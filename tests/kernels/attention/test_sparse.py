"""Sparse attention on a round device: products, gathers and scattered gradients."""

from __future__ import annotations

import pytest

from perfmodel.kernels.attention.forward import attention_forward
from perfmodel.kernels.attention.sparse import (
    rows_from_memory,
    scattered_rows,
    sparse_attention_backward,
    sparse_attention_forward,
)
from tests.kernels.attention.calls import DEVICE

NAMES = ("batch", "queries", "heads", "groups", "qk", "v")
NAMES += ("places", "pairs", "gathered", "distinct", "shared")
# 4,096 queries of 128 heads over 2,048 keys of 32,768 each: DeepSeek-V3.2
LONG = (1, 4096, 128, 1, 576, 512, 2048, 4096.0 * 2048, 4096.0 * 2048, 32768.0, True)


def changed(call, **parts):
    return tuple((dict(zip(NAMES, call, strict=True)) | parts).values())


def test_products_by_hand():
    # 2 a (2 r_kv + d_rope) per key forward, r_kv 512 and d_rope 64; S, dP, dV, dQ, dK backward
    keys = 4096 * 2048
    assert sparse_attention_forward(DEVICE, *LONG, False)[1] == 2 * 128 * (2 * 512 + 64) * keys
    backward = sparse_attention_backward(DEVICE, *LONG, True)[1]
    assert backward == 2 * 128 * (3 * 576 + 2 * 512) * keys


def test_no_faster_than_products_and_memory_allow():
    for time, flops, traffic, _ in (
        sparse_attention_forward(DEVICE, *LONG, False),
        sparse_attention_backward(DEVICE, *LONG, True),
        sparse_attention_backward(DEVICE, *LONG, False),
    ):
        assert time > flops / DEVICE.matrix_rate
        assert time > traffic / DEVICE.bandwidth


def test_forward_moves_queries_outputs_and_every_key_once():
    traffic = sparse_attention_forward(DEVICE, *LONG, False)[2]
    # q, o and the log-sum-exp of 128 heads; 32,768 keys of 576 fit the cache
    assert traffic == 4096 * 128 * (2 * (576 + 512) + 4) + 32768 * 576 * 2


def test_gathers_miss_what_the_cache_cannot_hold():
    assert rows_from_memory(DEVICE, 1e6, 1000.0, 1000.0) == 1000.0
    rows = 200e6 / 1000.0  # four times the cache of 50 MB
    assert rows_from_memory(DEVICE, 1e6, rows, 1000.0) == rows + (1e6 - rows) * 0.75


def test_heads_beyond_a_tile_gather_the_keys_again():
    one = sparse_attention_forward(DEVICE, *changed(LONG, heads=64), False)
    two = sparse_attention_forward(DEVICE, *LONG, False)
    few = sparse_attention_forward(DEVICE, *changed(LONG, heads=16), False)
    assert two[0] == pytest.approx(2 * one[0], rel=0.05)
    assert few[0] == pytest.approx(one[0], rel=0.1)  # 16 heads fill a tile of 64 rows no better


def test_separate_values_are_gathered_too():
    shared = changed(LONG, qk=128, v=128, heads=64, groups=4, distinct=16384.0)
    apart = changed(shared, shared=False)
    first, second = (sparse_attention_forward(DEVICE, *call, False) for call in (shared, apart))
    assert first[1] == second[1]
    assert second[2] - first[2] == 16384 * 4 * 128 * 2
    assert second[0] > first[0]


ROWS = 4096 * 2048 * 576 * 4.0  # a single-precision row per key of every query [B]


def test_gradient_rows_are_stored_and_summed_where_dies_have_caches_of_their_own():
    time, _, traffic, _ = sparse_attention_backward(DEVICE, *LONG, False)
    assert 2 * ROWS < traffic < 2.3 * ROWS
    assert time > 2 * ROWS / DEVICE.bandwidth
    fewer = sparse_attention_backward(DEVICE, *changed(LONG, heads=16), False)
    assert fewer[2] > 2 * ROWS  # summed over the heads, however many


def test_gradient_rows_are_added_in_a_cache_of_the_whole_device():
    short = changed(LONG, distinct=8192.0)  # 19 MB of sums fit the cache of 50 MB
    time, _, traffic, _ = sparse_attention_backward(DEVICE, *short, True)
    stored = sparse_attention_backward(DEVICE, *short, False)
    assert traffic < 0.1 * stored[2]
    assert time < stored[0]
    # every tile of heads adds a row of its own
    assert time > 2 * ROWS / DEVICE.cache_bandwidth
    busy, main, after = scattered_rows(DEVICE, 1e9, 2.0, 50e6, True)  # 200 MB of sums: a quarter
    assert busy == 8e9 * 0.25 / DEVICE.cache_bandwidth  # reads and writes beyond the cache
    assert (main, after) == (2 * 8e9 * 0.75, 50e6 * (4 + 4 + 2))


def test_decode_of_all_keys_takes_the_time_of_dense_decode():
    # the same cache of 8,192 keys, in tiles of 64 where the dense kernel has 128
    keys = 8192.0
    dense = attention_forward(DEVICE, 64, 1, 8192, 128, 1, 576, 512, True, 0, True, False)
    call = (64, 1, 128, 1, 576, 512, 8192, keys, keys, keys, True)
    sparse = sparse_attention_forward(DEVICE, *call, True)
    assert sparse[1] == dense[1]
    assert sparse[2] == pytest.approx(dense[2], rel=1e-12)
    assert sparse[0] == pytest.approx(dense[0], rel=0.2)


@pytest.mark.parametrize(("backward", "shared"), [(False, True), (True, True), (True, False)])
def test_longer_lists_more_queries_and_heads_take_no_less(backward, shared):
    def time(**parts):
        call = changed(LONG, **parts)
        if backward:
            return sparse_attention_backward(DEVICE, *call, shared)[0]
        return sparse_attention_forward(DEVICE, *call, False)[0]

    def listed(places):
        return time(places=places, pairs=4096.0 * places, gathered=4096.0 * places)

    times = [listed(places) for places in range(64, 4097, 64)]
    assert times == sorted(times)
    times = [
        time(queries=count, pairs=count * 2048.0, gathered=count * 2048.0)
        for count in (512, 1024, 4096, 16384)
    ]
    assert times == sorted(times)
    times = [time(heads=heads) for heads in (16, 64, 128, 192)]
    assert times == sorted(times)
