"""Forward pass of fused attention; letters and sources in `perfmodel.kernels.attention.columns`."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit, jit_memoised
from perfmodel.kernels.attention.device import ONE_WAVE_SPLIT, SPREAD_SPLIT
from perfmodel.kernels.attention.portable import (
    PARTIAL_BYTES,
    masked_tiles,
    portable_decode_time,
    serial_latent_time,
)
from perfmodel.kernels.attention.tiles import forward_tile, query_packing, sequence_blocks
from perfmodel.kernels.matmul.candidates import heated_time
from perfmodel.kernels.stream import bytes_between

COMPUTE_BOUND = 0
SOFTMAX_BOUND = 1
MEMORY_BOUND = 2
LATENCY_BOUND = 3

SPLIT_BELOW = 0.8
"""Keys may be split where one sequence has fewer blocks than this share of the units
(FlashAttention, ``num_splits_heuristic``)."""

SPLIT_ABOVE_TILES = 4
"""Fewer key tiles are never split (the same heuristic)."""

SPLIT_MARGIN = 1.1
"""Tiles per unit are rounded up with this margin (``prepare_varlen_num_blocks_kernel``)."""

ONE_RESIDENT_ABOVE = 256
"""Width of Q K and V together above which one decode block fills a unit's scratchpad."""

FULL_RATE_ROWS = 128
"""Rows with which the matrix instruction of such a library runs at full rate (``tcgen05``: with
64 rows at half, as they take half of the data paths: CUTLASS, ``mma_traits_sm100_frag.hpp``, "M=64
uses half subpartitions")."""

READER_ROWS = 16.0
"""Rows of the smallest group whose matrix instructions share operands in registers (``mma.sync``,
PTX ISA 9.7.14: m16n8k16)."""

RESCALE = 2.0
"""Vector FLOP that rescaling an element of O takes: a product has the slot of a multiply-add."""

CACHE_RAMP = 0.3
"""From all to none of a working set in the cache: width of the ramp, share of capacity."""

STATISTICS_BYTES = 4.0
"""Log-sum-exp and dO·O of one query row, single precision [B]."""

PAGE_KEYS = 64.0
"""Keys of one page of a latent cache, which a block reads as a whole (the page size of
SGLang's and TensorRT-LLM's latent caches)."""


@jit
def cached_share(device, size):
    """Share of a call's `size` bytes that earlier calls left in the cache."""
    between = bytes_between(size, device.copies, device.resident)
    if between == math.inf:
        return 0.0
    room = device.cache_share - between / device.cache_capacity
    return min(1.0, max(0.0, 1.0 + room / CACHE_RAMP))


@jit
def softmax_time(device, elements, operations):
    """Time of one unit for the softmax of a tile's elements, `operations` vector FLOP each [s]."""
    time = elements * device.units / device.exponential_rate
    return time + elements * device.units * operations / device.vector_rate


@jit
def register_time(device, rows, keys, width_qk, width_v):
    """Time of one unit for what a tile costs where operands and O stand in registers [s].

    Every group of rows reads all keys and values from the scratchpad, its queries again with
    every tile of keys, and rescales its O as often: small tiles cost most. What is stored
    narrower than the queries is widened after it was read.
    """
    if device.tile_readers == 0.0:
        return 0.0
    readers = min(device.tile_readers, math.ceil(rows / READER_ROWS))
    elements = readers * keys * (width_qk + width_v)
    read = elements * device.key_bytes + rows * width_qk * device.query_bytes
    operations = rows * width_v * RESCALE
    if device.key_bytes < device.query_bytes:
        operations += elements * device.conversion_operations
    time = read * device.units / device.scratchpad_bandwidth
    return time + operations * device.units / device.vector_rate


@jit
def overlapped_time(matrix, softmax, overlap):
    """Time of a tile whose products and softmax overlap: 0 in turn, 1 fully [s]."""
    return max(matrix, softmax) + (1.0 - overlap) * min(matrix, softmax)


@jit
def forward_time(
    device, tile, width_qk, width_v, latent, block_heads, blocks, tiles, longest,
    most_blocks, longest_seen, readers, outputs, flops, keys_read,
):  # fmt: skip
    """Time of one launch from the sums over its sequences.

    Parameters
    ----------
    device : AttentionDevice
        Device at one precision.
    tile : tuple
        Result of `forward_tile`.
    width_qk, width_v : int
        Widths of a head.
    latent : bool
        Values are part of the keys.
    block_heads : float
        Heads, or groups of packed heads, of one sequence.
    blocks, tiles, longest : float
        Of all sequences and heads; tiles of the longest block.
    most_blocks, longest_seen : float
        Blocks of the longest sequence under one head, and the keys that it sees.
    readers : float
        Blocks that read the same keys: all but the first find them in the cache.
    outputs : float
        Query tokens times heads.
    flops, keys_read : float
        Executed FLOP; key tokens times key heads.

    Returns
    -------
    time, traffic : float
        [s], [B].
    bound : int
        One of the bounds of this file.
    """
    units = device.units
    rows, tile_keys, parts, decode = tile
    halved = 2.0 if latent and parts == 2 else 1.0
    share = device.latent_efficiency if latent else 1.0
    key_width = width_qk if latent else width_qk + width_v

    traffic = outputs * (width_qk * device.query_bytes + width_v * device.output_bytes)
    traffic += outputs * STATISTICS_BYTES + keys_read * key_width * device.key_bytes
    hit = cached_share(device, traffic)

    # one tile: products and softmax, keys and values from memory or cache
    padded_qk = math.ceil(width_qk / device.head_step) * device.head_step
    padded_v = math.ceil(width_v / device.head_step) * device.head_step
    elements = float(rows * tile_keys)
    multiplied = elements
    if latent and parts == 2:
        multiplied = max(elements, float(FULL_RATE_ROWS * tile_keys))
    matrix = 2.0 * multiplied * (padded_qk / halved + padded_v / parts) * units
    matrix /= device.matrix_rate * device.matrix_efficiency * share
    softmax = softmax_time(device, elements / halved, device.softmax_operations)
    softmax += register_time(device, rows, tile_keys, width_qk, width_v)
    compute = overlapped_time(matrix, softmax, device.overlap)
    cold = (1.0 - hit) / readers
    read_keys = min(float(tile_keys), longest_seen / longest) if decode else float(tile_keys)
    if latent:
        read_keys = max(read_keys, min(float(tile_keys), PAGE_KEYS))
    tile_bytes = read_keys * key_width * device.key_bytes / halved
    load = cold * tile_bytes * units / (device.bandwidth * device.unit_bandwidth)
    load += (1.0 - cold) * tile_bytes * units / (device.cache_bandwidth * device.cache_port)
    if device.key_bytes < 2.0 and decode and not latent and device.tile_readers == 0.0:
        converted = tile_keys * width_v * device.conversion_operations
        load += converted * units / device.vector_rate
    each = max(compute, load)
    start = device.decode_latency if decode else device.block_latency
    if decode or device.packs_groups > 0.0:
        start *= 1.0 + device.width_latency * ((width_qk + width_v) / 256.0 - 1.0)

    # parts of the keys
    blocks *= parts
    tiles *= parts
    latency = device.launch_latency
    splits = 1.0
    if device.split_rule == SPREAD_SPLIT:
        first = most_blocks * block_heads
        if longest > SPLIT_ABOVE_TILES and first < SPLIT_BELOW * units:
            latency += device.split_latency
            if decode:
                start += device.split_block_latency
            splits = math.ceil(longest / math.ceil(tiles * SPLIT_MARGIN / units))
            splits = min(splits, device.most_splits)
    elif device.split_rule == ONE_WAVE_SPLIT and (decode or device.packs_groups > 0.0):
        most = device.latent_splits if latent else device.most_splits
        if device.smallest_part > 0.0:
            most = min(most, math.ceil(longest * tile_keys / device.smallest_part))
        splits = min(longest, math.floor(units * device.residents / blocks), most)
        splits = max(1.0, splits)
        if splits > 1.0:
            latency += device.split_latency
    uniform = tiles / (blocks * longest)
    part = math.ceil(longest / splits)
    if splits > 1.0:
        blocks *= splits
        tiles = blocks * part * uniform

    # blocks on units
    slots = units
    if not decode:
        slots = units * device.residents
    elif width_qk + width_v <= ONE_RESIDENT_ABOVE:
        slots = units * device.decode_residents
    starts = blocks * start / (slots if decode else units)
    work = tiles * each / units + starts
    alone = part * max(load, compute * device.lone_tile) + start
    time = max(work, alone)
    if blocks > (slots if decode else units):
        # equal blocks end together; unequal ones, longest first, fill each other's gaps
        waves = blocks / slots
        tail = max(device.tail, 2.0 * uniform - 1.0)
        time = max(alone, work + tail * (math.ceil(waves) / waves - 1.0) * work)
    else:
        time = alone
    if device.power_limit > 0.0:
        power = (device.energy_per_flop * flops / (time * device.power_limit)) ** (
            device.power_exponent
        )
        if power > 1.0:
            time = heated_time(time, power - 1.0, device.heat_time)

    # memory
    partial = 0.0
    if splits > 1.0:
        partial = 2.0 * splits * outputs * width_v * PARTIAL_BYTES
    slow = device.latent_memory if latent else 1.0
    rate = device.bandwidth * device.memory_efficiency * slow
    cache_rate = device.cache_bandwidth * slow
    memory = traffic * (1.0 - hit) / rate + (traffic * hit + partial) / cache_rate
    if latent and most_blocks > 1.0:
        memory = max(memory, tiles * tile_bytes / cache_rate)
    busy = max(time, memory)
    # the first wave starts with nothing in flight; later starts hide behind other blocks' loads
    first = min(starts, start)
    exposed = first + device.exposed_latency * (starts - first)
    total = latency + busy + min(exposed, memory)

    if latency + start > 0.5 * total:
        bound = LATENCY_BOUND
    elif memory >= time or load > compute:
        bound = MEMORY_BOUND
    elif softmax > matrix:
        bound = SOFTMAX_BOUND
    else:
        bound = COMPUTE_BOUND
    return total, traffic, bound


@jit_memoised
def attention_forward(
    device, batch, queries, keys, heads, key_value_heads, width_qk, width_v,
    causal, window, latent, prefill,
):  # fmt: skip
    """Forward pass of one fused attention call on equal sequences.

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
    latent : bool
        Whether values are the first elements of the keys (absorbed latent attention).
    prefill : bool
        Whether a single query goes to the kernel for prefill too.

    Returns
    -------
    tuple of (float, float, float, int)
        Time [s], executed FLOP, memory traffic [B], bound.

    Notes
    -----
    Executed FLOP count unmasked pairs only: ``2 (width_qk + width_v)`` each.
    """
    group = heads // key_value_heads
    packed = query_packing(device, queries, prefill, group, window)
    if device.portable > 0.0 and packed > 0:
        seen = min(keys, window) if window > 0 else keys
        stored = width_qk if latent else width_qk + width_v
        flops = 2.0 * batch * heads * seen * (width_qk + width_v)
        traffic = float(batch) * seen * key_value_heads * stored * device.key_bytes
        time, traffic, memory = portable_decode_time(
            device, batch, seen, heads, key_value_heads, stored, width_v,
            cached_share(device, traffic),
        )  # fmt: skip
        return time, flops, traffic, MEMORY_BOUND if 2.0 * memory > time else LATENCY_BOUND
    if latent and device.latent_key_time > 0.0:
        flops = 2.0 * batch * heads * keys * (width_qk + width_v)
        traffic = float(batch) * keys * width_qk * device.key_bytes
        time = serial_latent_time(device, float(batch), heads, float(keys), float(keys))
        return time, flops, traffic, LATENCY_BOUND
    tile = forward_tile(device, queries, packed, width_qk, width_v, latent)
    blocks, tiles, longest, pairs, seen = sequence_blocks(
        queries, keys, tile[0], tile[1], packed, causal, window
    )
    if device.portable > 0.0 and window > 0:
        _, walked, most, _, _ = sequence_blocks(queries, keys, tile[0], tile[1], packed, causal, 0)
        tiles = masked_tiles(device, tiles, walked)
        longest = masked_tiles(device, min(longest, most), most)
    block_heads = float(key_value_heads if packed > 0 else heads)
    flops = 2.0 * pairs * (width_qk + width_v) * heads * batch
    time, traffic, bound = forward_time(
        device, tile, width_qk, width_v, latent,
        block_heads, blocks * block_heads * batch, tiles * block_heads * batch, longest,
        blocks, seen, blocks * (1.0 if packed > 0 else float(group)),
        float(batch) * queries * heads, flops, seen * key_value_heads * batch,
    )  # fmt: skip
    return time, flops, traffic, bound
