"""The backward pass of attention: its products and its time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from perfmodel.kernels.attention.backward import (
    addition_time,
    attention_backward,
    backward_tile_time,
)
from perfmodel.kernels.attention.forward import MEMORY_BOUND
from tests.amount import cases
from tests.kernels.attention.calls import DEVICE, calls, forward, priced


def test_backward_executes_five_products_for_two():
    call = (2, 4096, 4096, 32, 8, 128, 128, True, 0)
    whole = attention_backward(DEVICE, *call)
    assert whole[1] == pytest.approx(2.5 * forward(DEVICE, *call)[1], rel=1e-12)


def test_backward_flops_with_unequal_widths():
    # S, dQ, dK are 192 wide, dP and dV 128 (multi-head latent attention)
    flops = attention_backward(DEVICE, 1, 1024, 1024, 16, 16, 192, 128, False, 0)[1]
    assert flops == 2 * (3 * 192 + 2 * 128) * 16 * 1024**2


def test_heads_narrower_than_a_systolic_array_take_as_long_as_those_that_fill_it():
    array = DEVICE._replace(head_step=256.0)
    narrow, wide = (
        attention_backward(array, 1, 4096, 4096, 16, 16, width, width, True, 0)
        for width in (64, 128)
    )
    whole = attention_backward(DEVICE, 1, 4096, 4096, 16, 16, 128, 128, True, 0)
    assert wide[0] == pytest.approx(narrow[0], rel=0.1)  # but for memory traffic
    assert wide[0] > 1.5 * whole[0]
    assert wide[1] == whole[1]


@given(calls)
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_backward_takes_longer_than_forward_in_self_attention(call):
    if call[1] >= DEVICE.query_tile:
        backward = priced(call, backward=True, cached=0)
        assert backward[0] >= priced(call, cached=0)[0]


LONG = (1, 16384, 16384, 33, 33)  # whole waves on 132 units


def test_sums_of_dq_take_four_bytes_per_query_and_key_tile_of_the_cache():
    # 128 key tiles of 128 keys, each of which adds 16,384 rows of 128 for 33 heads
    assert addition_time(DEVICE, 1e9) == 4e9 / DEVICE.cache_bandwidth
    added = 128 * 16384 * 128 * 33
    slow = DEVICE._replace(cache_bandwidth=DEVICE.cache_bandwidth / 100)
    time, _, _, bound = attention_backward(slow, *LONG, 128, 128, False, 0)
    rest = attention_backward(DEVICE._replace(cache_bandwidth=1e30), *LONG, 128, 128, False, 0)[0]
    alone = addition_time(slow, float(added))
    assert bound == MEMORY_BOUND
    assert alone < time < alone + rest
    assert time == pytest.approx(alone + (1 - DEVICE.backward_overlap) * rest, rel=0.1)


def test_the_longest_of_a_tile_hides_a_share_of_the_others():
    in_turn = DEVICE._replace(backward_overlap=0.0)
    beside = DEVICE._replace(backward_overlap=1.0)
    assert backward_tile_time(in_turn, 3.0, 2.0, 1.0) == 6.0
    assert backward_tile_time(beside, 2.0, 1.0, 3.0) == 3.0
    assert backward_tile_time(DEVICE, 1.0, 3.0, 2.0) == pytest.approx(3.0 + 0.6 * 3.0)


def test_wide_heads_add_as_often_as_their_tiles_are_narrow():
    def seconds(wide_tile, width, cache_bandwidth=DEVICE.cache_bandwidth):
        device = DEVICE._replace(
            backward_wide_key_tile=wide_tile, cache_bandwidth=cache_bandwidth, block_latency=0.0
        )
        return attention_backward(device, *LONG, width, width, False, 0)[0]

    assert seconds(64.0, 128) == seconds(128.0, 128)
    assert seconds(64.0, 256) > 1.1 * seconds(128.0, 256)
    assert seconds(64.0, 256, 1e30) == pytest.approx(seconds(128.0, 256, 1e30), rel=1e-6)
