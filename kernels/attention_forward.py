"""Forward pass of fused attention; letters and sources in `perfmodel.kernels.attention`."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit
from perfmodel.kernels.attention_device import ONE_WAVE_SPLIT, SPREAD_SPLIT
from perfmodel.kernels.attention_tiles import longest_query_block, visited_tiles

COMPUTE_BOUND = 0
SOFTMAX_BOUND = 1
MEMORY_BOUND = 2
LATENCY_BOUND = 3

SMALLEST_KEY_TILE = 64
"""Keys of the smallest tile of the libraries' wide heads (FlashAttention tile tables)."""

STAGES = 2
"""Tiles of K and of V that wait in the scratchpad (FlashAttention-3: two stages)."""

HEAD_STEP = 32
"""Head widths are padded to multiples of this (FlashAttention: 64, 96, 128, ...)."""

SPLIT_BELOW = 0.8
"""Keys may be split where one sequence has fewer blocks than this share of the units
(FlashAttention, ``num_splits_heuristic``)."""

SPLIT_ABOVE_TILES = 4
"""Fewer key tiles are never split (the same heuristic)."""

SPLIT_MARGIN = 1.1
"""Tiles per unit are rounded up with this margin (``prepare_varlen_num_blocks_kernel``)."""

ONE_RESIDENT_ABOVE = 256
"""Width of Q K and V together above which one decode block fills a unit's scratchpad."""

CACHE_RAMP = 0.3
"""From all to none of a working set in the cache: width of the ramp, share of capacity."""

CACHE_PORT = 2.0
"""One unit reads the cache at this multiple of its even share (64 B per clock and unit)."""

PARTIAL_BYTES = 4.0
"""Element of a partial result, single precision [B]."""

STATISTICS_BYTES = 4.0
"""Log-sum-exp and dO·O of one query row, single precision [B]."""


@jit
def cached_share(device, size, cached):
    """Share of `size` bytes that the last call left in the cache."""
    if not cached:
        return 0.0
    room = device.cache_share - size / device.cache_capacity
    return min(1.0, max(0.0, 1.0 + room / CACHE_RAMP))


@jit
def query_packing(device, queries, prefill, group):
    """Heads whose rows share a tile: the group that shares keys; 0 where none do.

    Kernels for decode (one query) always pack; those for prefill only where the library
    has one kernel for both.
    """
    if device.packs_groups > 0.0 or (queries == 1 and not prefill):
        return group
    return 0


@jit
def forward_tile(device, queries, packed, width_qk, width_v, latent):
    """Tile that the library takes.

    Parameters
    ----------
    device : AttentionDevice
        Device at one precision.
    queries, packed : int
        Longest Q of the call; `query_packing`.
    width_qk, width_v : int
        Widths of a head.
    latent : bool
        Whether values are part of the keys.

    Returns
    -------
    rows, keys, parts : int
        M, N, and units that share a block, each with a part of the value width.
    decode : bool
        Whether the rows that meet one key head fit one tile of a packing kernel.
    """
    rows = int(device.query_tile)
    decode = packed > 0 and packed * queries <= rows
    smallest = int(device.smallest_query_tile)
    wide = 2 * smallest * width_v > device.accumulators
    parts = 2 if device.pairs_units > 0.0 and wide and (latent or not decode) else 1
    while rows > smallest and rows * width_v > device.accumulators * parts:
        rows //= 2
    keys = int(device.decode_key_tile) if decode else int(device.key_tile)
    room = device.scratchpad / device.query_bytes - rows * width_qk
    stage = width_qk if latent else width_qk + width_v / parts
    fitting = int(room / (stage * STAGES)) // 16 * 16
    keys = max(min(SMALLEST_KEY_TILE, keys), min(keys, fitting))
    while rows > smallest and max(1, packed) * queries * 2 <= rows:
        rows //= 2
    return rows, keys, parts, decode


@jit
def sequence_blocks(queries, keys, rows, tile_keys, packed, causal, window):
    """Blocks and tiles of one sequence under one head (or one group of packed heads).

    Returns
    -------
    blocks, tiles, longest, pairs, seen : float
        Blocks, tiles of all of them and of the longest, unmasked pairs of one head, and
        keys that some query sees.
    """
    packed = max(1, packed)
    positions = max(1, rows // packed)
    blocks = (queries * packed + rows - 1) // rows
    query_tiles = (queries + positions - 1) // positions
    visited = visited_tiles(queries, keys, positions, tile_keys, causal, window)
    longest = longest_query_block(queries, keys, positions, tile_keys, causal, window)
    pairs = visited_tiles(queries, keys, 1, 1, causal, window)
    seen = keys if window <= 0 else min(keys, queries + window - 1)
    tiles = float(visited) * (float(blocks) / query_tiles)
    return float(blocks), tiles, float(longest), float(pairs), float(seen)


@jit
def forward_time(
    device, tile, packed, group, width_qk, width_v, latent, cached,
    block_heads, blocks, tiles, longest, most_blocks, longest_seen, outputs, flops, keys_read,
):  # fmt: skip
    """Time of one launch from the sums over its sequences.

    Parameters
    ----------
    device : AttentionDevice
        Device at one precision.
    tile : tuple
        Result of `forward_tile`.
    packed, group, width_qk, width_v : int
        Packing, heads per key head, widths.
    latent, cached : bool
        Values are part of the keys; whether the call before left its data in the cache.
    block_heads : float
        Heads, or groups of packed heads, of one sequence.
    blocks, tiles, longest : float
        Of all sequences and heads; tiles of the longest block.
    most_blocks, longest_seen : float
        Blocks of the longest sequence under one head, and the keys that it sees.
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
    hit = cached_share(device, traffic, cached)

    # one tile: products and softmax, keys and values from memory or cache
    padded_qk = (width_qk + HEAD_STEP - 1) // HEAD_STEP * HEAD_STEP
    padded_v = (width_v + HEAD_STEP - 1) // HEAD_STEP * HEAD_STEP
    elements = float(rows * tile_keys)
    matrix = 2.0 * elements * (padded_qk / halved + padded_v / parts) * units
    matrix /= device.matrix_rate * device.matrix_efficiency * share
    softmax = elements / halved * units / device.exponential_rate
    softmax += elements / halved * units * device.softmax_operations / device.vector_rate
    compute = max(matrix, softmax) + (1.0 - device.overlap) * min(matrix, softmax)
    readers = most_blocks * (1.0 if packed > 0 else float(group))
    cold = (1.0 - hit) / readers
    read_keys = min(float(tile_keys), longest_seen / longest) if decode else float(tile_keys)
    tile_bytes = read_keys * key_width * device.key_bytes / halved
    load = cold * tile_bytes * units / (device.bandwidth * device.unit_bandwidth)
    load += (1.0 - cold) * tile_bytes * units / (device.cache_bandwidth * CACHE_PORT)
    if device.key_bytes < 2.0 and not latent:
        converted = tile_keys * width_v * device.conversion_operations
        load += converted * units / device.vector_rate
    serial = latent and device.latent_key_time > 0.0
    if serial:
        load = max(load, read_keys * device.latent_key_time)
    each = max(compute, load)
    start = device.decode_latency if decode else device.block_latency
    if decode or device.packs_groups > 0.0:
        start *= 1.0 + device.width_latency * ((width_qk + width_v) / 256.0 - 1.0)

    # parts of the keys
    blocks *= parts
    tiles *= parts
    latency = device.launch_latency
    splits = 1.0
    if device.split_rule == SPREAD_SPLIT and not serial:
        first = most_blocks * block_heads
        if longest > SPLIT_ABOVE_TILES and first < SPLIT_BELOW * units:
            latency += device.split_latency
            if decode:
                start += device.split_block_latency
            splits = math.ceil(longest / math.ceil(tiles * SPLIT_MARGIN / units))
            splits = min(splits, device.most_splits)
    elif device.split_rule == ONE_WAVE_SPLIT and decode and blocks < units and not serial:
        splits = min(longest, math.floor(units / blocks), device.most_splits)
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
            time *= 1.0 + (power - 1.0) * time / (time + device.heat_time)

    # memory
    partial = 0.0
    if splits > 1.0:
        partial = 2.0 * splits * outputs * width_v * PARTIAL_BYTES
    slow = 1.0 - (1.0 - share) * (device.key_bytes - 1.0)
    rate = device.bandwidth * device.memory_efficiency * slow
    memory = traffic * (1.0 - hit) / rate + (traffic * hit + partial) / device.cache_bandwidth
    busy = max(time, memory)
    total = latency + busy + device.exposed_latency * min(starts, memory)

    if latency + start > 0.5 * total:
        bound = LATENCY_BOUND
    elif memory >= time or load > compute:
        bound = MEMORY_BOUND
    elif softmax > matrix:
        bound = SOFTMAX_BOUND
    else:
        bound = COMPUTE_BOUND
    return total, traffic, bound


@jit
def attention_forward(
    device, batch, queries, keys, heads, key_value_heads, width_qk, width_v,
    causal, window, latent, cached, prefill,
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
    cached : bool
        Whether the call before left the same data in the cache (a replayed benchmark).
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
    packed = query_packing(device, queries, prefill, group)
    tile = forward_tile(device, queries, packed, width_qk, width_v, latent)
    blocks, tiles, longest, pairs, seen = sequence_blocks(
        queries, keys, tile[0], tile[1], packed, causal, window
    )
    block_heads = float(key_value_heads if packed > 0 else heads)
    flops = 2.0 * pairs * (width_qk + width_v) * heads * batch
    time, traffic, bound = forward_time(
        device, tile, packed, group, width_qk, width_v, latent, cached,
        block_heads, blocks * block_heads * batch, tiles * block_heads * batch, longest,
        blocks, seen, float(batch) * queries * heads, flops, seen * key_value_heads * batch,
    )  # fmt: skip
    return time, flops, traffic, bound


@jit
def attention_ragged(
    device, queries, keys, heads, key_value_heads, width_qk, width_v,
    causal, window, latent, cached, prefill,
):  # fmt: skip
    """Forward pass of one launch over sequences of different lengths.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    queries, keys : int64[sequences]
        Q and K of each sequence.
    heads, key_value_heads, width_qk, width_v, causal, window, latent, cached, prefill
        See `attention_forward`.

    Returns
    -------
    tuple of (float, float, float, int)
        Time [s], executed FLOP, memory traffic [B], bound.

    Notes
    -----
    The tile follows the longest sequence, as in the libraries, which know no other length
    when they launch; blocks, tiles and bytes are summed over the sequences.
    """
    most = 0
    for i in range(queries.size):
        most = max(most, queries[i])
    group = heads // key_value_heads
    packed = query_packing(device, most, prefill, group)
    tile = forward_tile(device, most, packed, width_qk, width_v, latent)
    block_heads = float(key_value_heads if packed > 0 else heads)
    blocks, tiles, longest, pairs, tokens, read = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    most_blocks, longest_seen = 0.0, 0.0
    for i in range(queries.size):
        own, visited, deepest, unmasked, seen = sequence_blocks(
            queries[i], keys[i], tile[0], tile[1], packed, causal, window
        )
        blocks += own * block_heads
        tiles += visited * block_heads
        pairs += unmasked
        tokens += queries[i]
        read += seen
        most_blocks = max(most_blocks, own)
        if deepest > longest:
            longest, longest_seen = deepest, seen
    flops = 2.0 * pairs * (width_qk + width_v) * heads
    time, traffic, bound = forward_time(
        device, tile, packed, group, width_qk, width_v, latent, cached,
        block_heads, blocks, tiles, longest, most_blocks, longest_seen,
        tokens * heads, flops, read * key_value_heads,
    )  # fmt: skip
    return time, flops, traffic, bound
