"""Backward pass of fused attention; letters and sources in `columns`."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit, jit_memoised
from perfmodel.kernels.attention.forward import (
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
    PARTIAL_BYTES,
    SOFTMAX_BOUND,
    STATISTICS_BYTES,
    softmax_time,
)
from perfmodel.kernels.attention.tiles import list_schedule_time, longest_key_block, visited_tiles

WIDE_HEAD = 128
"""Widest head whose backward tiles have all their keys: the sums of dK and dV of wider ones outgrow
registers, tensor memory (512 columns on Blackwell) or scratchpad (tile tables of FlashAttention-2
and -3)."""


@jit
def backward_tile_time(device, matrix, softmax, additions):
    """Time of a backward tile: products, softmax and sums in the cache, beside each other.

    Parameters
    ----------
    device : AttentionDevice
        Has `backward_overlap`: the share of the shorter ones that the longest hides.
    matrix, softmax, additions : float
        Time of each alone [s].

    Returns
    -------
    float
        [s].
    """
    longest = max(matrix, softmax, additions)
    rest = matrix + softmax + additions - longest
    return longest + (1.0 - device.backward_overlap) * rest


@jit
def addition_time(device, elements):
    """Time in which the last shared cache adds `elements` to sums in single precision [s].

    Notes
    -----
    Units send 4 B per element and wait for nothing, at the bandwidth that the cache sustains.
    flash-attention pull request 2889 has the kernel without them: H200, heads of 256, tiles of 80
    keys, 747 TFLOP/s in place of 471.
    """
    return elements * PARTIAL_BYTES / device.cache_bandwidth


@jit_memoised
def attention_backward(
    device, batch, queries, keys, heads, key_value_heads, width_qk, width_v, causal, window
):
    """Backward pass of one fused attention call: dQ, dK and dV from dO.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    batch, queries, keys, heads, key_value_heads : int
        B, Q, K, H and G; H a multiple of G.
    width_qk, width_v : int
        Elements of a query or key and of a value, per head.
    causal : bool
        Whether later keys are masked.
    window : int
        Sliding window; 0 for none.

    Returns
    -------
    tuple of (float, float, float, int)
        Time [s], executed FLOP, memory traffic [B], bound.

    Notes
    -----
    Three kernels: ``D = rowsum(dO O)`` with dQ cleared; the main kernel, one
    block per key tile, with the products S, dP, dV, dQ and dK; the conversion of
    dQ (FlashAttention-2, algorithm 2). Every block adds its share of dQ to sums in
    single precision that lie in the last cache: ``4 width_qk`` bytes per query and
    key tile, so that tiles of half the keys add twice as much.
    """
    units = device.units
    query_tile = int(device.backward_query_tile)
    key_tile = int(device.backward_key_tile)
    if width_qk > WIDE_HEAD:
        key_tile = int(device.backward_wide_key_tile)
    block_heads = batch * heads
    tiles = float(visited_tiles(queries, keys, query_tile, key_tile, causal, window))
    seen_keys = keys
    if window > 0:
        seen_keys = min(keys, queries + window - 1)
    blocks = float((seen_keys + key_tile - 1) // key_tile) * block_heads
    longest = float(longest_key_block(queries, keys, query_tile, key_tile, causal, window))
    pairs = float(visited_tiles(queries, keys, 1, 1, causal, window))
    products = 3.0 * width_qk + 2.0 * width_v
    flops = 2.0 * pairs * products * heads * batch

    elements = float(query_tile * key_tile)
    padded_qk = math.ceil(width_qk / device.head_step) * device.head_step
    padded_v = math.ceil(width_v / device.head_step) * device.head_step
    matrix = 2.0 * elements * (3.0 * padded_qk + 2.0 * padded_v) * units
    matrix /= device.matrix_rate * device.backward_matrix_efficiency
    softmax = softmax_time(device, elements, device.backward_operations)
    additions = addition_time(device, float(query_tile) * padded_qk) * units
    tile = backward_tile_time(device, matrix, softmax, additions)
    work = tiles * block_heads * tile + blocks * device.block_latency
    longest_time = longest * tile + device.block_latency
    compute = list_schedule_time(blocks, work, longest_time, units, device.tail)

    rate = device.bandwidth * device.memory_efficiency
    tokens = float(batch * queries)
    key_tokens = float(batch * keys)
    output = tokens * heads * width_v * (device.query_bytes + device.output_bytes)
    partial = tokens * heads * width_qk * PARTIAL_BYTES
    statistics = tokens * heads * STATISTICS_BYTES
    before = output + statistics + partial
    after = partial + tokens * heads * width_qk * device.output_bytes
    key_values = key_tokens * key_value_heads * (width_qk + width_v)
    main = tokens * heads * (width_qk + width_v) * device.query_bytes + 2.0 * statistics
    main += 2.0 * partial + key_values * (device.query_bytes + device.output_bytes)
    traffic = before + main + after

    latency = 3.0 * device.launch_latency
    time = latency + (before + after) / rate + max(compute, main / rate)
    stalled = additions > max(matrix, softmax)
    if compute < max(main, before + after) / rate or stalled:
        bound = MEMORY_BOUND
    elif softmax > matrix:
        bound = SOFTMAX_BOUND
    else:
        bound = COMPUTE_BOUND
    if latency + device.block_latency > 0.5 * time:
        bound = LATENCY_BOUND
    return time, flops, traffic, bound
