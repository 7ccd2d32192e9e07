"""The forward pass of attention: FLOP, what bounds it, caches and power."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from perfmodel.kernels.attention.forward import cached_share
from tests.amount import cases
from tests.kernels.attention.calls import DEVICE, calls, forward


def test_forward_flops_of_gpt3_layer():
    # 2 products x 2 FLOP x 96 heads x 128 wide on 2048 x 2049 / 2 pairs
    flops = forward(DEVICE, 1, 2048, 2048, 96, 96, 128, 128, True, 0)[1]
    assert flops == 4 * 96 * 128 * 2048 * 2049 // 2


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


@given(calls)
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_what_is_in_the_cache_is_read_faster(call):
    batch, queries, cached, kv_heads, group, widths, causal, window = call
    shape = (batch, queries, queries + cached, kv_heads * group, kv_heads, *widths)
    cold = forward(DEVICE, *shape, causal, window)
    warm = forward(DEVICE, *shape, causal, window, copies=1.0)
    assert warm[0] <= cold[0] * (1 + 1e-12)
    assert warm[1:3] == cold[1:3]


def test_the_cache_keeps_small_data_and_no_large_data():
    share, capacity = DEVICE.cache_share, DEVICE.cache_capacity
    replayed = DEVICE._replace(copies=1.0)
    assert cached_share(replayed, 0.9 * share * capacity) == 1.0
    assert 0.0 < cached_share(replayed, 1.1 * share * capacity) < 1.0
    assert cached_share(replayed, capacity) == 0.0
    assert cached_share(DEVICE, 1.0) == 0.0


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


def test_a_long_product_slows_down_at_the_power_limit():
    call = (16, 16384, 16384, 64, 8, 128, 128, True, 0)
    free = forward(DEVICE, *call)[0]
    limited = forward(DEVICE._replace(power_limit=400.0), *call)[0]
    watts = DEVICE.energy_per_flop * forward(DEVICE, *call)[1] / free
    assert limited / free == pytest.approx((watts / 400.0) ** DEVICE.power_exponent, rel=0.02)
