"""The backward pass of attention: its products and its time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from perfmodel.kernels.attention.columns import (
    attention_backward,
)
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
@settings(max_examples=200, deadline=None, derandomize=True)
def test_backward_takes_longer_than_forward_in_self_attention(call):
    if call[1] >= DEVICE.query_tile:
        backward = priced(call, backward=True, cached=0)
        assert backward[0] >= priced(call, cached=0)[0]
