"""FLOP, states and kept tensors of recurrent mixers: formulas over plain numbers or arrays.

Letters: ``H`` heads (value heads; channels of Mamba-1), ``G`` key heads (groups of Mamba-2),
``K`` width of a key (``d_state`` of Mamba), ``V`` width of a value (``headdim`` of Mamba-2, 1 of
Mamba-1), ``C`` tokens of a chunk. Nothing here is compiled: who counts FLOP needs no Numba.
"""

from __future__ import annotations

from typing import Any

from perfmodel.kernels.recurrence import SCAN_OPERATIONS, SELECTIVE_CHUNK

RECURRENCES = ("gated_delta", "kimi_delta", "mamba2", "mamba1", "lightning")
"""Kinds, in the order of the kernels' codes: Gated DeltaNet (arXiv:2412.06464), Kimi Delta
Attention (arXiv:2510.26692), Mamba-2 SSD (arXiv:2405.21060), the selective scan of Mamba-1
(arXiv:2312.00752), lightning attention (arXiv:2401.04658)."""

RECURRENCE_PHASES = ("forward", "backward", "prefill", "decode")
"""Prefill is forward with a state handed in and out; decode is one token per sequence."""

STATE_BYTES = 4.0
"""An element of a state, which all libraries keep in single precision [B]."""

GRADIENT = 2.0
"""Every product has two gradients of its size."""


def recurrence_flops(
    kind: str,
    *,
    heads: Any,
    key_heads: Any,
    key_dim: Any,
    value_dim: Any,
    chunk: Any,
    phase: str = "forward",
) -> Any:
    """FLOP of a recurrent mixer per token, its projections and convolution apart.

    Parameters
    ----------
    kind : str
        One of `RECURRENCES`.
    heads, key_heads, key_dim, value_dim, chunk : number or array
        H, G, K, V and C.
    phase : str
        One of `RECURRENCE_PHASES`.

    Returns
    -------
    number or array
        [FLOP] per token. Backward counts both gradients of every product, and not what the
        kernels compute again. Decode counts the recurrence itself: decay, update and output.

    Notes
    -----
    ==========  ==========================================================
    kind        forward, per token
    ==========  ==========================================================
    delta rule  ``H (6 K V + 2 C (3 K + 2 V))``: K K^T, W, Q K^T with K; U, A V with V;
                the state thrice
    mamba2      ``G 2 C K + H (2 C V + 4 K V)``: C B^T once per group
    lightning   ``H (2 C (K + V) + 4 K V)``
    mamba1      ``9 H K``, elementwise
    ==========  ==========================================================

    Chunks count whole: also pairs that the mask leaves out, as PyTorch's FlopCounterMode does.
    The inverse of the triangular matrix of a chunk is elementwise and left out.
    """
    state = key_dim * value_dim
    if kind == "mamba1":
        flops = SCAN_OPERATIONS * heads * state
        return GRADIENT * flops if phase == "backward" else flops
    delta = kind in ("gated_delta", "kimi_delta")
    if phase == "decode":
        # decay (1), S^T k of the delta rule (2), the update (2), S^T q (2)
        return (7.0 if delta else 5.0) * heads * state
    if delta:
        flops = heads * (6.0 * state + 2.0 * chunk * (3.0 * key_dim + 2.0 * value_dim))
    elif kind == "mamba2":
        flops = key_heads * 2.0 * chunk * key_dim + heads * (2.0 * chunk * value_dim + 4.0 * state)
    else:
        flops = heads * (2.0 * chunk * (key_dim + value_dim) + 4.0 * state)
    return GRADIENT * flops if phase == "backward" else flops


def recurrence_saved_bytes(
    kind: str,
    *,
    heads: Any,
    key_heads: Any,
    key_dim: Any,
    value_dim: Any,
    chunk: Any,
    element_bytes: float = 2.0,
) -> Any:
    """Bytes per token that a mixer's own autograd keeps for backward.

    Inputs count: who keeps them anyway (the output of the convolution, say) leaves them out.

    Parameters
    ----------
    kind, heads, key_heads, key_dim, value_dim, chunk
        See `recurrence_flops`.
    element_bytes : float
        An element of activations [B].

    Returns
    -------
    number or array
        [B] per token.

    Notes
    -----
    gated_delta
        q, k after their norms with ``rstd`` in fp32, v, the cumulated g (fp32), beta and the
        inverse A (C numbers per head) (flash-linear-attention
        ``ops/gated_delta_rule/chunk.py``, ``ctx.save_for_backward``); W, U, states and new
        values are computed again.
    kimi_delta
        q, k, ``rstd``, v, the raw gate (K numbers per head), beta, Aqk and Akk
        (``ops/kda/chunk.py`` with ``disable_recompute=False``).
    mamba2
        x, dt, z, B, C (``zxbcdt`` before its convolution) and the output: H V + 2 G K of the
        convolution's input, H V of z, H of dt, H V of the output (state-spaces/mamba
        ``ops/triton/ssd_combined.py``, ``MambaSplitConv1dScanCombinedFn``).
    mamba1
        u, delta, z and the output per channel, B and C, and the states (2 K fp32 numbers per
        channel and `SELECTIVE_CHUNK` tokens) (``ops/selective_scan_interface.py``,
        ``SelectiveScanFn``).
    lightning
        q, k, v (flash-linear-attention ``ops/simple_gla/chunk.py``, which
        ``ops/lightning_attn/chunk.py`` calls with a decay per head).
    """
    wide = STATE_BYTES
    keys = key_heads * key_dim
    values = heads * value_dim
    if kind == "gated_delta":
        inner = 2 * keys + values + heads + heads * chunk
        return inner * element_bytes + (2 * key_heads + heads) * wide
    if kind == "kimi_delta":
        inner = 2 * keys + values + heads * key_dim + heads + 2 * heads * chunk
        return inner * element_bytes + 2 * key_heads * wide
    if kind == "mamba2":
        return (3 * values + 2 * keys + heads) * element_bytes
    if kind == "mamba1":
        states = 2 * heads * key_dim * value_dim * wide / SELECTIVE_CHUNK
        return (4 * heads + 2 * keys) * element_bytes + states
    return (2 * keys + values) * element_bytes
