"""FLOP and states of recurrent mixers: formulas over plain numbers or arrays.

Letters: ``H`` heads (value heads; channels of Mamba-1), ``G`` key heads (groups of Mamba-2),
``K`` width of a key (``d_state`` of Mamba), ``V`` width of a value (``headdim`` of Mamba-2, 1 of
Mamba-1), ``C`` tokens of a chunk. Nothing here is compiled: who counts FLOP needs no Numba.
"""

from __future__ import annotations

from typing import Any

from perfmodel.kernels.recurrence import SCAN_OPERATIONS

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
