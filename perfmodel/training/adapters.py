"""What frozen weights and their adapters keep on a device.

Frozen products keep no input: it is needed for the gradient of weights alone. Adapters keep theirs
in 16 bits, and what lies between their two matrices.
"""

from __future__ import annotations

import numpy as np

from perfmodel.model.adapters import AdapterSpec, layer_products, of_experts
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.operations.layer_block import blocks_of, norm_modules
from perfmodel.operations.mlp_block import expert_loads, mlp_module
from perfmodel.operations.operations import Size
from perfmodel.training.activations import Kept, Scope

WIDE = 2.0  # bytes of a weight in 16 bits, and of what an adapter reads


def frozen_kept(at: Scope, spec: AdapterSpec, layer: LayerSpec, hidden: float) -> Kept:
    """Return how much more a layer keeps where its weights are frozen beside adapters.

    That is negative: inputs of products that no adapter reads are not kept. A column-parallel
    adapter keeps its input as it was gathered over the tensor ranks, in 16 bits. Mixers with a
    state, and experts without adapters, keep what they keep when they are trained.
    """
    found = Kept(_inside(at, spec, layer))
    block_input = at.own * hidden
    for block, products in zip(blocks_of(layer), _inputs_of_blocks(layer), strict=False):
        read = at.tokens * hidden * WIDE if any(map(spec.covers, products)) else 0.0
        found = found + _labelled(read - block_input * at.inputs, *norm_modules(block))
    for mixer in layer.mixers:
        if isinstance(mixer, AttentionSpec):
            found = found + Kept(_attention(at, spec, mixer))
    for mlp in layer.mlps:
        found = found + _activated(at, spec, mlp).inside(mlp_module(mlp))
    return found


def _labelled(size: Size, *modules: str) -> Kept:
    return Kept(size, {modules: size})


def _inputs_of_blocks(layer: LayerSpec) -> list[tuple[str, ...]]:
    """Return the products that read each block's input: one normalised tensor each."""
    products = tuple(layer_products(layer))
    first = ("attention.qkv", "attention.query", "attention.query_down", "attention.key_value_down")
    mixers = (*first, "recurrence.input", "convolution.input")
    found = []
    if layer.mixers:
        found.append(tuple(name for name in products if name in mixers))
    if layer.mlps:
        found.append(tuple(name for name in products if name in ("mlp.up", "mlp.shared.up")))
    return found


def _attention(at: Scope, spec: AdapterSpec, mixer: AttentionSpec) -> Size:
    """Inputs of the output projection, cast, and of projections out of latents."""
    output = at.tokens * at.shard(mixer.heads) * mixer.value_head_dim
    latents = at.own * (mixer.q_lora_rank + mixer.kv_lora_rank)
    adapted = spec.covers("attention.query_up") or spec.covers("attention.key_value_up")
    change = latents * (WIDE * adapted - at.inputs)
    if mixer.output_gate == "none" and not mixer.output_groups:
        # What the kernel put out is kept in any case, a cast copy of it is not.
        return change - np.where(at.keys.low_precision > 0, output * at.inputs, 0.0)
    return change + output * (WIDE * spec.covers("attention.output") - at.inputs)


def _activated(at: Scope, spec: AdapterSpec, mlp: MlpSpec) -> Kept:
    """Inputs of the second products of a feed-forward block, and of experts' first ones."""

    def kept(product: str, elements: Size) -> Size:
        return elements * (WIDE * spec.covers(product) - at.inputs)

    if mlp.kind == "dense":
        outputs = at.tokens * mlp.intermediate_size / at.keys.tensor_parallel
        return _labelled(kept("mlp.down", outputs), "activation")
    width = mlp.expert_intermediate_size / at.keys.number("expert_tensor_parallel")
    rows = _received(at, mlp) * width
    change = _labelled(kept("mlp.experts_down", rows), "moe_act")
    if mlp.shared_intermediate_size:
        width = mlp.shared_intermediate_size / at.keys.tensor_parallel
        down = kept("mlp.shared.down", at.tokens * width)
        change = change + _labelled(down, "shared_experts", "activation")
    return change


def _inside(at: Scope, spec: AdapterSpec, layer: LayerSpec) -> Size:
    """What lies between the two matrices of every adapter."""
    routed: Size = sum(_received(at, mlp) for mlp in layer.mlps if mlp.kind == "moe")
    return sum(
        (routed if of_experts(product) else at.tokens) * float(spec.rank_of(product)) * WIDE
        for product in layer_products(layer)
        if spec.covers(product)
    )


def _received(at: Scope, mlp: MlpSpec) -> Size:
    """Rows of the experts of a device."""
    inner = at.keys.number("expert_tensor_parallel")
    _, held = expert_loads(at.framework, mlp, at.keys.number("expert_parallel"))
    return at.own * mlp.experts_per_token * inner * held
