"""Fused attention (flash attention) at the level of tiles, forward and backward.

Letters of this file: ``B`` sequences, ``Q`` queries and ``K`` keys per
sequence, ``H`` query heads, ``G`` key-value heads, ``M`` query rows and ``N``
keys of one tile, ``U`` compute units.

Forward (`attention_forward`): what a library decides stands in `attention_blocks` (tile by head
width, packing of the heads that share keys) and in the split rules of the device. Kernels of
another build have their own files: `portable` (Triton), `serial` (latent
attention where no library pipelines it).

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

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.attention.backward import attention_backward
from perfmodel.kernels.attention.forward import (
    attention_forward,
)


@jit
def attention_times(
    device, batch, queries, keys, heads, key_value_heads, width_qk, width_v,
    causal, window, latent, prefill, backward,
):  # fmt: skip
    """Times of many calls, row by row; see `attention_forward`.

    Parameters
    ----------
    device : AttentionDevice
        Rates, tiles and efficiencies.
    batch, queries, keys, heads, key_value_heads, width_qk, width_v, window : int64[rows]
        Shapes.
    causal, latent, prefill, backward : bool[rows]
        Mask; values inside the keys; kernel for prefill; whether the row is the whole
        backward pass (to which the two before it don't apply).

    Returns
    -------
    time, flops, traffic : float64[rows]
        [s], [FLOP], [B].
    bound : uint8[rows]
        One of the bounds of this file.
    """
    time, flops, traffic = np.empty(batch.size), np.empty(batch.size), np.empty(batch.size)
    bound = np.empty(batch.size, np.uint8)
    for i in range(batch.size):
        if backward[i]:
            time[i], flops[i], traffic[i], bound[i] = attention_backward(
                device, batch[i], queries[i], keys[i], heads[i], key_value_heads[i],
                width_qk[i], width_v[i], causal[i], window[i],
            )  # fmt: skip
        else:
            time[i], flops[i], traffic[i], bound[i] = attention_forward(
                device, batch[i], queries[i], keys[i], heads[i], key_value_heads[i],
                width_qk[i], width_v[i], causal[i], window[i], latent[i], prefill[i],
            )  # fmt: skip
    return time, flops, traffic, bound
