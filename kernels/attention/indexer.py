"""The indexer that scores keys for sparse attention: logits forward, gradients backward.

Letters: ``H`` index heads of width ``d``, over one key head. The logit of a query and a key is
``sum over h of w_h relu(q_h . k)`` (DeepSeek-V3.2, arXiv:2512.02556, eq. 1), or with blocks of keys
(MiniMax-M3) the largest product of each head in a block.

Forward is a matrix product whose result never leaves the unit: tokens times heads are rows
(DeepGEMM ``fp8_mqa_logits``: 128 rows and 256 keys of a tile), each element costs a relu and a
multiply-add on the general cores, and only one single-precision logit per pair is written.

Backward is that of the KL loss over the chosen keys (the sparse stage of training): products are
recomputed, then dQ and dK, and gradients of keys are scattered as in
`perfmodel.kernels.attention.sparse`. With all keys chosen it is that of the dense warm-up.
The distribution that the loss aims at, attention summed over heads, is not in it.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.attention.forward import (
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
    SOFTMAX_BOUND,
    overlapped_time,
)
from perfmodel.kernels.attention.sparse import (
    gathered_gradient_time,
    rows_from_memory,
    scattered_rows,
    sparse_attention_backward,
    sparse_attention_forward,
)
from perfmodel.kernels.attention.tiles import list_schedule_time, visited_tiles

TILE_ROWS = 128
"""Tokens times heads of a tile (DeepGEMM ``fp8_mqa_logits``: 128 / H tokens)."""

TILE_KEYS = 256
"""Keys of a tile (``BLOCK_KV``)."""

SUM_OPERATIONS = 4.0
"""Vector FLOP per element: a relu and a multiply-add, each an instruction worth two."""

MAXIMUM_OPERATIONS = 2.0
"""The same for the maximum over a block of keys."""

GRADIENT_OPERATIONS = 8.0
"""The same backward: relu again, its mask, the product with the weight and the logit's gradient,
and the sum of the weight's gradient."""

SCALE_BYTES = 4.0
"""Scale of a key in 8 bits, and the weight of a head: single precision [B]."""

LOGIT_BYTES = 4.0


@jit
def indexer_forward(device, batch, queries, keys, heads, width, ratio, block, pairs, decode):
    """Logits of one call.

    Parameters
    ----------
    device : AttentionDevice
        Rates and efficiencies at the logits' precision.
    batch, queries, keys, heads, width : int
        Sequences, queries and tokens of one, H, d. Queries stand at the end.
    ratio : int
        Tokens that one key stands for, >= 1.
    block : int
        Keys of a block of which the maximum is kept; 1: heads are summed up instead.
    pairs : float
        Keys that the queries of a sequence see, summed up.
    decode : bool
        Whether keys are split over units.

    Returns
    -------
    tuple of (float, float, float, int)
        Time [s], FLOP, memory traffic [B], bound.
    """
    units = device.units
    stored_keys = keys // ratio
    tokens = max(1, TILE_ROWS // heads)
    rows = float(max(tokens * heads, int(device.smallest_query_tile)))
    padded = math.ceil(width / device.head_step) * device.head_step
    elements = rows * TILE_KEYS
    efficiency = device.matrix_rate * device.matrix_efficiency
    matrix = 2.0 * elements * padded * units / efficiency
    operations = SUM_OPERATIONS if block == 1 else MAXIMUM_OPERATIONS
    vector = elements * operations * units / device.vector_rate
    compute = overlapped_time(matrix, vector, device.overlap)
    key_bytes = width * device.key_bytes + SCALE_BYTES
    load = TILE_KEYS * key_bytes * units / (device.cache_bandwidth * device.cache_port)
    each = max(compute, load)

    blocks = float((queries + tokens - 1) // tokens) * batch
    tiles = float(visited_tiles(queries, keys, tokens, TILE_KEYS * ratio, True, 0)) * batch
    if decode or blocks < units:  # the keys of a query are spread over the units
        work = math.ceil(tiles / units) * each + device.decode_latency
    else:  # units stay and take block after block, whose loads run ahead
        longest = math.ceil(stored_keys / TILE_KEYS) * each
        work = list_schedule_time(blocks, tiles * each, longest, units, device.tail)
        work += device.block_latency

    all_tokens = float(batch) * queries
    written = pairs * batch * LOGIT_BYTES * (1.0 if block == 1 else float(heads) / block)
    traffic = all_tokens * heads * (width * device.query_bytes + SCALE_BYTES)
    traffic += float(batch) * stored_keys * key_bytes + written
    memory = traffic / (device.bandwidth * device.memory_efficiency)
    time = device.launch_latency + max(work, memory)
    if memory >= work or load > compute:
        bound = MEMORY_BOUND
    elif vector > matrix:
        bound = SOFTMAX_BOUND
    else:
        bound = COMPUTE_BOUND
    if device.launch_latency + device.block_latency > 0.5 * time:
        bound = LATENCY_BOUND
    return time, 2.0 * heads * width * pairs * batch, traffic, bound


@jit
def indexer_backward(
    device, batch, queries, heads, width, places, chosen, gathered, distinct, shared_cache
):
    """Gradients of the indexer's queries, keys and weights over the chosen keys.

    Parameters
    ----------
    device : AttentionDevice
        Rates and efficiencies at the precision of the gradients.
    batch, queries, heads, width : int
        Sequences, queries of one, H, d.
    places : int
        Keys chosen per query, empty places included; >= 1.
    chosen : float
        Keys really chosen by the queries of a sequence, summed up.
    gathered, distinct : float
        Rows of keys gathered by them, and rows that these are of.
    shared_cache : bool
        See `scattered_rows`.

    Returns
    -------
    tuple of (float, float, float, int)
        Time [s], FLOP, memory traffic [B], bound.

    Notes
    -----
    Three products of ``2 H d`` FLOP per chosen key: the logits again, dQ and dK.
    """
    rows = float(max(heads, int(device.smallest_query_tile)))
    tokens = float(batch) * queries
    read = rows_from_memory(device, gathered, distinct, width * device.key_bytes)
    query = tokens * heads * width
    additions, scattered, after = scattered_rows(
        device, tokens * places * width, 1.0, distinct * batch * width, shared_cache
    )
    main = query * (device.query_bytes + device.output_bytes) + scattered
    main += read * batch * width * device.key_bytes
    main += 2.0 * tokens * (heads * SCALE_BYTES + places * LOGIT_BYTES)
    time, traffic, bound = gathered_gradient_time(
        device, tokens, places, rows, width, 3.0 * width, float(width), GRADIENT_OPERATIONS,
        read / gathered, additions, (0.0, main, after), 2.0,
    )  # fmt: skip
    return time, 6.0 * heads * width * chosen * batch, traffic, bound


@jit
def sparse_attention_times(
    device, batch, queries, heads, key_value_heads, width_qk, width_v,
    places, pairs, gathered, distinct, shared, decode, backward, shared_cache,
):  # fmt: skip
    """Times of many calls; see `sparse_attention_forward`.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    batch, queries, heads, key_value_heads, width_qk, width_v, places : int64[rows]
        Shapes.
    pairs, gathered, distinct : float64[rows]
        Keys of a sequence: seen, gathered, and different ones.
    shared : bool[rows]
        Whether values are part of the keys.
    decode, backward : bool
        Phase of all of them.
    shared_cache : bool
        Whether one cache serves the whole device.

    Returns
    -------
    time, flops, traffic : float64[rows]
        [s], [FLOP], [B].
    bound : uint8[rows]
        One of the bounds of `perfmodel.kernels.attention.forward`.
    """
    time, flops, traffic = np.empty(batch.size), np.empty(batch.size), np.empty(batch.size)
    bound = np.empty(batch.size, np.uint8)
    for i in range(batch.size):
        if backward:
            time[i], flops[i], traffic[i], bound[i] = sparse_attention_backward(
                device, batch[i], queries[i], heads[i], key_value_heads[i], width_qk[i],
                width_v[i], places[i], pairs[i], gathered[i], distinct[i], shared[i], shared_cache,
            )  # fmt: skip
        else:
            time[i], flops[i], traffic[i], bound[i] = sparse_attention_forward(
                device, batch[i], queries[i], heads[i], key_value_heads[i], width_qk[i],
                width_v[i], places[i], pairs[i], gathered[i], distinct[i], shared[i], decode,
            )  # fmt: skip
    return time, flops, traffic, bound


@jit
def indexer_times(
    device, batch, queries, keys, heads, width, ratio, block,
    places, pairs, gathered, distinct, decode, backward, shared_cache,
):  # fmt: skip
    """Times of many calls; see `indexer_forward` and `indexer_backward`.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    batch, queries, keys, heads, width, ratio, block, places : int64[rows]
        Shapes.
    pairs, gathered, distinct : float64[rows]
        Keys of a sequence: scored forward or chosen backward, gathered, and different ones.
    decode, backward : bool
        Phase of all of them.
    shared_cache : bool
        Whether one cache serves the whole device.

    Returns
    -------
    time, flops, traffic : float64[rows]
        [s], [FLOP], [B].
    bound : uint8[rows]
        One of the bounds of `perfmodel.kernels.attention.forward`.
    """
    time, flops, traffic = np.empty(batch.size), np.empty(batch.size), np.empty(batch.size)
    bound = np.empty(batch.size, np.uint8)
    for i in range(batch.size):
        if backward:
            time[i], flops[i], traffic[i], bound[i] = indexer_backward(
                device, batch[i], queries[i], heads[i], width[i],
                places[i], pairs[i], gathered[i], distinct[i], shared_cache,
            )  # fmt: skip
        else:
            time[i], flops[i], traffic[i], bound[i] = indexer_forward(
                device, batch[i], queries[i], keys[i], heads[i], width[i], ratio[i], block[i],
                pairs[i], decode,
            )  # fmt: skip
    return time, flops, traffic, bound
