"""Model FLOPs per token, in the two published conventions.

Both count two FLOP per weight and token forward and four backward, the output
matrix included and the token table left out (Narayanan et al. 2021, eq. 3 without
recomputation). They differ in attention: "non-causal" counts the full square of
scores, "causal" only what a causal model needs, half of it. A sliding window
limits both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.model.build import LayerSpec, ModelSpec

FORWARD_AND_BACKWARD = 3.0


def matrix_parameters(model: ModelSpec, layer: LayerSpec) -> int:
    """Weights of one layer that multiply every token: no norms, no biases, active experts."""
    hidden = model.hidden_size
    spec, mlp = layer.attention, layer.mlp
    if spec.kind == "mla":
        query_in = spec.q_lora_rank or hidden
        projections = (
            (hidden * spec.q_lora_rank)
            + query_in * spec.heads * spec.head_dim
            + hidden * (spec.kv_lora_rank + spec.qk_rope_head_dim)
            + spec.kv_lora_rank * spec.heads * (spec.qk_nope_head_dim + spec.value_head_dim)
        )
    else:
        projections = hidden * spec.heads * spec.head_dim
        projections += hidden * spec.key_value_heads * (spec.head_dim + spec.value_head_dim)
    projections += spec.heads * spec.value_head_dim * hidden
    matrices = 3 if mlp.gated else 2
    if mlp.kind == "dense":
        return projections + matrices * hidden * mlp.intermediate_size
    width = mlp.experts_per_token * mlp.expert_intermediate_size + mlp.shared_intermediate_size
    return projections + matrices * hidden * width + hidden * mlp.experts


def attended_keys(
    layer: LayerSpec, sequence_length: ArrayLike, *, causal: bool
) -> NDArray[np.float64]:
    """Mean number of keys that a token meets under a convention, shape of `sequence_length`."""
    length = np.asarray(sequence_length, np.float64)
    window = float(layer.attention.window)
    if not window:
        return length / 2 if causal else length
    limited = np.minimum(length, window)
    # Causal: the first `window` tokens see half of it on average, the rest all of it.
    return limited * (1 - limited / (2 * length)) if causal else limited


def model_flops_per_token(
    model: ModelSpec, sequence_length: ArrayLike, *, causal: bool = True
) -> NDArray[np.float64]:
    """FLOP that one token needs in forward and backward, without recomputation.

    Parameters
    ----------
    model : ModelSpec
        Multi-token-prediction modules are counted, with their own logits.
    sequence_length : array_like, shape (n,)
        Tokens per sequence.
    causal : bool
        Which convention; see the module's docstring.

    Returns
    -------
    ndarray, shape (n,)
        FLOP per token.
    """
    length = np.asarray(sequence_length, np.float64)
    total = np.zeros(length.shape)
    for layer in (*model.layers, *model.mtp_layers):
        spec = layer.attention
        weights = matrix_parameters(model, layer)
        keys = attended_keys(layer, length, causal=causal)
        scores = spec.heads * (spec.head_dim + spec.value_head_dim) * keys
        total += 2.0 * weights + 2.0 * scores
    heads = 1 + len(model.mtp_layers)
    total += 2.0 * model.hidden_size * model.vocab_size * heads
    total += 2.0 * 2.0 * model.hidden_size**2 * len(model.mtp_layers)
    return FORWARD_AND_BACKWARD * total
