"""Parameters and activations that each part of a model keeps on a device.

Activation bytes follow Korthikanti et al. 2022 (arXiv:2205.05198, section 4 and
appendix), generalised to gated and grouped-query models, experts, latent
attention, and fused attention, which keeps one statistic per query instead of the
attention matrix.

Shape letters: T tokens on one device, h hidden size, a bytes of an activation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.base.precisions import OPERAND_BYTES, QUANTISED
from perfmodel.model.build import LayerSpec, ModelSpec, layer_parameters, norm_parameters
from perfmodel.operations.operations import LayerKeys, Size
from perfmodel.operations.parts import Part, padded_vocabulary
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import RECOMPUTE


@dataclass(frozen=True, slots=True)
class PartMemory:
    """What one part keeps on one device; every field is a column of shape (keys,).

    Attributes
    ----------
    weights : ndarray
        Parameters that every data-parallel rank holds alike [1].
    experts : ndarray
        Parameters of the routed experts that live here [1].
    activations : ndarray
        Bytes kept per micro-batch from its forward to its backward [B].
    working : ndarray
        Bytes that only exist while this part runs [B].
    logits : ndarray or float
        Bytes kept per micro-batch by the output, whose backward follows at once unless the
        schedule puts all forwards first [B].
    """

    weights: Column
    experts: Column
    activations: Column
    working: Column
    logits: Column | float = 0.0


def part_memory(model: ModelSpec, part: Part, keys: LayerKeys, framework: Framework) -> PartMemory:
    """Return what a part keeps, for every layer key."""
    zeros = np.zeros(len(keys))
    if part.layer is not None:
        return _layer_memory(model, part.layer, keys, framework)
    hidden = float(model.hidden_size)
    table = padded_vocabulary(model, keys, framework) * hidden
    if part.kind == "embedding":
        learned = model.max_positions if model.position_embedding == "learned" else 0
        norm = norm_parameters(model.layers[0].norm, model.hidden_size)
        extra = learned * hidden + (norm if model.embedding_norm else 0)
        mask = keys.stream_tokens * hidden if framework.dropout else zeros
        return PartMemory(table + extra, zeros, mask, zeros)
    if part.kind == "mtp":
        norms = 3 * norm_parameters(model.mtp_layers[0].norm, model.hidden_size)
        projection = 2.0 * hidden * hidden / keys.tensor + norms
        return PartMemory(projection, zeros, 4.0 * keys.stream_tokens * hidden * 2.0, zeros)
    logits = keys.tokens * padded_vocabulary(model, keys, framework)
    # Logits in 16 bits and their fp32 softmax, the latter once more where it is unfused.
    per_logit = 6.0 if framework.fused_cross_entropy else 10.0
    saved = 2.0 * keys.stream_tokens * hidden * framework.activation_bytes
    head = table + model.final_norm_parameters()
    return PartMemory(head, zeros, zeros, zeros, logits * per_logit + saved)


def shared_table(model: ModelSpec, keys: LayerKeys, framework: Framework) -> Column:
    """Parameters that a stage with embedding and output keeps once; 0 unless tied."""
    if not model.tied_embeddings:
        return np.zeros(len(keys))
    return padded_vocabulary(model, keys, framework) * model.hidden_size


def layer_weights(model: ModelSpec, layer: LayerSpec, keys: LayerKeys) -> tuple[Column, Column]:
    """Parameters of one layer on one device: (replicated over data ranks, experts)."""
    counted = layer_parameters(layer, model.hidden_size)
    spec = layer.attention
    # The down-projections of latent attention are not sharded.
    whole = 0
    if spec.kind == "mla":
        whole = model.hidden_size * (spec.q_lora_rank + spec.kv_lora_rank + spec.qk_rope_head_dim)
    sharded = counted.attention - whole + counted.mlp_dense
    weights = sharded / keys.tensor + whole + counted.router + counted.norms
    plane = keys.number("expert_parallel") * keys.number("expert_tensor_parallel")
    return weights, counted.experts / plane


def _layer_memory(
    model: ModelSpec, layer: LayerSpec, keys: LayerKeys, framework: Framework
) -> PartMemory:
    weights, experts = layer_weights(model, layer, keys)
    stored = framework.activation_bytes
    boundary = keys.stream_tokens * model.hidden_size * stored
    attention, attention_cheap = _attention_activations(model, layer, keys, framework)
    mlp, mlp_cheap, widest = _mlp_activations(model, layer, keys, framework)
    everything = attention + mlp
    level = keys.columns["recompute"]
    kept = np.where(level == RECOMPUTE.index("none"), everything, 0.0)
    kept += np.where(
        level == RECOMPUTE.index("selective"), everything - attention_cheap - mlp_cheap, 0.0
    )
    kept += np.where(level == RECOMPUTE.index("full"), boundary, 0.0)
    # Backward of one layer holds what was recomputed and the widest gradients.
    working = (everything - kept).clip(0.0) + 2.0 * widest
    return PartMemory(weights, experts, kept, working)


def _input_bytes(keys: LayerKeys, framework: Framework) -> Column:
    """Bytes of one stored input of a matrix product: only the column-wise copy is kept."""
    cast = {name: OPERAND_BYTES[name] for name in QUANTISED}
    return keys.by_precision(cast, framework.activation_bytes)


def _attention_activations(
    model: ModelSpec, layer: LayerSpec, keys: LayerKeys, framework: Framework
) -> tuple[Column, Column]:
    """Bytes kept by the attention block, and those that selective recompute drops."""
    spec = layer.attention
    stored, inputs = framework.activation_bytes, _input_bytes(keys, framework)
    tokens, own = keys.tokens, keys.stream_tokens
    hidden = float(model.hidden_size)
    heads = np.maximum(spec.heads / keys.tensor, 1.0)
    groups = np.maximum(spec.key_value_heads / keys.tensor, 1.0)
    norm_input, norm_output = own * hidden * stored, own * hidden * inputs
    mask = own * hidden if framework.dropout else np.zeros(len(keys))
    if spec.kind == "mla":
        groups = heads
        latent = own * (spec.q_lora_rank + spec.kv_lora_rank) * (stored + inputs)
        projected = tokens * heads * (2 * spec.head_dim + spec.value_head_dim) * stored
        cheap = projected + norm_output
    else:
        latent = np.zeros(len(keys))
        projected = tokens * (heads + groups) * spec.head_dim * stored
        projected = projected + tokens * groups * spec.value_head_dim * stored
        cheap = norm_output
    output = tokens * heads * spec.value_head_dim * stored
    output_copy = np.where(keys.low_precision > 0, output / stored * inputs, 0.0)
    kept = norm_input + norm_output + latent + projected + output + output_copy + mask
    if spec.qk_norm:  # queries and keys ahead of their norm
        kept = kept + tokens * (heads + groups) * spec.head_dim * stored
    if layer.norms > 2:
        kept = kept + norm_input  # input of the norm behind the block
    if framework.flash_attention:
        return kept + 4.0 * tokens * heads, cheap
    # Softmax output and, with dropout, its mask and dropped result (5 a s / h per token).
    length = keys.number("sequence_length")
    matrix = tokens * length * heads * (stored + (1.0 + stored if framework.dropout else 0.0))
    return kept + matrix, matrix


def _mlp_activations(
    model: ModelSpec, layer: LayerSpec, keys: LayerKeys, framework: Framework
) -> tuple[Column, Column, Column]:
    """Bytes kept by the MLP, those that selective recompute drops, and the widest tensor."""
    mlp = layer.mlp
    stored, inputs = framework.activation_bytes, _input_bytes(keys, framework)
    tokens, own = keys.tokens, keys.stream_tokens
    hidden = float(model.hidden_size)
    leading = 2.0 if mlp.gated else 1.0
    fused = framework.flash_attention  # generations of software: cheap recompute came with it

    def block(rows: Size, width: Size) -> tuple[Size, Size, Size]:
        before, after = rows * width * leading * stored, rows * width * inputs
        return before + after, after, before

    norm_input, norm_output = own * hidden * stored, own * hidden * inputs
    if layer.norms > 2:
        norm_input = 2.0 * norm_input  # also that of the norm behind the block
    mask = own * hidden if framework.dropout else np.zeros(len(keys))
    if mlp.kind == "dense":
        kept, activation, widest = block(tokens, mlp.intermediate_size / keys.tensor)
        cheap = activation + norm_output if fused else np.zeros(len(keys))
        return norm_input + norm_output + kept + mask, cheap, np.asarray(widest)
    inner = keys.number("expert_tensor_parallel")
    received = own * mlp.experts_per_token * inner
    kept, activation, widest = block(received, mlp.expert_intermediate_size / inner)
    # Permuted inputs of the experts, their outputs (the router's gradient needs them)
    # and the router's scores in fp32.
    kept = kept + received * hidden * inputs + own * mlp.experts_per_token * hidden * stored
    kept = kept + own * mlp.experts * 8.0
    if mlp.shared_intermediate_size:
        shared, shared_activation, _ = block(tokens, mlp.shared_intermediate_size / keys.tensor)
        kept, activation = kept + shared, activation + shared_activation
    cheap = activation + norm_output if fused else np.zeros(len(keys))
    widest = np.maximum(widest, received * hidden * stored)
    return norm_input + norm_output + kept + mask, cheap, np.asarray(widest)
