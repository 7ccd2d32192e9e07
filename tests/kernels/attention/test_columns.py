"""What must hold of every attention call: bounds, monotone in work and device, rows alike."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.attention.backward import attention_backward
from perfmodel.kernels.attention.columns import attention_times
from perfmodel.kernels.attention.forward import attention_forward
from tests.amount import cases
from tests.kernels.attention.calls import DEVICE, ONE_WAVE, calls, forward, priced


@given(calls, st.booleans())
@settings(max_examples=cases(300), deadline=None, derandomize=True)
def test_time_is_above_the_roofline(call, backward):
    time, flops, traffic, _ = priced(call, backward=backward)
    assert math.isfinite(time)
    assert time >= flops / DEVICE.matrix_rate
    assert time >= traffic / DEVICE.bandwidth


# A library cuts keys by rules of thumb, so a little more work may suit the units better;
# see `test_one_more_sequence_may_take_less_time`.
UNLUCKY = 0.85


@given(calls, st.booleans(), st.sampled_from([DEVICE, ONE_WAVE]))
@settings(max_examples=cases(300), deadline=None, derandomize=True)
def test_twice_the_work_never_takes_less_time(call, backward, device):
    time = priced(call, device, backward)[0] * (1 - 1e-12 if backward and not call[7] else UNLUCKY)
    batch, queries, _, kv_heads, *_ = call
    assert priced(call, device, backward, batch=2 * batch)[0] >= time
    assert priced(call, device, backward, kv_heads=2 * kv_heads)[0] >= time
    if queries >= 256:
        assert priced(call, device, backward, queries=2 * queries)[0] >= time


@given(calls, st.booleans())
@settings(max_examples=cases(200), deadline=None, derandomize=True)
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


@given(calls, st.booleans())
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_shared_key_values_never_move_more_bytes(call, backward):
    _, _, _, kv_heads, group, *_ = call
    own = priced(call, backward=backward, kv_heads=kv_heads * group, group=1)
    assert priced(call, backward=backward)[2] <= own[2]


@given(
    calls,
    st.booleans(),
    st.sampled_from(["matrix_rate", "exponential_rate", "vector_rate", "bandwidth"]),
)
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_a_faster_device_is_never_slower(call, backward, rate):
    faster = DEVICE._replace(**{rate: 1.7 * getattr(DEVICE, rate)})
    slow, fast = priced(call, backward=backward), priced(call, faster, backward)
    assert fast[0] <= slow[0] * (1 + 1e-12)
    assert fast[1:3] == slow[1:3]


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
    shape = (batch, queries, keys, heads, kv_heads, width_qk, width_v, causal, window)
    flags = [rng.random(rows) < 0.3 for _ in range(2)]  # latent, prefill
    time, flops, traffic, bound = attention_times(DEVICE, *shape, *flags, backward)
    for row in range(rows):
        call = [column[row] for column in shape]
        if backward[row]:
            alone = attention_backward(DEVICE, *call)
        else:
            alone = attention_forward(DEVICE, *call, *(flag[row] for flag in flags))
        assert alone == (time[row], flops[row], traffic[row], bound[row])


@given(calls)
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_a_window_of_all_keys_is_no_window(call):
    everything = 2 * (call[1] + call[2])
    assert priced(call, window=everything) == priced(call, window=0)
