"""Kernels of recurrent mixers: tiles, waves, chains, and the seconds of a state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.compute import recurrence_counts as counts
from perfmodel.compute.recurrence import recurrence_device
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.recurrence import blocks, chains, delta, state_space

H100 = recurrence_device(load_hardware("dgx-h100"))
B200 = recurrence_device(load_hardware("dgx-b200"))
TPU = recurrence_device(load_hardware("tpu-v5p-pod"))
IDEAL = recurrence_device(load_hardware("astra-system-1"))


def total(cost):
    return cost.compute + cost.vector + cost.memory + cost.latency


def block(**changed):
    plain = {
        "number": 132.0, "steps": 1.0, "product": 0.0, "operations": 0.0, "moved": 0.0,
        "exchanges": 0.0, "waits": 0.0, "residents": 2.0, "bandwidth": H100.stream.bandwidth,
    }  # fmt: skip
    return blocks.Block(**plain | changed)


# ---------------------------------------------------------------- blocks


def test_small_tiles_are_bound_by_the_shared_memory():
    # 64 x 64 x 64 in bf16: 524,288 FLOP; both operands twice, 32,768 B at 128 B per clock
    assert blocks.product_time(H100, 64, 64, 64) == pytest.approx(32768 / 128 / 1.83e9)
    # a B200 multiplies twice as fast, and waits for the same bytes
    per_clock = blocks.product_time(B200, 64, 64, 64) * 1.856e9
    assert per_clock == pytest.approx(blocks.product_time(H100, 64, 64, 64) * 1.83e9)


def test_large_tiles_reach_the_matrix_rate():
    flops = 2 * 512.0**3
    assert blocks.product_time(H100, 512, 512, 512) == pytest.approx(flops / H100.unit_rate)


def test_tiles_are_padded_to_what_the_matrix_unit_takes():
    assert blocks.product_time(H100, 1, 17, 3) == blocks.product_time(H100, 16, 32, 16)
    assert blocks.product_time(TPU, 64, 1, 1) == blocks.product_time(TPU, 64, 128, 128)


def test_waves_of_equal_blocks():
    # 132 units hold two blocks each; two of them share the matrix unit
    one = blocks.kernel_cost(H100, block(product=1e-3), 0.0)
    two = blocks.kernel_cost(H100, block(product=1e-3, number=264.0), 0.0)
    three = blocks.kernel_cost(H100, block(product=1e-3, number=265.0), 0.0)
    assert total(two) == pytest.approx(2 * total(one), rel=1e-2)
    assert total(three) == pytest.approx(3 * total(one), rel=1e-2)


def test_a_launch_is_latency_and_the_rest_what_bounds_it():
    cost = blocks.kernel_cost(H100, block(operations=1e9), 0.0)
    assert cost.latency == H100.stream.launch_latency
    assert cost.vector >= 1e9 / H100.unit_vector_rate
    cost = blocks.kernel_cost(H100, block(), 1e9)
    assert cost.memory == pytest.approx(1e9 / H100.stream.bandwidth)
    assert cost.traffic == 1e9


def test_steps_that_wait_for_loads_take_a_round_trip_each():
    steps = 1000.0
    cost = blocks.kernel_cost(H100, block(number=1.0, steps=steps, waits=1.0), 0.0)
    assert cost.latency == pytest.approx(steps * H100.stream.round_trip_latency, rel=1e-2)


def test_elementwise_kernels_last_at_least_a_load():
    cost = blocks.stream_cost(H100, 1.0, 0.0, 2.0)
    least = H100.stream.launch_latency + H100.stream.round_trip_latency
    assert total(cost) == pytest.approx(2 * least)


# ---------------------------------------------------------------- chains


SHAPES = {
    "gated_delta": (32.0, 16.0, 128.0, 128.0, 64.0),
    "kimi_delta": (32.0, 32.0, 128.0, 128.0, 64.0),
    "mamba2": (64.0, 8.0, 128.0, 64.0, 128.0),
    "mamba1": (4096.0, 1.0, 16.0, 1.0, 64.0),
    "lightning": (64.0, 64.0, 128.0, 128.0, 256.0),
}
CODES = {kind: code for code, kind in enumerate(counts.RECURRENCES)}
PHASES = {phase: code for code, phase in enumerate(counts.RECURRENCE_PHASES)}


def cost_of(device, kind, phase, batch=2.0, length=4096.0, shape=None):
    return chains.recurrence_cost(
        device, CODES[kind], PHASES[phase], batch, length, *(shape or SHAPES[kind])
    )


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("phase", counts.RECURRENCE_PHASES)
def test_every_input_and_output_is_moved_at_least_once(kind, phase):
    heads, groups, key, value, _ = SHAPES[kind]
    batch, length = 2.0, 4096.0
    state = 2 * batch * heads * key * value * 4.0
    tokens = batch * (1.0 if phase == "decode" else length)
    outside = tokens * (2 * groups * key + 2 * heads * value) * 2.0
    outside *= 2.0 if phase == "backward" else 1.0
    least = outside + (state if phase in ("prefill", "decode") else 0.0)
    assert cost_of(H100, kind, phase).traffic >= least


@pytest.mark.parametrize("kind", SHAPES)
def test_prefill_moves_the_state_beside_what_forward_moves(kind):
    heads, _, key, value, _ = SHAPES[kind]
    forward, prefill = (cost_of(H100, kind, phase).traffic for phase in ("forward", "prefill"))
    assert prefill - forward == pytest.approx(2 * 2.0 * heads * key * value * 4.0)


@pytest.mark.parametrize("kind", SHAPES)
def test_traffic_is_that_of_tokens_and_of_chunks(kind):
    # conservation: twice the sequences or twice the chunks are twice the bytes, where the cache
    # holds what heads share
    once, twice = (cost_of(H100, kind, "forward", b, 512.0).traffic for b in (2.0, 4.0))
    assert twice == pytest.approx(2 * once, rel=1e-3)
    longer = cost_of(H100, kind, "forward", length=1024.0).traffic
    assert longer == pytest.approx(2 * once, rel=2e-2 if kind == "mamba1" else 1e-3)


def test_forward_traffic_of_the_delta_rule_by_hand():
    # per token and head of 128, bf16: norms 4 x 256, sums 8, inverse 256 + 128 + 8, W and U
    # 256 + 256 + 128 in and 512 out, states 768 in, 256 out and 128 * 128 / 64 * 2 out, outputs
    # 768 + 512 + 4 in and 256 out; reciprocal norms 8
    by_hand = 1024 + 8 + 8 + 392 + 1152 + 1024 + 512 + 1540
    found = cost_of(H100, "gated_delta", "forward", shape=(32.0, 32.0, 128.0, 128.0, 64.0))
    assert found.traffic / (2 * 4096 * 32) == pytest.approx(by_hand)


@pytest.mark.parametrize("kind", ["gated_delta", "kimi_delta", "mamba2", "lightning"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_one_head_of_one_sequence_takes_as_long_as_its_chunks(kind, phase):
    _, _, key, value, chunk = SHAPES[kind]
    lone = (1.0, 1.0, key, value, chunk)
    length = 2.0**18
    once, twice = (
        cost_of(H100, kind, phase, 1.0, size, lone).latency for size in (length, 2 * length)
    )
    assert twice == pytest.approx(2 * once, rel=0.02)
    # and larger chunks are fewer steps
    fewer = cost_of(H100, kind, phase, 1.0, length, (*lone[:-1], 4 * chunk)).latency
    assert fewer < once


def test_more_heads_are_free_until_the_units_are_full():
    def sequential(count):
        return total(blocks.kernel_cost(H100, block(number=count, steps=1e3, exchanges=2.0), 0.0))

    assert sequential(264.0) == sequential(1.0)
    assert sequential(265.0) == pytest.approx(2 * sequential(1.0), rel=1e-2)


def test_the_state_of_mamba2_waits_for_a_load_per_chunk():
    chunks = 2048.0
    cost = state_space.passing_cost(H100, 1.0, chunks, 1.0, 128.0, 64.0, 6.0)
    assert cost.latency >= chunks * H100.stream.round_trip_latency


def test_a_decay_per_channel_costs_more_than_one_per_head():
    shape = SHAPES["kimi_delta"]
    for phase in ("forward", "backward"):
        kimi, gated = (cost_of(H100, kind, phase, shape=shape) for kind in list(SHAPES)[1::-1])
        assert total(kimi) > 1.2 * total(gated)
        assert kimi.traffic > gated.traffic


def test_what_a_group_shares_is_read_again_once_the_cache_has_lost_it():
    # C B^T of 131,072 tokens in chunks of 256 are 84 MB in single precision; an H100 has 50 MiB
    def outputs(length, heads):
        tokens, chunks = length, length / 256.0
        cost = state_space.chunk_outputs_cost(H100, chunks, tokens, heads, 1.0, 128.0, 64.0, 256.0)
        return cost.traffic

    own = 131072.0 * (2 * (64 * 2 + 4) + 128 * 64 * 2 / 256)
    shared = 131072.0 * (128 * 2 + 160 * 4)
    assert outputs(131072.0, 128.0) == pytest.approx(128 * (own + shared))
    assert outputs(1024.0, 128.0) == pytest.approx((128 * own + shared) / 128, rel=1e-3)


def test_a_chunk_of_mamba2_skips_tiles_above_its_diagonal():
    assert state_space.causal_share(64.0) == 1.0
    assert state_space.causal_share(128.0) == 0.75
    assert state_space.causal_share(256.0) == 0.625


def test_lightning_attention_carries_blocks_of_its_state():
    # a head of 128 x 128 has four blocks of 64 x 64, whose product is one, and one exchange
    def carried(heads):
        return delta.carried_cost(
            H100, 1.0, 4096.0, 4096.0 * 16, heads, heads, 128.0, 128.0, 16.0, 2.0, False
        )

    assert carried(33.0).traffic == pytest.approx(33 * carried(1.0).traffic)
    step = carried(1.0).latency / 4096
    assert step > blocks.product_time(H100, 64, 64, 16) + H100.exchange_latency
    assert (
        step
        < 2
        * delta.states_cost(
            H100, 1.0, 4096.0, 4096.0 * 16, 1.0, 1.0, 128.0, 128.0, 16.0, 0.0, False
        ).latency
    )


def test_lightning_attention_keeps_states_of_backward_in_single_precision():
    forward, backward = (cost_of(H100, "lightning", phase) for phase in ("forward", "backward"))
    heads, _, key, value, chunk = SHAPES["lightning"]
    states = 2 * 4096 / chunk * heads * key * value
    tokens = 2 * 4096 * heads * key * 2  # one of q, k, v, o, their gradients
    assert forward.traffic == 6 * tokens + 2 * 2 * states
    assert backward.traffic == (4 + 6 + 4) * tokens + 5 * 4 * states


def test_on_an_ideal_device_a_state_update_is_its_traffic():
    cost = cost_of(IDEAL, "gated_delta", "decode", batch=64.0)
    assert total(cost) == pytest.approx(cost.traffic / IDEAL.portable_bandwidth, rel=1e-3)


def test_rows_of_all_kinds_are_what_they_are_alone():
    rows = [(kind, phase) for kind in SHAPES for phase in counts.RECURRENCE_PHASES]
    columns = np.array([(2.0, 1000.0, *SHAPES[kind]) for kind, _ in rows]).T.copy()
    kinds = np.array([CODES[kind] for kind, _ in rows])
    phases = np.array([PHASES[phase] for _, phase in rows])
    time, traffic, bound = chains.recurrence_times(H100, kinds, phases, *columns)
    for number, (kind, phase) in enumerate(rows):
        cost = cost_of(H100, kind, phase, 2.0, 1000.0)
        assert time[number] == pytest.approx(total(cost), rel=1e-12)
        assert traffic[number] == pytest.approx(cost.traffic, rel=1e-12)
        shares = (cost.compute, cost.vector, cost.memory, cost.latency)
        assert shares[bound[number]] == pytest.approx(max(shares))
    assert math.isfinite(time.sum())
