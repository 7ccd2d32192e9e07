"""Which tiles of the attention matrix a mask leaves, and which blocks a library cuts a call into.

Queries are aligned to the end of the keys: query ``i`` of ``Q`` stands at key
position ``i + K - Q``. Causal masks hide later keys; ``window = w`` leaves the
keys at distance below ``w``, on both sides where not causal. All counts are in
closed form. Further letters in `columns`.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit


@jit
def floor_sum(n, m, a, b):
    """Sum of ``floor((a t + b) / m)`` for ``t = 0 .. n - 1``.

    Parameters
    ----------
    n : int
        Number of terms, >= 0.
    m : int
        Divisor, >= 1.
    a, b : int
        Slope and offset, >= 0.

    Returns
    -------
    int
        The exact sum.

    Notes
    -----
    Euclid-like reduction in O(log m) steps (Graham, Knuth, Patashnik, Concrete
    Mathematics, section 3.5).
    """
    total = 0
    while n > 0:
        if a >= m:
            total += (n - 1) * n // 2 * (a // m)
            a %= m
        if b >= m:
            total += n * (b // m)
            b %= m
        top = a * n + b
        if top < m:
            break
        n = top // m
        b = top % m
        m, a = a, m
    return total


@jit
def _clipped_floor_sum(terms, divisor, slope, offset, limit):
    """Sum of ``floor(clip(slope t + offset, 0, limit) / divisor)`` over ``terms`` values of t."""
    if terms <= 0:
        return 0
    # terms below 0 add nothing; terms from `first_full` on stand at the limit
    first = 0 if offset >= 0 else (-offset + slope - 1) // slope
    first = min(first, terms)
    first_full = 0 if offset >= limit else (limit - offset + slope - 1) // slope
    first_full = max(first, min(first_full, terms))
    inner = floor_sum(first_full - first, divisor, slope, slope * first + offset)
    return inner + (terms - first_full) * (limit // divisor)


@jit
def visited_tiles(queries, keys, query_tile, key_tile, causal, window):
    """Tiles of one head that the mask leaves at least partly.

    Parameters
    ----------
    queries, keys : int
        Q and K of one sequence, >= 1.
    query_tile, key_tile : int
        Positions of a tile, >= 1. With both 1 the result is the number of
        unmasked pairs.
    causal : bool
        Whether a query sees no later key.
    window : int
        Distance from which keys are masked; 0 for none.

    Returns
    -------
    int
        Number of (query tile, key tile) pairs.
    """
    tiles = (queries + query_tile - 1) // query_tile
    shift = keys - queries
    # keys [start, end) of tile t; the last query tile may be cut
    if causal or window > 0:
        ahead = 0 if causal else window - 1
        end_offset = query_tile + shift + ahead  # end = t * query_tile + end_offset
        ends = _clipped_floor_sum(
            tiles - 1, key_tile, query_tile, end_offset + key_tile - 1, keys + key_tile - 1
        )
        # ceil() of a masked row is 0: clip at 0 happens key_tile - 1 too late, and floors to 0
        last_end = min(keys, queries + shift + ahead)
        ends += (last_end + key_tile - 1) // key_tile
    else:
        ends = tiles * ((keys + key_tile - 1) // key_tile)
    if window <= 0:
        return ends
    starts = _clipped_floor_sum(tiles, key_tile, query_tile, shift - window + 1, keys)
    return ends - starts


@jit
def longest_query_block(queries, keys, query_tile, key_tile, causal, window):
    """Most key tiles that one query tile visits (upper bound where windowed)."""
    longest = (keys + key_tile - 1) // key_tile
    if window > 0:
        reach = min(query_tile, queries) + window - 1
        if not causal:
            reach += window - 1
        longest = min(longest, (reach + key_tile - 1) // key_tile + 1)
    return longest


@jit
def longest_key_block(queries, keys, query_tile, key_tile, causal, window):
    """Most query tiles that one key tile is visited by (upper bound where windowed)."""
    longest = (queries + query_tile - 1) // query_tile
    if window > 0:
        reach = min(key_tile, keys) + window - 1
        if not causal:
            reach += window - 1
        longest = min(longest, (reach + query_tile - 1) // query_tile + 1)
    return longest


@jit
def list_schedule_time(blocks, work, longest, units, tail):
    """Time in which ``units`` finish independent blocks.

    Parameters
    ----------
    blocks : float
        Number of blocks.
    work : float
        Sum of the times of all blocks [s].
    longest : float
        Time of the longest block [s].
    units : float
        Units that work side by side.
    tail : float
        0: work divides evenly; 1: whole waves of equal blocks.

    Returns
    -------
    float
        Completion time [s].

    Notes
    -----
    Between Graham's two lower bounds, ``work / units`` and ``longest``, and the
    wave count ``ceil(blocks / units)`` of equal blocks in turn.
    """
    waves = blocks / units
    idle = (np.ceil(waves) - waves) * (work / blocks)
    return max(longest, work / units + tail * idle)


NARROW_HEAD = 96
"""Widest head with `narrow_query_tile` rows (FlashAttention-3 ``tile_size_fwd_sm90``)."""

SWAPPED_HEADS = 32
"""Heads over a latent cache up to which a library with pairs of units multiplies keys by queries
instead of queries by keys (TensorRT-LLM, ``swapsMmaAb``)."""

SWAPPED_ROWS = 16
"""Query rows of one block there; each block reads the whole cache."""


@jit
def query_packing(device, queries, prefill, group, window):
    """Heads whose rows share a tile: the group that shares keys; 0 where none do.

    Kernels for decode (one query) always pack; those for prefill only where the library
    has one kernel for both. Some pack neither heads with keys of their own nor under a window.
    """
    if device.packs_always == 0.0 and (group == 1 or window > 0):
        return 0
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
    if latent and device.pairs_units > 0.0 and packed * queries <= SWAPPED_HEADS:
        return SWAPPED_ROWS, int(device.decode_key_tile), 1, True
    if max(width_qk, width_v) <= NARROW_HEAD:
        rows = int(device.narrow_query_tile)
    if device.portable > 0.0 and width_qk > device.portable_kernel.wide_head:
        rows = min(rows, int(device.portable_kernel.wide_rows))
    decode = packed > 0 and packed * queries <= rows
    smallest = int(device.smallest_query_tile)
    wide = 2 * smallest * width_v > device.accumulators
    parts = 2 if device.pairs_units > 0.0 and wide and (latent or not decode) else 1
    while rows > smallest and rows * width_v > device.accumulators * parts:
        rows //= 2
    keys = int(device.decode_key_tile) if decode else int(device.key_tile)
    blocks = 1.0 if decode else device.residents
    room = device.scratchpad / (blocks * device.query_bytes) - rows * width_qk
    stage = width_qk if latent else width_qk + width_v / parts
    fitting = int(room / (stage * device.key_stages)) // 16 * 16
    if device.doubled_tiles > 0.0 and fitting > 0:
        fitting = 16 * 2 ** int(math.log2(fitting // 16))
    keys = max(min(int(device.smallest_key_tile), keys), min(keys, fitting))
    while rows >= 2 * smallest and max(1, packed) * queries * 2 <= rows:
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
