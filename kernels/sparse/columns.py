"""Calls of sparse attention and of its indexer, row by row."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.sparse.attention import sparse_attention_backward, sparse_attention_forward
from perfmodel.kernels.sparse.indexer import indexer_backward, indexer_forward


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
