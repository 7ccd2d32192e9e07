"""Fused attention (flash attention) at the level of tiles, forward and backward.

Letters of this file: ``B`` sequences, ``Q`` queries and ``K`` keys per
sequence, ``H`` query heads, ``G`` key-value heads, ``M`` query rows and ``N``
keys of one tile, ``U`` compute units.

A *block* (thread block, workgroup) owns one query tile of one head and walks
over the key tiles that the mask leaves. A tile pair costs matrix time and
softmax time, which overlap as far as the kernel generation allows. Blocks are
list-scheduled on the units. Numbers of tiles and of unmasked pairs are exact,
in closed form, so a sequence of a million tokens costs as much as a short one.

Queries are aligned to the end of the keys, as in FlashAttention: query ``i``
stands at key position ``i + K - Q``. ``window = w`` leaves the keys at distance
below ``w`` (its own position counts), on both sides where not causal.

Dao, FlashAttention-2 (2023): work split over query tiles, backward over key
tiles with an atomic dQ. Shah et al., FlashAttention-3 (2024): softmax under the
matrix products. Graham (1969): bounds of list scheduling.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit
from perfmodel.kernels.attention_tiles import (
    list_schedule_time,
    longest_key_block,
    longest_query_block,
    visited_tiles,
)

COMPUTE_BOUND = 0
SOFTMAX_BOUND = 1
MEMORY_BOUND = 2
LATENCY_BOUND = 3

SMALLEST_QUERY_TILE = 64
"""Rows of the smallest query tile of matrix instructions across a group of
warps (Hopper ``wgmma``: m64; PTX ISA 8.0, section 9.7.14)."""

UNIT_BANDWIDTH_SHARE = 4.0
"""A single unit draws at most this multiple of its even share of the memory
bandwidth (limit of bytes in flight; Little's law with about 64 KiB per unit)."""

SPLIT_BELOW = 0.8
"""Keys are split where fewer blocks than this share of the units are there
(FlashAttention 2.5, ``num_splits_heuristic``)."""

SPLIT_EFFICIENCY = 0.85
"""Share of the units that such a split fills (the same heuristic accepts 0.85
of the best filling)."""

WIDE_HEAD = 128
"""Widest head whose backward tiles fit the scratchpad at full size (tile tables
of FlashAttention-2 and -3)."""

PARTIAL_BYTES = 4.0
"""Element of a partial result, single precision [B]."""

STATISTICS_BYTES = 4.0
"""Log-sum-exp and dO·O of one query row, single precision [B]."""


class AttentionDevice(NamedTuple):
    """What the attention kernels need to know of a device, all floats."""

    matrix_rate: float  # at the precision, whole device [FLOP/s]
    exponential_rate: float  # whole device [1/s]
    vector_rate: float  # single precision on the general cores [FLOP/s]
    units: float  # compute units
    bandwidth: float  # device memory [B/s]
    input_bytes: float  # an element of Q, K, V, dO [B]
    output_bytes: float  # an element of O, dQ, dK, dV [B]
    query_tile: float  # rows M of a forward block
    key_tile: float  # keys N of a forward tile
    backward_query_tile: float  # rows M of a backward tile
    backward_key_tile: float  # keys N owned by a backward block
    matrix_efficiency: float  # sustained share of matrix_rate, forward
    backward_matrix_efficiency: float  # the same, backward
    wide_backward: float  # factor on that where width_qk > 128: tiles outgrow the scratchpad
    softmax_operations: float  # vector FLOP per element of S, forward
    backward_operations: float  # vector FLOP per element of S, backward
    overlap: float  # 0: products and softmax in turn; 1: fully overlapped
    backward_overlap: float
    tail: float  # share of a block idle at the end of the last wave
    memory_efficiency: float  # sustained share of bandwidth
    block_latency: float  # start and end of a block: load Q, first K, store O [s]
    launch_latency: float  # of a kernel inside a stream [s]


@jit
def _tile_time(matrix, softmax, overlap):
    return max(matrix, softmax) + (1.0 - overlap) * min(matrix, softmax)


@jit
def attention_forward(
    device, batch, queries, keys, heads, key_value_heads, width_qk, width_v, causal, window
):
    """Forward pass of one fused attention call.

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
    Executed FLOP count unmasked pairs only: ``2 (width_qk + width_v)`` each.
    Fewer queries than a tile has rows are packed with the heads of their group
    into one tile, and their keys are split over idle units (flash decoding).
    """
    units = device.units
    group = heads // key_value_heads
    query_tile = int(device.query_tile)
    key_tile = int(device.key_tile)
    packed = queries < query_tile
    rows_per_position = group if packed else 1
    block_heads = batch * (key_value_heads if packed else heads)
    rows = query_tile
    while rows > SMALLEST_QUERY_TILE and queries * rows_per_position * 2 <= rows:
        rows //= 2
    positions = max(1, rows // rows_per_position)
    pieces = (rows_per_position + rows - 1) // rows  # a group too wide for one tile

    tiles = pieces * float(visited_tiles(queries, keys, positions, key_tile, causal, window))
    blocks = pieces * float((queries + positions - 1) // positions) * block_heads
    longest = float(longest_query_block(queries, keys, positions, key_tile, causal, window))
    pairs = float(visited_tiles(queries, keys, 1, 1, causal, window))
    flops = 2.0 * pairs * (width_qk + width_v) * heads * batch

    elements = float(rows * key_tile)
    matrix = 2.0 * elements * (width_qk + width_v) * units
    matrix /= device.matrix_rate * device.matrix_efficiency
    softmax = elements * units / device.exponential_rate
    softmax += elements * units * device.softmax_operations / device.vector_rate
    load = key_tile * (width_qk + width_v) * device.input_bytes
    load /= device.bandwidth * device.memory_efficiency * UNIT_BANDWIDTH_SHARE / units
    tile = _tile_time(matrix, softmax, device.overlap)

    seen_keys = keys
    if window > 0:
        seen_keys = min(keys, queries + window - 1)
    tokens = float(batch * queries)
    traffic = tokens * heads * (width_qk * device.input_bytes + width_v * device.output_bytes)
    traffic += tokens * heads * STATISTICS_BYTES
    key_values = float(batch * seen_keys) * key_value_heads * (width_qk + width_v)
    traffic += key_values * device.input_bytes
    rate = device.bandwidth * device.memory_efficiency

    work = tiles * block_heads * tile + blocks * device.block_latency
    longest_time = longest * max(tile, load) + device.block_latency
    compute = list_schedule_time(blocks, work, longest_time, units, device.tail)
    memory = traffic / rate
    latency = device.launch_latency
    time = latency + max(compute, memory)
    if packed and blocks < SPLIT_BELOW * units:
        filled = SPLIT_EFFICIENCY * units
        splits = filled / blocks
        part = max(1.0, longest / splits) * max(tile, load)
        split_work = work / filled + device.block_latency
        split_compute = max(split_work, part + device.block_latency)
        combine = 2.0 * splits * tokens * heads * width_v * PARTIAL_BYTES
        split_memory = (traffic + combine) / rate
        split_time = 2.0 * latency + max(split_compute, split_memory)
        if split_time < time:
            time, compute, memory = split_time, split_compute, split_memory
            latency *= 2.0

    if memory >= compute:
        bound = MEMORY_BOUND
    elif softmax > matrix:
        bound = SOFTMAX_BOUND
    else:
        bound = COMPUTE_BOUND
    if latency + device.block_latency > 0.5 * time:
        bound = LATENCY_BOUND
    return time, flops, traffic, bound


@jit
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
    block per key tile, with the products S, dP, dV, dQ and dK, and dQ summed in
    single precision; the conversion of dQ (FlashAttention-2, algorithm 2).
    """
    units = device.units
    query_tile = int(device.backward_query_tile)
    key_tile = int(device.backward_key_tile)
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
    matrix = 2.0 * elements * products * units
    efficiency = device.backward_matrix_efficiency
    if width_qk > WIDE_HEAD:
        efficiency *= device.wide_backward
    matrix /= device.matrix_rate * efficiency
    softmax = elements * units / device.exponential_rate
    softmax += elements * units * device.backward_operations / device.vector_rate
    tile = _tile_time(matrix, softmax, device.backward_overlap)
    work = tiles * block_heads * tile + blocks * device.block_latency
    longest_time = longest * tile + device.block_latency
    compute = list_schedule_time(blocks, work, longest_time, units, device.tail)

    rate = device.bandwidth * device.memory_efficiency
    tokens = float(batch * queries)
    key_tokens = float(batch * keys)
    output = tokens * heads * width_v * (device.input_bytes + device.output_bytes)
    partial = tokens * heads * width_qk * PARTIAL_BYTES
    statistics = tokens * heads * STATISTICS_BYTES
    before = output + statistics + partial
    after = partial + tokens * heads * width_qk * device.output_bytes
    key_values = key_tokens * key_value_heads * (width_qk + width_v)
    main = tokens * heads * (width_qk + width_v) * device.input_bytes + 2.0 * statistics
    main += 2.0 * partial + key_values * (device.input_bytes + device.output_bytes)
    traffic = before + main + after

    latency = 3.0 * device.launch_latency
    time = latency + (before + after) / rate + max(compute, main / rate)
    if compute < main / rate or compute < (before + after) / rate:
        bound = MEMORY_BOUND
    elif softmax > matrix:
        bound = SOFTMAX_BOUND
    else:
        bound = COMPUTE_BOUND
    if latency + device.block_latency > 0.5 * time:
        bound = LATENCY_BOUND
    return time, flops, traffic, bound


@jit
def attention_columns(
    device,
    batch,
    queries,
    keys,
    heads,
    key_value_heads,
    width_qk,
    width_v,
    causal,
    window,
    backward,
    time,
    flops,
    traffic,
    bound,
):
    """Fill the last four columns row by row; see `attention_forward` for the others.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    batch, queries, keys, heads, key_value_heads, width_qk, width_v, window : int64[rows]
        Shapes.
    causal, backward : bool[rows]
        Mask; whether the row is the whole backward pass.
    time, flops, traffic : float64[rows]
        Results [s], [FLOP], [B].
    bound : uint8[rows]
        Result, one of the bounds of this file.
    """
    for row in range(batch.size):
        if backward[row]:
            result = attention_backward(
                device,
                batch[row],
                queries[row],
                keys[row],
                heads[row],
                key_value_heads[row],
                width_qk[row],
                width_v[row],
                causal[row],
                window[row],
            )
        else:
            result = attention_forward(
                device,
                batch[row],
                queries[row],
                keys[row],
                heads[row],
                key_value_heads[row],
                width_qk[row],
                width_v[row],
                causal[row],
                window[row],
            )
        time[row] = result[0]
        flops[row] = result[1]
        traffic[row] = result[2]
        bound[row] = result[3]
