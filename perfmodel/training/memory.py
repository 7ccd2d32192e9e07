"""Parameters and activations that each part of a model keeps on a device.

What layers keep for backward is in `perfmodel.training.activations` and the files beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.axes import columns_from_rows
from perfmodel.base.columns import Column
from perfmodel.base.strategy_fields import RECOMPUTE
from perfmodel.model.adapters import FROZEN_BYTES
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, Mixer, norm_parameters
from perfmodel.model.pieces import Piece
from perfmodel.model.recurrence import RecurrenceSpec
from perfmodel.model.spec import ModelSpec, TowerSpec
from perfmodel.operations.attention_block import encoder_tokens, tower_tokens
from perfmodel.operations.layer_block import blocks_of
from perfmodel.operations.operations import LAYER_KEY_FIELDS, LayerKeys, Operation, Size
from perfmodel.operations.parts import BEHIND_LAYERS, Part, padded_vocabulary
from perfmodel.software.framework import Framework
from perfmodel.software.modules import SAVED, offloaded_inputs
from perfmodel.training.activations import Kept, Scope, masks_kept, norms_kept, streams_kept
from perfmodel.training.adapters import WIDE, frozen_kept
from perfmodel.training.block_activations import (
    attention_kept,
    context_working,
    convolution_kept,
    mlp_kept,
    recurrence_kept,
)
from perfmodel.training.flops import adapter_weights


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
        Bytes that only exist while this part goes backward [B].
    offloadable : ndarray
        Bytes of `activations` that may wait elsewhere [B].
    logits : ndarray or float
        Bytes kept per micro-batch by the output, whose backward follows at once unless the
        schedule puts all forwards first [B].
    loss : ndarray or float
        Bytes beside them while the loss goes forward and backward [B].
    loss_idle : ndarray or float
        Bytes freed ahead of those, in blocks that the allocator cannot use for them [B].
    logits_held : ndarray or float
        Of the logits what stays until the step has ended [B].
    """

    weights: Column
    experts: Column
    activations: Column
    working: Column
    offloadable: Column
    logits: Column | float = 0.0
    loss: Column | float = 0.0
    loss_idle: Column | float = 0.0
    logits_held: Column | float = 0.0


class Parameters(NamedTuple):
    """Parameters of a part on one device; columns of shape (keys,).

    Frozen ones that are stored in fewer bytes count for as many as take that room in 16 bits, which
    is what memory and gathers ask for.
    """

    weights: Column  # that every data-parallel rank holds alike
    experts: Column
    trained: Column  # of both, what has gradients
    trained_experts: Column


def parameters_of(
    model: ModelSpec, part: Part, operations: Sequence[Operation], kept: PartMemory
) -> Parameters:
    """Return the parameters of a part: all of them trained, or frozen beside adapters.

    Parameters
    ----------
    model : ModelSpec
    part : Part
    operations : sequence of Operation
        Of the part.
    kept : PartMemory
        With the model's own parameters.
    """
    if model.adapters is None:
        return Parameters(kept.weights, kept.experts, kept.weights, kept.experts)
    dense, experts = adapter_weights(list(operations), kept.weights.size)
    stored = model.adapters.frozen if part.layer is not None else ""
    share = FROZEN_BYTES[stored] / WIDE if stored else 1.0
    return Parameters(share * kept.weights + dense, share * kept.experts + experts, dense, experts)


def part_memory(model: ModelSpec, part: Part, keys: LayerKeys, framework: Framework) -> PartMemory:
    """Return what a part keeps, for every layer key."""
    if part.kind == "group":
        return _group_memory(model, part, keys, framework)
    if part.layer is not None:
        found = _layer_memory(model, part.layer, part.keys(keys), framework)
        if not part.grouped:
            return found
        zeros = np.zeros(len(keys))  # what it keeps is counted with its group
        return replace(found, activations=zeros, working=zeros, offloadable=zeros)
    return {"embedding": _embedding_memory, "output": _output_memory, "mtp": _prediction_memory}[
        part.kind
    ](model, keys, framework)


def _embedding_memory(model: ModelSpec, keys: LayerKeys, framework: Framework) -> PartMemory:
    """Tables and what is made of them ahead of the first layer."""
    zeros = np.zeros(len(keys))
    hidden = float(model.hidden_size)
    learned = model.max_positions if model.position_embedding == "learned" else 0
    norm = norm_parameters(model.layers[0].norm, model.hidden_size)
    weights = _token_table(model, keys, framework) + learned * hidden
    weights = weights + (norm if model.embedding_norm else 0)
    ahead = [piece for piece in model.edge_pieces() if piece.name not in BEHIND_LAYERS]
    kept = Scope(keys, framework).products(ahead)
    # Rows of tables beside that of the tokens are factors in every layer (Gemma 4).
    rows = sum(piece.outputs for piece in ahead if piece.kind == "table")
    kept = kept + keys.stream_tokens * rows * framework.activation_bytes
    kept = kept + (keys.stream_tokens * hidden if framework.dropout else 0.0)
    weights = weights + pieces_weights(ahead, keys)
    found = PartMemory(weights, zeros, kept + zeros, zeros, _all_or_none(kept + zeros, framework))
    for tower in model.towers:
        tokens = tower_tokens(tower, keys.number("sequence_length"))
        if np.all(tokens > 0):  # one whose tokens nobody states is not trained along
            lengths = {**keys.columns, "sequence_length": tokens.astype(np.int64)}
            found = _together(found, _tower_memory(tower, LayerKeys(lengths), framework))
    return found


def _together(one: PartMemory, other: PartMemory) -> PartMemory:
    """What two things of one part keep, which run one after the other."""
    return PartMemory(
        one.weights + other.weights,
        one.experts + other.experts,
        one.activations + other.activations,
        np.maximum(one.working, other.working),
        one.offloadable + other.offloadable,
    )


def _all_or_none(kept: Column, framework: Framework) -> Column:
    """Return what may wait elsewhere of what is of no layer's module."""
    return kept * (not offloaded_inputs(framework.offload_modules))


def _prediction_memory(model: ModelSpec, keys: LayerKeys, framework: Framework) -> PartMemory:
    """Norms and projection of a multi-token-prediction module."""
    zeros = np.zeros(len(keys))
    hidden = float(model.hidden_size)
    norms = 3 * norm_parameters(model.mtp_layers[0].norm, model.hidden_size)
    projection = 2.0 * hidden * hidden / keys.tensor_parallel + norms
    kept = 4.0 * keys.stream_tokens * hidden * 2.0
    return PartMemory(projection, zeros, kept, zeros, _all_or_none(kept, framework))


def _output_memory(model: ModelSpec, keys: LayerKeys, framework: Framework) -> PartMemory:
    """The final norm, the output matrix, and the logits with their loss."""
    zeros = np.zeros(len(keys))
    at = Scope(keys, framework)
    vocabulary = padded_vocabulary(model, keys, framework)
    logits = keys.tokens * vocabulary
    working = np.full(len(keys), framework.loss_bytes)
    if framework.sharded_loss_bytes:
        working = np.where(keys.tensor_parallel > 1, framework.sharded_loss_bytes, working)
    hidden = keys.stream_tokens * float(model.hidden_size)
    behind = [piece for piece in model.edge_pieces() if piece.name in BEHIND_LAYERS]
    kept = at.norm_input(hidden, model.layers[-1].norm) + at.products(behind)
    kept = kept + at.gathered * float(model.hidden_size) * at.stored
    table = _token_table(model, keys, framework)
    weights = table + model.final_norm_parameters()
    adds = framework.gradient_accumulation == "fused" and model.adapters is None
    empty = framework.empty_gradient_bytes * table * adds
    weights = weights + (vocabulary if model.lm_head_bias else 0)
    return PartMemory(
        weights + pieces_weights(behind, keys),
        zeros,
        zeros,
        zeros,
        zeros,
        logits * framework.logit_bytes + kept,
        logits * working + empty,
        logits * framework.idle_logit_bytes,
        logits * framework.held_logit_bytes,
    )


def _token_table(model: ModelSpec, keys: LayerKeys, framework: Framework) -> Column:
    """Numbers of the token table, or of the output matrix, on one device."""
    return padded_vocabulary(model, keys, framework) * model.table_width


def shared_table(model: ModelSpec, keys: LayerKeys, framework: Framework) -> Column:
    """Parameters that a stage with embedding and output keeps once; 0 unless tied."""
    if not model.tied_embeddings:
        return np.zeros(len(keys))
    return _token_table(model, keys, framework)


def layer_weights(hidden_size: int, layer: LayerSpec, keys: LayerKeys) -> tuple[Column, Column]:
    """Parameters of one layer on one device: (replicated over data ranks, experts)."""
    places = list(layer.pieces(hidden_size))
    experts = sum(piece.parameters for place, piece in places if place == "experts")
    plane = keys.number("expert_parallel") * keys.number("expert_tensor_parallel")
    weights = pieces_weights((piece for place, piece in places if place != "experts"), keys)
    return weights, experts / plane


def pieces_weights(pieces: Iterable[Piece], keys: LayerKeys) -> Column:
    """Parameters of pieces on one device, as tensor parallelism splits them."""
    pieces = tuple(pieces)
    sharded = sum(piece.sharded for piece in pieces)
    return sharded / keys.tensor_parallel + (sum(piece.parameters for piece in pieces) - sharded)


def boundary_bytes(model: ModelSpec, keys: LayerKeys, element_bytes: float = 2.0) -> Column:
    """Bytes of one micro-batch between two layers on one device, all residual streams [B].

    Pipeline stages send activations in 16 bits.
    """
    return keys.stream_tokens * model.hidden_size * model.streams * element_bytes


def layer_kept(at: Scope, layer: LayerSpec, hidden: float, encoded: Size = 1.0) -> Kept:
    """Return what one layer keeps without recomputation, and what is cheap of it.

    Parameters
    ----------
    at : Scope
    layer : LayerSpec
    hidden : float
        Width of the residual stream.
    encoded : float or ndarray
        Tokens of an encoder per token.
    """
    kept = norms_kept(at, layer, hidden) + masks_kept(at, layer, hidden)
    kept = kept + streams_kept(at, layer, hidden) + Kept(at.products(layer.extra))
    stream = at.own * hidden * at.stored
    kept = kept + Kept(outputs={"save_out_proj": len(layer.mixers) * stream})
    if layer.norms >= 2 * len(blocks_of(layer)):  # otherwise nobody reads it again
        kept = kept + Kept(outputs={"save_mlpwo": len(layer.mlps) * stream})
    blocks = [mlp_kept(at, mlp, hidden) for mlp in layer.mlps]
    mixers = [_mixer_kept(at, mixer, encoded) for mixer in layer.mixers]
    if blocks:  # the widest gradients are theirs
        mixers = [replace(mixer, widest=0.0) for mixer in mixers]
    return sum([*mixers, *blocks], kept)


INPUT = "decoder_layer_input"
"""A layer's input, among what `saved_bytes` tells."""


def saved_bytes(model: ModelSpec, framework: Framework) -> dict[str, float]:
    """Return what a model's layers keep of every output that a policy may save, and of their input.

    Parameters
    ----------
    model : ModelSpec
    framework : Framework

    Returns
    -------
    dict of str to float
        Words of `perfmodel.software.modules.SAVED`, and `INPUT` -> of one token on one device,
        all layers together [B].
    """
    columns = columns_from_rows([{"sequence_length": 1}])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    at, hidden = Scope(keys, framework), float(model.hidden_size)
    found = dict.fromkeys((*SAVED, INPUT), 0.0)
    for layer, times in Counter(model.layers).items():
        for word, size in layer_kept(at, layer, hidden).outputs.items():
            found[word] += times * float(np.ravel(size)[0])
        found[INPUT] += times * float(boundary_bytes(model, keys, framework.activation_bytes)[0])
    return found


def waiting_share(
    model: ModelSpec, framework: Framework, saved: Sequence[str], waiting: Sequence[str]
) -> float:
    """Return the share of what layers keep that waits in the host's memory.

    Parameters
    ----------
    model : ModelSpec
    framework : Framework
    saved : sequence of str
        Outputs that are kept beside the layers' input, words of
        `perfmodel.software.modules.SAVED`.
    waiting : sequence of str
        Those of them, or the input (`INPUT`), that wait there.
    """
    if not waiting:
        return 0.0
    sizes = saved_bytes(model, framework)
    return sum(sizes[name] for name in waiting) / sum(sizes[name] for name in (INPUT, *saved))


def _mixer_kept(at: Scope, mixer: Mixer, encoded: Size) -> Kept:
    if isinstance(mixer, AttentionSpec):
        return attention_kept(at, mixer, encoded)
    if isinstance(mixer, RecurrenceSpec):
        return recurrence_kept(at, mixer)
    return convolution_kept(at, mixer)


def _layer_memory(
    model: ModelSpec, layer: LayerSpec, keys: LayerKeys, framework: Framework
) -> PartMemory:
    weights, experts = layer_weights(model.hidden_size, layer, keys)
    at = Scope(keys, framework)
    boundary = boundary_bytes(model, keys, framework.activation_bytes)
    found = _trained_kept(model, layer, at)
    return PartMemory(weights, experts, *_backward(model, (layer,), at, found, boundary))


def _backward(
    model: ModelSpec, layers: Sequence[LayerSpec], at: Scope, found: Kept, boundary: Column
) -> tuple[Column, Column, Column]:
    """As `_recomputed`, of layers that are recomputed together, with what lives beside a pass."""
    kept, working, waiting = _recomputed(at, found, boundary)
    beside = np.zeros(len(at.keys))
    for layer in layers:  # or attention, before the widest gradients of the layer
        mixers = [mixer for mixer in layer.mixers if isinstance(mixer, AttentionSpec)]
        wider = [np.maximum(context_working(at, mixer) - found.widest, 0.0) for mixer in mixers]
        beside = np.maximum(beside, sum(wider, np.zeros(len(at.keys))))
    return kept, working + gathered_working(at, model.hidden_size) + beside, waiting


def gathered_working(at: Scope, hidden: int) -> Column:
    """Bytes of whole hidden states in the backward of a layer with sequence parallelism.

    The gradient of a column-parallel input, ahead of its reduction and scatter; that input, where
    it is gathered again for the gradient of the weights; and what global buffers keep.
    """
    whole = np.where(at.tokens > at.own, at.tokens * float(hidden), 0.0)
    again = 0.0 if at.framework.keeps_gathered_inputs else at.inputs
    return whole * ((1.0 + at.framework.gather_buffers) * at.stored + again)


def _trained_kept(model: ModelSpec, layer: LayerSpec, at: Scope) -> Kept:
    """Return what one layer keeps, perhaps frozen beside adapters."""
    length = at.keys.number("sequence_length")
    encoded = encoder_tokens(model, length) / length
    found = layer_kept(at, layer, float(model.hidden_size), encoded)
    if model.adapters is None:
        return found
    return found + frozen_kept(at, model.adapters, layer, float(model.hidden_size))


def _group_memory(
    model: ModelSpec, part: Part, keys: LayerKeys, framework: Framework
) -> PartMemory:
    """Return what layers keep that are recomputed together: the input of the first.

    Their backward holds what all of them keep, and the widest gradients of one.
    """
    at, zeros = Scope(keys, framework), np.zeros(len(keys))
    each = {layer: _trained_kept(model, layer, at) for layer in set(part.members)}
    found = sum((each[layer] for layer in part.members), Kept())
    boundary = boundary_bytes(model, keys, framework.activation_bytes)
    return PartMemory(zeros, zeros, *_backward(model, part.members, at, found, boundary))


def _recomputed(at: Scope, found: Kept, boundary: Column) -> tuple[Column, Column, Column]:
    """Bytes that a layer keeps at its level of recomputation, those of its backward alone.

    Third, those of the former that may wait elsewhere: all, or the inputs of some modules. Of a
    layer that is computed again only its own input is kept, that of its first norm.
    """
    level = at.keys.columns["recompute"]
    kept = np.where(level == RECOMPUTE.index("none"), found.everything, 0.0)
    selective = found.selective(at.policy, boundary)
    kept += np.where(level == RECOMPUTE.index("selective"), selective, 0.0)
    kept += np.where(level == RECOMPUTE.index("full"), boundary, 0.0)
    # Backward of one layer holds what was recomputed, and the gradients of the residual stream and
    # of the widest tensor: what the product behind that read is freed as its own is made.
    # Of a layer that is repeated whole the output is there beside them (torch.utils.checkpoint).
    output = np.where(level == RECOMPUTE.index("full"), boundary, 0.0)
    working = (found.everything - kept).clip(0.0) + found.widest + boundary + output
    words = offloaded_inputs(at.framework.offload_modules)
    if not words:
        return kept, working, kept
    whole = at.policy.alternate or at.policy.saved
    waiting = np.select(
        [level == RECOMPUTE.index("full"), level == RECOMPUTE.index("selective")],
        [boundary * ("attn_norm" in words), found.waiting(words, None if whole else at.policy)],
        found.waiting(words),
    )
    return kept, working, np.minimum(waiting, kept)


def _tower_memory(tower: TowerSpec, keys: LayerKeys, framework: Framework) -> PartMemory:
    """A stack of layers ahead of the first, with as many tokens as the keys say."""
    at, hidden = Scope(keys, framework), float(tower.hidden_size)
    norm = norm_parameters(tower.layers[-1].norm, tower.hidden_size) if tower.layers else 0
    weights = pieces_weights(tower.extra, keys) + (norm if tower.final_norm else 0)
    kept = at.products(tower.extra) + np.zeros(len(keys))
    waiting = _all_or_none(kept, framework)
    experts, working = np.zeros(len(keys)), np.zeros(len(keys))
    for layer, times in Counter(tower.layers).items():
        own, routed = layer_weights(tower.hidden_size, layer, keys)
        weights, experts = weights + times * own, experts + times * routed
        boundary = at.own * hidden * at.stored
        layers, alone, inputs = _recomputed(at, layer_kept(at, layer, hidden), boundary)
        kept, working = kept + times * layers, np.maximum(working, alone)
        waiting = waiting + times * inputs
    return PartMemory(weights, experts, kept, working, waiting)
