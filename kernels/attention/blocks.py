"""How a library cuts a forward call into blocks; letters in `columns`."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit
from perfmodel.kernels.attention.tiles import longest_query_block, visited_tiles

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
