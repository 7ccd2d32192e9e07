"""Attention of every query over a list of keys of its own, forward and backward.

Letters as in `perfmodel.kernels.attention.columns`, and ``n`` keys that each query walks over:
those of a sliding window, and those that an indexer chose (DeepSeek-V3.2, arXiv:2512.02556) or
that stand for more tokens each (DeepSeek-V4, compressed keys).

A block owns one query and as many of its heads as fit a tile, because these share the list
and, but for groups, the keys: heads are rows (FlashMLA ``sparse``: 64 heads and 64 keys of a
tile; TileLang ``sparse_mla_fwd``; Primus' sparse-MLA backends). It gathers the keys of a tile
row by row; another tile of heads of the same query gathers them again. All of the list's places
are walked over, those that a mask leaves empty included, for a launch has one length of list.

Forward is then that of dense attention with other numbers of blocks, tiles and bytes
(`perfmodel.kernels.attention.forward.forward_time`). Backward keeps the queries' order too: dQ is
summed inside the block; gradients of keys leave it as a single-precision row per place of the
list and are added up by key (`scattered_rows`): where one cache serves the whole device, by
atomic additions there (TileLang ``sparse_mla_bwd``, cuDNN, FlashAttention), else by storing the
rows and summing them in a kernel of its own (Primus, MI355X, whose dies have caches of their own).
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit
from perfmodel.kernels.attention.backward import (
    WIDE_HEAD,
    addition_time,
    backward_tile_time,
)
from perfmodel.kernels.attention.forward import (
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
    PARTIAL_BYTES,
    SOFTMAX_BOUND,
    STATISTICS_BYTES,
    forward_time,
    softmax_time,
)
from perfmodel.kernels.attention.tiles import forward_tile, list_schedule_time

KEY_TILE = 64
"""Keys that a block gathers at a time (FlashMLA ``B_TOPK``, TileLang ``block_I``, the padding
of Primus' lists of keys)."""


@jit
def rows_from_memory(device, gathered, distinct, row_bytes):
    """Rows that gathers take from the device memory instead of the last shared cache.

    Parameters
    ----------
    device : AttentionDevice
    gathered, distinct : float
        Rows gathered by all queries of a sequence, and rows that these are of.
    row_bytes : float
        [B]

    Returns
    -------
    float
        Every row once, and again as often as the cache lost it: a gather hits with the share
        of the rows that the cache holds (uniformly spread choices).
    """
    held = min(1.0, device.cache_capacity / (distinct * row_bytes))
    return distinct + (gathered - distinct) * (1.0 - held)


@jit
def sparse_attention_forward(
    device, batch, queries, heads, key_value_heads, width_qk, width_v,
    places, pairs, gathered, distinct, shared, decode,
):  # fmt: skip
    """Forward pass of one call.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    batch, queries, heads, key_value_heads : int
        B, Q, H and G; H a multiple of G.
    width_qk, width_v : int
        Elements of a query or key and of a value, per head.
    places : int
        n, keys in the list of one query, empty ones included; >= 1.
    pairs : float
        Keys that the queries of a sequence really see, summed up.
    gathered, distinct : float
        Rows of keys that the queries of a sequence gather, and rows that these are of.
    shared : bool
        Whether values are the first elements of the keys.
    decode : bool
        Whether sequences bring a query or a few each: the list is split over idle units.

    Returns
    -------
    tuple of (float, float, float, int)
        Time [s], FLOP of the keys that are seen, memory traffic [B], bound.

    Notes
    -----
    ``2 (width_qk + width_v)`` FLOP per key and head that is seen.
    """
    group = heads // key_value_heads
    tile = forward_tile(device, 1, group, width_qk, width_v, shared)
    rows, parts = tile[0], tile[2]
    row_tiles = float((group + rows - 1) // rows)
    longest = float((places + KEY_TILE - 1) // KEY_TILE)
    most_blocks = queries * row_tiles
    blocks = most_blocks * key_value_heads * batch
    stored = width_qk if shared else width_qk + width_v
    row_bytes = stored * key_value_heads * device.key_bytes
    read = rows_from_memory(device, gathered, distinct, row_bytes)
    executed = 2.0 * places * queries * (width_qk + width_v) * heads * batch
    time, traffic, bound = forward_time(
        device, (rows, KEY_TILE, parts, decode), width_qk, width_v, shared,
        float(key_value_heads), blocks, blocks * longest, longest,
        most_blocks, float(places), gathered / read * row_tiles,
        float(batch) * queries * heads, executed, read * key_value_heads * batch,
    )  # fmt: skip
    if not shared:  # with shared ones the dense pass has counted this
        gathers = blocks * longest * KEY_TILE * stored * device.key_bytes / device.cache_bandwidth
        if device.launch_latency + gathers > time:
            time, bound = device.launch_latency + gathers, MEMORY_BOUND
    flops = 2.0 * pairs * (width_qk + width_v) * heads * batch
    return time, flops, traffic, bound


@jit
def scattered_rows(device, elements, tiles, distinct, shared_cache):
    """What it takes to add up gradient rows by key.

    Parameters
    ----------
    device : AttentionDevice
    elements : float
        Of all rows, one row per place of a query's list.
    tiles : float
        Tiles of heads, each with a row of its own.
    distinct : float
        Elements of the sums.
    shared_cache : bool
        Whether one cache serves the whole device, which adds in it.

    Returns
    -------
    busy : float
        Time of additions in the cache, part of it beside the main kernel's work [s].
    main, after : float
        Bytes in the device memory during the main kernel, and after it [B].

    Notes
    -----
    Additions are those of dense attention (`addition_time`). Those that the cache cannot hold read
    and write 4 bytes of the memory each. Sums are cleared before and converted after. Stored rows
    hold the sum over all heads: one store, one load.
    """
    if not shared_cache:
        stored = elements * PARTIAL_BYTES
        return 0.0, stored, stored + distinct * device.output_bytes
    held = min(1.0, device.cache_capacity / (distinct * PARTIAL_BYTES))
    added = elements * tiles
    after = distinct * (2.0 * PARTIAL_BYTES + device.output_bytes)
    main = 2.0 * PARTIAL_BYTES * added * (1.0 - held)
    return addition_time(device, added * held), main, after


@jit
def gathered_gradient_time(
    device, blocks, places, rows, width, products, stored, operations, read, additions, beside,
    launches,
):  # fmt: skip
    """Time of gradients over lists of keys: of queries inside the block, of keys beyond it.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    blocks : float
        Queries times tiles of heads.
    places : int
        Keys in the list of one query.
    rows : float
        Rows of a tile, empty ones included.
    width : int
        Elements of a query and key.
    products : float
        Sum of the inner widths of the products of a row and a key.
    stored : float
        Elements that a block gathers per place of the list.
    operations : float
        Vector FLOP per row and key, beside an exponential.
    read : float
        Share of the gathered rows that come from the device memory.
    additions : float
        Time of additions in the cache [s].
    beside : tuple of float
        Bytes moved before, in, and after the main kernel [B].
    launches : float
        Kernels.

    Returns
    -------
    time, traffic : float
        [s], [B].
    bound : int
        One of the bounds of `perfmodel.kernels.attention.forward`.
    """
    units = device.units
    walked = math.ceil(places / KEY_TILE)
    elements = rows * KEY_TILE
    efficiency = device.backward_matrix_efficiency
    if width > WIDE_HEAD:
        efficiency *= device.wide_backward
    matrix = 2.0 * elements * products * units / (device.matrix_rate * efficiency)
    vector = softmax_time(device, elements, operations)
    adding = additions * units / (blocks * walked)
    compute = backward_tile_time(device, matrix, vector, adding)
    tile_bytes = KEY_TILE * stored * device.key_bytes * units
    load = (1.0 - read) * tile_bytes / (device.cache_bandwidth * device.cache_port)
    load += read * tile_bytes / (device.bandwidth * device.unit_bandwidth)
    each = max(compute, load)
    work = blocks * (walked * each + device.block_latency)
    alone = walked * each + device.block_latency
    busy = list_schedule_time(blocks, work, alone, units, device.tail)
    before, main, after = beside
    rate = device.bandwidth * device.memory_efficiency
    latency = launches * device.launch_latency
    time = latency + (before + after) / rate + max(busy, main / rate)
    stalled = load > compute or adding > max(matrix, vector)
    if busy <= max(main / rate, (before + after) / rate) or stalled:
        bound = MEMORY_BOUND
    elif vector > matrix:
        bound = SOFTMAX_BOUND
    else:
        bound = COMPUTE_BOUND
    if latency + device.block_latency > 0.5 * time:
        bound = LATENCY_BOUND
    return time, before + main + after, bound


@jit
def sparse_attention_backward(
    device, batch, queries, heads, key_value_heads, width_qk, width_v,
    places, pairs, gathered, distinct, shared, shared_cache,
):  # fmt: skip
    """Backward pass of one call: dQ and gradients of the keys (and values) from dO.

    Parameters
    ----------
    device, batch, queries, heads, key_value_heads, width_qk, width_v
        See `sparse_attention_forward`.
    places, pairs, gathered, distinct, shared
        See `sparse_attention_forward`.
    shared_cache : bool
        See `scattered_rows`.

    Returns
    -------
    tuple of (float, float, float, int)
        Time [s], FLOP of the keys that are seen, memory traffic [B], bound.

    Notes
    -----
    Products S, dP, dV, dQ and dK as in dense attention: ``2 (3 width_qk + 2 width_v)`` FLOP per
    key and head. Three kernels: ``D = rowsum(dO O)``; the main one, which hands out a gradient row
    per place; and the sum of these by key, or the conversion of the sums.
    """
    group = heads // key_value_heads
    rows = forward_tile(device, 1, group, width_qk, width_v, shared)[0]
    row_tiles = float((group + rows - 1) // rows)
    tokens = float(batch) * queries
    stored = float(width_qk if shared else width_qk + width_v)
    row_bytes = stored * key_value_heads * device.key_bytes
    read = rows_from_memory(device, gathered, distinct, row_bytes)

    statistics = tokens * heads * STATISTICS_BYTES
    output = tokens * heads * width_v * (device.query_bytes + device.output_bytes)
    additions, scattered, after = scattered_rows(
        device, tokens * places * key_value_heads * stored, row_tiles,
        distinct * batch * key_value_heads * stored, shared_cache,
    )  # fmt: skip
    before = output + statistics
    main = tokens * heads * (width_qk + width_v) * device.query_bytes + 2.0 * statistics
    main += tokens * heads * width_qk * device.output_bytes
    main += read * batch * row_bytes + scattered

    products = 3.0 * width_qk + 2.0 * width_v
    time, traffic, bound = gathered_gradient_time(
        device, tokens * row_tiles * key_value_heads, places, float(rows), width_qk, products,
        stored, device.backward_operations, read / (gathered * row_tiles), additions,
        (before, main, after), 3.0,
    )  # fmt: skip
    return time, 2.0 * pairs * products * heads * batch, traffic, bound
