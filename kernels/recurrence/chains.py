"""Recurrent mixers row by row: which chain a kind and a phase run, and one token of decode.

Kinds and phases are positions in `counts.RECURRENCES` and `counts.RECURRENCE_PHASES`.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.recurrence.blocks import (
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
    VECTOR_BOUND,
    Block,
    kernel_cost,
)
from perfmodel.kernels.recurrence.delta import (
    WIDE_BYTES,
    delta_backward,
    delta_forward,
    lightning_backward,
    lightning_forward,
)
from perfmodel.kernels.recurrence.state_space import selective_scan, ssd_backward, ssd_forward

GATED_DELTA, KIMI_DELTA, MAMBA2, MAMBA1, LIGHTNING = range(5)
FORWARD, BACKWARD, PREFILL, DECODE = range(4)

DECODE_BLOCK = 4096.0
"""Elements of a state that a block of a decode kernel holds in its registers: 32 columns of 128
(``fused_recurrent_gated_delta_rule_update`` of vLLM and SGLang; ``selective_state_update`` of
state-spaces/mamba holds 4 to 32 rows)."""

DELTA_OPERATIONS = 7.0
LINEAR_OPERATIONS = 5.0
"""Operations per element of a state and token: see `counts.recurrence_flops`."""


@jit
def decode_cost(device, kind, batch, heads, key_heads, K, V):
    """One token of every sequence: the state is read, updated and written, in single precision.

    One kernel (``fused_recurrent_…`` with the norms inside, ``selective_state_update``), parallel
    over sequences, heads and parts of a state. The delta rule reduces over keys twice, the others
    once.
    """
    state = heads * K * V
    delta = kind in (GATED_DELTA, KIMI_DELTA)
    own = 2.0 * K + 2.0 * V + 2.0 + (K if kind == KIMI_DELTA else 0.0)
    if kind == MAMBA1:  # blocks hold the states of many channels
        held = min(batch * state, DECODE_BLOCK)
        count = math.ceil(batch * state / DECODE_BLOCK)
    else:
        held = min(K * V, DECODE_BLOCK)
        count = batch * heads * math.ceil(K * V / DECODE_BLOCK)
    inner = 2.0 * key_heads * K + heads * (own - 2.0 * K)
    traffic = batch * (2.0 * state * WIDE_BYTES + inner * device.element_bytes)
    operations = held * (DELTA_OPERATIONS if delta else LINEAR_OPERATIONS)
    if kind == MAMBA1:
        operations += held * (device.special_operations + 2.0)
    moved = 2.0 * held * WIDE_BYTES + own * device.element_bytes
    exchanges = 2.0 if delta else 1.0
    block = Block(
        count, 1.0, 0.0, operations, moved, exchanges, 0.0,
        device.stream_residents, device.portable_bandwidth,
    )  # fmt: skip
    return kernel_cost(device, block, traffic)


@jit
def recurrence_cost(device, kind, phase, batch, length, heads, key_heads, K, V, C):
    """Cost of one call; arguments as those of `recurrence_times`, one row of them.

    Returns
    -------
    Cost
    """
    carried = phase == PREFILL
    if phase == DECODE:
        return decode_cost(device, kind, batch, heads, key_heads, K, V)
    if kind == MAMBA1:
        return selective_scan(device, batch, length, heads, K * V, phase == BACKWARD, carried)
    if kind == MAMBA2:
        if phase == BACKWARD:
            return ssd_backward(device, batch, length, heads, key_heads, K, V, C)
        return ssd_forward(device, batch, length, heads, key_heads, K, V, C, carried)
    if kind == LIGHTNING:
        if phase == BACKWARD:
            return lightning_backward(device, batch, length, heads, key_heads, K, V, C)
        return lightning_forward(device, batch, length, heads, key_heads, K, V, C, carried)
    channel = 1.0 if kind == KIMI_DELTA else 0.0
    if phase == BACKWARD:
        return delta_backward(device, batch, length, heads, key_heads, K, V, C, channel)
    return delta_forward(device, batch, length, heads, key_heads, K, V, C, channel, carried)


@jit
def recurrence_times(
    device, kind, phase, batch, length, heads, key_heads, key_dim, value_dim, chunk
):
    """Times of many calls, row by row.

    Parameters
    ----------
    device : RecurrenceDevice
    kind, phase : int64[rows]
        Codes of this file.
    batch, length, heads, key_heads, key_dim, value_dim, chunk : float64[rows]
        Sequences; tokens of each; H, G, K, V and C of `counts`.

    Returns
    -------
    time, traffic : float64[rows]
        Of the whole chain of kernels [s]; from and to the device memory [B].
    bound : uint8[rows]
        What most of the time is spent on, one of the bounds of `blocks`.
    """
    time, traffic = np.empty(batch.size), np.empty(batch.size)
    bound = np.empty(batch.size, np.uint8)
    for i in range(batch.size):
        cost = recurrence_cost(
            device, kind[i], phase[i], batch[i], length[i], heads[i], key_heads[i],
            key_dim[i], value_dim[i], chunk[i],
        )  # fmt: skip
        time[i] = cost.compute + cost.vector + cost.memory + cost.latency
        traffic[i] = cost.traffic
        most = max(cost.compute, cost.vector, cost.memory, cost.latency)
        if most == cost.memory:
            bound[i] = MEMORY_BOUND
        elif most == cost.compute:
            bound[i] = COMPUTE_BOUND
        elif most == cost.vector:
            bound[i] = VECTOR_BOUND
        else:
            bound[i] = LATENCY_BOUND
    return time, traffic, bound
