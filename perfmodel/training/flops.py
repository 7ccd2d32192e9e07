"""Model FLOPs per token, in the two published conventions, and parameters and FLOP of adapters.

Both conventions count two FLOP per weight and token forward and four backward, the output
matrix included and tables left out (Narayanan et al. 2021, eq. 3 without
recomputation). They differ in attention: "non-causal" counts the full square of
scores, "causal" only what a causal model needs, half of it. Windows, chunks and chosen
keys limit both. What chooses them counts forward only, since no gradient passes through a
choice: what trains an indexer is a loss of its own, of which the projection has the time.
Recurrences count what their chunked kernels compute, in both alike
(`perfmodel.compute.recurrence_counts`).

What adapters have and frozen weights save follows from the operations of one token on one device,
so that they cannot differ from them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.axes import encode
from perfmodel.base.columns import Column
from perfmodel.base.strategy_fields import FIELD_BY_NAME
from perfmodel.model.adapters import AdapterSpec, of_experts
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec
from perfmodel.model.pieces import Pieces
from perfmodel.model.recurrence import RecurrenceSpec
from perfmodel.model.spec import ModelSpec, TowerSpec
from perfmodel.operations.adapters import MARK, AdaptedList
from perfmodel.operations.attention_block import encoder_tokens, tower_tokens
from perfmodel.operations.layer_block import add_layer
from perfmodel.operations.operations import LAYER_KEY_FIELDS, Gemm, LayerKeys, Machine, Operation
from perfmodel.operations.recurrence_block import mixer_flops
from perfmodel.software.framework import load_framework

TOKENS = 1 << 20
"""Of the sequence from which is counted: enough for every expert to have many."""


def adapter_weights(operations: list[Operation], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the adapters' parameters among operations: of dense matrices, and of experts.

    Parameters
    ----------
    operations : list of Operation
        Of a part.
    size : int
        Layer keys.

    Returns
    -------
    dense, experts : ndarray, shape (size,)
    """
    found = np.zeros((2, size))
    for item in operations:
        if isinstance(item, Gemm) and item.phase == "backward_weight" and MARK in item.name:
            number = np.asarray(item.m) * item.n * item.batch * item.count
            found[int(of_experts(item.name))] += number
    return found[0], found[1]


def adapter_parameters(model: ModelSpec) -> int:
    """Return how many parameters all adapters of a model have; 0 without adapters."""
    if model.adapters is None:
        return 0
    layers = Counter((*model.layers, *model.mtp_layers))
    total = 0.0
    for layer, times in layers.items():
        dense, experts = adapter_weights(_one_token(model, layer, model.adapters), 1)
        total += times * float(dense[0] + experts[0])
    return round(total)


def adapter_flops(model: ModelSpec) -> float:
    """Return the FLOP of the adapters per token, forward; 0 without adapters."""
    if model.adapters is None:
        return 0.0
    total = 0.0
    for layer, times in Counter((*model.layers, *model.mtp_layers)).items():
        for item in _one_token(model, layer, model.adapters):
            if isinstance(item, Gemm) and item.phase == "forward" and MARK in item.name:
                work = 2.0 * np.asarray(item.m) * item.n * item.k * item.batch * item.count
                total += times * float(work.reshape(-1)[0]) / TOKENS
    return total


def _one_token(model: ModelSpec, layer: LayerSpec, adapters: AdapterSpec) -> list[Operation]:
    """List the operations of a layer on one device, where every token has its experts."""
    values = {name: FIELD_BY_NAME[name].default for name in LAYER_KEY_FIELDS}
    values |= {"sequence_parallel": False, "sequence_length": TOKENS}
    columns = {
        name: np.array([encode(name, value, FIELD_BY_NAME)]) for name, value in values.items()
    }
    plain = load_framework(
        "megatron", grouped_gemm=True, expert_dispatch="all_to_all", capacity_factor=0.0
    )
    ops = AdaptedList(LayerKeys(columns), plain, Machine(), adapters)
    add_layer(ops, model, layer)
    return ops.operations


FORWARD_AND_BACKWARD = 3.0


def products_of(pieces: Pieces) -> int:
    """Multiplications by weights per token of several pieces together."""
    return sum(piece.products for piece in pieces)


def matrix_parameters(model: ModelSpec, layer: LayerSpec) -> int:
    """Weights of one layer that multiply every token: no norms, no biases, active experts."""
    return products_of(tuple(piece for _, piece in layer.pieces(model.hidden_size)))


def attended_keys(spec: AttentionSpec, sequence_length: ArrayLike, *, causal: bool) -> Column:
    """Mean number of keys that a token meets under a convention.

    Parameters
    ----------
    spec : AttentionSpec
    sequence_length : array_like
        Tokens per sequence, keys of an encoder where `spec` is a cross attention.
    causal : bool
        Which convention; attention that is not causal meets all keys in both.

    Returns
    -------
    ndarray
        Shape of `sequence_length`. Compressed entries count as a key each.

    Notes
    -----
    Of S keys a causal token meets S/2 on average, of the last W ``W (1 - W/2S)``, in chunks
    of c ``c/2`` where c divides S, and k chosen ones ``k (1 - k/2S)``. Of S/r compressed
    entries likewise, all or k chosen ones.
    """
    length = np.asarray(sequence_length, np.float64)
    causal = causal and spec.causal and not spec.cross
    if spec.kind == "chunked":
        return _chunked_keys(length, float(spec.window), causal)
    choice = spec.indexer.top_k if spec.indexer is not None else 0
    if spec.compression is not None:
        near = _limited(length, spec.window, causal)
        return near + _limited(length / spec.compression.ratio, choice, causal)
    return _limited(length, choice or spec.window, causal)


def scored_keys(spec: AttentionSpec, sequence_length: ArrayLike, *, causal: bool) -> Column:
    """Mean number of keys that the indexer of a token scores; 0 where none stands."""
    length = np.asarray(sequence_length, np.float64)
    if spec.indexer is None or spec.indexer.shared:
        return np.zeros(length.shape)
    ratio = spec.compression.ratio if spec.compression is not None else 1
    return _limited(length / ratio, 0, causal and spec.causal)


def _limited(length: Column, limit: float, causal: bool) -> Column:
    """Mean number of keys among `length`, the last or best `limit` of them; 0 for no limit."""
    if not limit:
        return length / 2 if causal else length
    limited = np.minimum(length, float(limit))
    # Causal: the first `limit` tokens see half of it on average, the rest all of it.
    return limited * (1 - limited / (2 * length)) if causal else limited


def _chunked_keys(length: Column, chunk: float, causal: bool) -> Column:
    whole = np.floor(length / chunk)
    rest = length - whole * chunk
    keys = (whole * chunk**2 + rest**2) / length
    return keys / 2 if causal else keys


def model_flops_per_token(
    model: ModelSpec, sequence_length: ArrayLike, *, causal: bool = True, backward: bool = True
) -> Column:
    """FLOP that one token needs in forward and backward, without recomputation.

    Parameters
    ----------
    model : ModelSpec
        Multi-token-prediction modules are counted, with their own logits; towers whose tokens
        are stated, and an encoder, share theirs among the tokens of a sequence.
    sequence_length : array_like, shape (n,)
        Tokens per sequence.
    causal : bool
        Which convention; see the module's docstring.
    backward : bool
        Count backward too; otherwise forward alone.

    Returns
    -------
    ndarray, shape (n,)
        FLOP per token.
    """
    length = np.asarray(sequence_length, np.float64)
    encoded = encoder_tokens(model, length)
    total, choosing = np.zeros(length.shape), np.zeros(length.shape)
    counted: dict[int, tuple[Column, Column]] = {}
    for layer in (*model.layers, *model.mtp_layers):
        if id(layer) not in counted:
            counted[id(layer)] = _layer_flops(layer, model.hidden_size, length, encoded, causal)
        forward, without_gradient = counted[id(layer)]
        total += forward
        choosing += without_gradient
    heads = 1 + len(model.mtp_layers)
    total += 2.0 * model.table_width * model.vocab_size * heads
    total += 2.0 * 2.0 * model.hidden_size**2 * len(model.mtp_layers)
    total += 2.0 * products_of(model.edge_pieces())
    for tower in model.towers:
        tokens = tower_tokens(tower, length)
        total += tokens / length * _tower_flops(tower, tokens, causal)
    adapters = adapter_flops(model)
    if not backward:
        return total + adapters
    trained = FORWARD_AND_BACKWARD * total - (FORWARD_AND_BACKWARD - 1.0) * choosing
    if model.adapters is None:
        return trained
    return trained + FORWARD_AND_BACKWARD * adapters - _weight_gradients(model, length)


def _weight_gradients(model: ModelSpec, length: Column) -> Column:
    """FLOP per token that frozen weights save: the gradients of all weights but adapters'.

    What chooses keys has none in either case. Of towers that are no encoder all of backward is
    left out.
    """
    layers = (*model.layers, *model.mtp_layers)
    products = sum(
        piece.products
        for layer in layers
        for _, piece in layer.pieces(model.hidden_size)
        if not piece.name.startswith("index_")
    )
    heads = 1 + len(model.mtp_layers)
    products += model.table_width * model.vocab_size * heads + products_of(model.edge_pieces())
    products += 2 * model.hidden_size**2 * len(model.mtp_layers)
    found = np.full(length.shape, 2.0 * products)
    for tower in model.towers:
        tokens = tower_tokens(tower, length)
        if tower in model.encoders:
            pieces = [
                piece for layer in tower.layers for _, piece in layer.pieces(tower.hidden_size)
            ]
            found += tokens / length * 2.0 * products_of(tuple(pieces))
        else:
            backward = FORWARD_AND_BACKWARD - 1.0
            found += tokens / length * backward * _tower_flops(tower, tokens, causal=True)
    return found


def _layer_flops(
    layer: LayerSpec, hidden_size: int, length: Column, encoded: Column, causal: bool
) -> tuple[Column, Column]:
    """Forward FLOP of a layer per token, and those among them that only choose keys."""
    forward = np.full(
        length.shape, 2.0 * products_of(tuple(piece for _, piece in layer.pieces(hidden_size)))
    )
    choosing = np.zeros(length.shape)
    for part in layer.mixers:
        if isinstance(part, RecurrenceSpec):
            forward += mixer_flops(part)
        if not isinstance(part, AttentionSpec):
            continue
        keys = attended_keys(part, encoded if part.cross else length, causal=causal)
        forward += 2.0 * (part.heads * (part.head_dim + part.value_head_dim) * keys)
        if part.cross:  # keys and values are those of the encoder's tokens
            theirs = [x for x in part.pieces(hidden_size) if x.name in ("key", "value")]
            forward += 2.0 * products_of(tuple(theirs)) * (encoded / length - 1.0)
        if part.indexer is not None and not part.indexer.shared:
            indexer = part.indexer
            scores = indexer.heads * indexer.head_dim * scored_keys(part, length, causal=causal)
            forward += 2.0 * scores
            pieces = indexer.pieces(hidden_size, part.compression)
            choosing += 2.0 * (scores + products_of(pieces))
    mixed = layer.streams > 1 and layer.stream_mixing and not layer.stream_rank
    if mixed:  # m x m weights mix them behind every part
        blocks = len(layer.mixers) + len(layer.mlps)
        forward += 2.0 * blocks * layer.streams**2 * hidden_size
    return forward, choosing


def _tower_flops(tower: TowerSpec, tokens: Column, causal: bool) -> Column:
    """Forward FLOP of one token of a tower."""
    total = np.full(tokens.shape, 2.0 * products_of(tower.extra))
    if not np.any(tokens > 0):
        return total
    counted: dict[int, Column] = {}
    for layer in tower.layers:
        if id(layer) not in counted:
            counted[id(layer)] = _layer_flops(layer, tower.hidden_size, tokens, tokens, causal)[0]
        total += counted[id(layer)]
    return total
