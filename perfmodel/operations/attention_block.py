"""Operations of attention in one layer.

Shape letters: T tokens on this device, h hidden size, a query heads, g key-value
heads, d and v head dimensions of keys and values, t tensor-parallel degree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.stream_catalogue import composed_norm, composed_rotary, elementwise, traffic
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.spec import ModelSpec, TowerSpec
from perfmodel.operations.context_block import (
    context_communication,
    exchanges_heads,
    gather_keys,
    remote_work,
)
from perfmodel.operations.operation_list import COMPOSED_LAUNCHES, OperationList
from perfmodel.operations.operations import Attention, Gemm, Role, Stream
from perfmodel.operations.sparse_block import (
    absorbs_keys,
    add_compression,
    add_indexer,
    add_sparse_core,
)

CORE = "attention.core"
RING_STEP = "attention.core_remote"
MATRIX_ALIGNMENT = 16
"""Bytes to which every matrix of a batched product must be aligned for matrix cores (NVIDIA,
"Matrix Multiplication Background", requirements of Tensor Cores). Unfused attention takes each head
out of a wider row: a head of 108 numbers begins anywhere, and its products run on general cores.
Fused kernels pad the head instead."""


def add_attention(ops: OperationList, model: ModelSpec, spec: AttentionSpec) -> None:
    """Add projections, rotary embedding, the attention itself and their communication."""
    hidden = float(model.hidden_size)
    tokens = ops.keys.tokens
    heads = np.maximum(spec.heads / ops.keys.tensor_parallel, 1.0)
    groups = np.maximum(spec.key_value_heads / ops.keys.tensor_parallel, 1.0)
    if spec.cross:
        _cross_projections(ops, model, spec, heads, groups)
    elif spec.kind == "mla":
        _latent_projections(ops, hidden, spec)
        groups = heads
    else:
        _projections(ops, hidden, spec, heads, groups)
    if spec.compression is not None:
        add_compression(ops, hidden, spec, spec.compression)
    if spec.indexer is not None and not spec.indexer.shared:
        add_indexer(ops, hidden, spec, spec.indexer)
    if spec.qk_norm:
        _head_norms(ops, spec, heads, groups)
    if model.position_embedding == "rope" and not spec.cross:
        rotated = spec.qk_rope_head_dim if spec.kind == "mla" else spec.head_dim
        shared = 1.0 if spec.kind == "mla" else 0.0 if spec.shared_keys else groups
        fused = ops.framework.fused_norm_and_rotary
        composed = [traffic(composed_rotary(1, backward=b)) for b in (False, True)]
        forward, backward = ((2.0, 2.0), (2.0, 2.0)) if fused else composed
        ops.stream(
            "attention.rope",
            tokens * (heads + shared) * rotated,
            forward,
            backward,
            launches=2.0 if fused else 2.0 * COMPOSED_LAUNCHES,
            module="mla_up_proj" if spec.kind == "mla" else "",
        )
    if ops.framework.copies_heads and not spec.cross:
        _head_copies(ops, spec, heads, groups)
    if spec.sparse:
        add_sparse_core(ops, spec, heads, groups)
    elif spec.cross:
        _cross_core(ops, model, spec, heads, groups)
    elif ops.framework.flash_attention:
        _flash_core(ops, spec, heads, groups)
    else:
        _unfused_core(ops, spec, heads, groups)
    if spec.output_gate != "none":
        _output_gate(ops, hidden, spec, heads)
    ops.products("attention", spec.extra)
    with ops.in_role(Role.ATTENTION_OUTPUT):
        _output(ops, hidden, spec, heads)


def _projections(
    ops: OperationList, hidden: float, spec: AttentionSpec, heads: Column, groups: Column
) -> None:
    """Project to queries, keys and values in one product, as far as a layer has them."""
    tokens = ops.keys.tokens
    widths = (spec.head_dim,) if spec.key_is_value else (spec.head_dim, spec.value_head_dim)
    direct = [] if spec.shared_keys else [groups * width for width in widths]
    keys, queries = sum(direct, np.zeros(1)), heads * spec.head_dim
    gate = heads * spec.value_head_dim if spec.output_gate == "channel" else 0.0
    ops.enter_tensor_parallel("attention.input", hidden, "attention.qkv")
    if spec.q_lora_rank:
        rank, own = float(spec.q_lora_rank), ops.keys.stream_tokens
        ops.linear("attention.query_down", own, hidden, rank)
        ops.stream("attention.query_norm", own * rank, (2, 2), (4, 2))
        ops.enter_tensor_parallel("attention.query", rank, "attention.query_up")
        ops.linear("attention.query_up", tokens, rank, queries + gate)
    else:
        direct = [queries + gate, *direct]
    if direct:
        ops.linear("attention.qkv", tokens, hidden, sum(direct), matrices=direct)
    # Queries, keys and values are views of one product where they are fused, and copies
    # where they are not; their gradients are always written back into one tensor.
    copied = (0, 0) if ops.framework.fused_elementwise else (2, 2)
    ops.stream("attention.split_qkv", tokens * (queries + keys + gate), copied, (2, 2))


def _head_norms(ops: OperationList, spec: AttentionSpec, heads: Column, groups: Column) -> None:
    """Normalise queries and keys of every head; those of an earlier layer already are."""
    normed = groups * (0.0 if spec.shared_keys else 1.0)
    launches = 0.0 if spec.shared_keys else 1.0
    if spec.qk_norm_scope != "keys":
        normed, launches = heads + normed, launches + 1.0
    elements = ops.keys.tokens * normed * spec.head_dim
    forward, backward = (2.0, 2.0), (4.0, 2.0)
    if not ops.framework.fused_norm_and_rotary:
        forward, backward = (traffic(composed_norm(1, backward=b)) for b in (False, True))
        launches *= COMPOSED_LAUNCHES
    ops.stream("attention.qk_norm", elements, forward, backward, launches=max(launches, 1.0))


def _head_copies(ops: OperationList, spec: AttentionSpec, heads: Column, groups: Column) -> None:
    """Turn keys and values to the order of attention's kernels, and its output back.

    Keys and values are joined, then turned; their gradients are written into one tensor again.
    The output is turned once forward; backward turns its gradient, and what was kept of it.
    """
    tokens = ops.keys.tokens
    joined = tokens * groups * (spec.head_dim + spec.value_head_dim)
    ops.stream("attention.join_keys", joined, (4, 4), (2, 2), launches=2.0)
    turned = tokens * heads * spec.value_head_dim
    ops.stream("attention.turn_output", turned, (2, 2), (4, 4))


def _output_gate(ops: OperationList, hidden: float, spec: AttentionSpec, heads: Column) -> None:
    """Scale what comes out by the sigmoid of a gate, one per channel or per head."""
    tokens = ops.keys.tokens
    if spec.output_gate == "head":
        ops.linear("attention.gate", tokens, hidden, heads)
    forward, backward = (traffic(elementwise(x, 1.0)) for x in ("gated", "gated_backward"))
    if spec.output_gate == "head":  # the gates themselves are few
        forward, backward = (2.0, 2.0), (4.0, 2.0)
    elements = tokens * heads * spec.value_head_dim
    ops.stream("attention.gated", elements, forward, backward, flops=6.0)


def _output(ops: OperationList, hidden: float, spec: AttentionSpec, heads: Column) -> None:
    """Project heads back to the hidden size, perhaps through a low rank in groups of them."""
    width = heads * spec.value_head_dim
    if spec.output_groups:
        grouped = np.maximum(spec.output_groups / ops.keys.tensor_parallel, 1.0)
        rank = float(spec.output_lora_rank)
        ops.linear("attention.output_down", ops.keys.tokens, width / grouped, rank, batch=grouped)
        width = grouped * rank
    ops.linear("attention.output", ops.keys.tokens, width, hidden)
    ops.leave_tensor_parallel("attention.output", hidden, "attention.output")


def _latent_projections(ops: OperationList, hidden: float, spec: AttentionSpec) -> None:
    """Down- and up-projections of multi-head latent attention (arXiv:2405.04434, §2.1).

    The down-projections are not sharded: every device does its own part of the
    residual stream, and the short latents are gathered instead of the hidden state.
    """
    tokens, own = ops.keys.tokens, ops.keys.stream_tokens
    heads = np.maximum(spec.heads / ops.keys.tensor_parallel, 1.0)
    latent = float(spec.kv_lora_rank + spec.qk_rope_head_dim)
    if spec.q_lora_rank:
        ops.linear("attention.query_down", own, hidden, float(spec.q_lora_rank))
        ops.stream("attention.query_norm", own * spec.q_lora_rank, (2, 2), (4, 2))
        latent += spec.q_lora_rank
    ops.linear(
        "attention.key_value_down", own, hidden, float(spec.kv_lora_rank + spec.qk_rope_head_dim)
    )
    ops.stream("attention.key_value_norm", own * spec.kv_lora_rank, (2, 2), (4, 2))
    query_inputs = float(spec.q_lora_rank) or hidden
    gate = spec.output_gate != "none"
    gathered = latent + hidden if gate or not spec.q_lora_rank else latent
    width = heads * spec.head_dim
    if spec.output_gate == "channel":
        width = width + heads * spec.value_head_dim
    ops.enter_tensor_parallel("attention.input", gathered, "attention.query_up")
    ops.linear("attention.query_up", tokens, query_inputs, width, module="mla_up_proj")
    if absorbs_keys(spec):
        # Queries go into latent space instead, where keys and values are one (arXiv:2405.04434,
        # §2.1.2); `add_sparse_core` takes its results back.
        nope, rank = float(spec.qk_nope_head_dim), float(spec.kv_lora_rank)
        ops.linear("attention.query_latent", tokens, nope, rank, batch=heads, module="mla_up_proj")
        return
    ops.linear(
        "attention.key_value_up",
        tokens,
        float(spec.kv_lora_rank),
        heads * (spec.qk_nope_head_dim + spec.value_head_dim),
        module="mla_up_proj",
    )
    # Keys are assembled from their two parts, and one rotary part is copied to all heads.
    ops.stream(
        "attention.assemble_keys",
        tokens * heads * spec.head_dim,
        (2, 2),
        (2, 2),
        module="mla_up_proj",
    )


def _cross_projections(
    ops: OperationList, model: ModelSpec, spec: AttentionSpec, heads: Column, groups: Column
) -> None:
    """Project queries of these tokens, and keys and values of an encoder's."""
    keys = ops.keys
    hidden = float(model.hidden_size)
    length = keys.number("sequence_length")
    encoded = encoder_tokens(model, length) / length
    ops.enter_tensor_parallel("attention.input", hidden, "attention.query")
    ops.linear("attention.query", keys.tokens, hidden, heads * spec.head_dim)
    width = groups * (spec.head_dim + spec.value_head_dim)
    ops.enter_tensor_parallel("attention.encoded", hidden * encoded, "attention.key_value")
    ops.linear("attention.key_value", keys.tokens * encoded, hidden, width)


def _cross_core(
    ops: OperationList, model: ModelSpec, spec: AttentionSpec, heads: Column, groups: Column
) -> None:
    """Attention of this rank's tokens to all of an encoder's, gathered from context ranks."""
    keys = ops.keys
    length, degree = keys.number("sequence_length"), keys.number("context_parallel")
    encoded = encoder_tokens(model, length)
    for phase, backward in (("forward", False), ("backward_input", True)):
        ops.add(
            Attention(
                "attention.cross",
                phase,
                keys.number("micro_batch_size"),
                length / degree,
                encoded,
                heads,
                groups,
                float(spec.head_dim),
                float(spec.value_head_dim),
                False,
                backward=backward,
            )
        )
    if np.any(degree > 1):
        size = keys.number("micro_batch_size") * encoded * groups * 2.0
        size = size * (spec.head_dim + spec.value_head_dim)
        gather_keys(ops, "attention.gather_encoded", size, (degree > 1) * 1.0)


def _flash_core(ops: OperationList, spec: AttentionSpec, heads: Column, groups: Column) -> None:
    """Fused attention with context parallelism.

    A balanced causal ring gives each rank one causal block of its own and, for each
    of the other ranks, half a block (Megatron-Core and Transformer Engine, "zigzag");
    all-gather (Llama 3, arXiv:2407.21783, §3.3.2) does the same work after one gather;
    all-to-all (Ulysses, arXiv:2309.14509) exchanges sequence shards for head shards.
    """
    keys = ops.keys
    degree = keys.number("context_parallel")
    exchanged = exchanges_heads(keys)
    length = keys.document
    # Packed documents are sequences of their own to attention, each shared by the context ranks
    # (Transformer Engine, layout "thd").
    batch = keys.number("micro_batch_size") * (keys.number("sequence_length") / length)
    local = np.where(exchanged, length, length / degree)
    split = np.where(exchanged, degree, 1.0)
    local_heads, local_groups = np.maximum(heads / split, 1.0), np.maximum(groups / split, 1.0)
    remote_steps, span, remote_keys = remote_work(spec, length, local, degree)
    remote_steps = np.where(exchanged, 0.0, remote_steps)
    dims = float(spec.head_dim), float(spec.value_head_dim)
    for phase, backward in (("forward", False), ("backward_input", True)):
        for name, sequences, tokens, count in _own_calls(spec, batch, local):
            ops.add(
                Attention(
                    name,
                    phase,
                    sequences,
                    tokens,
                    tokens,
                    local_heads,
                    local_groups,
                    *dims,
                    spec.causal,
                    0.0 if spec.kind == "chunked" else float(spec.window),
                    backward,
                    count=count,
                )
            )
        if np.any(remote_steps > 0):
            ops.add(
                Attention(
                    RING_STEP,
                    phase,
                    batch,
                    span,
                    remote_keys,
                    local_heads,
                    local_groups,
                    *dims,
                    False,
                    0.0,
                    backward,
                    count=remote_steps,
                )
            )
    if np.any(degree > 1):
        # Inside the function that the core is (Transformer Engine, context_parallel.py).
        with ops.in_module("core_attn"):
            context_communication(ops, spec, heads, groups, (CORE, RING_STEP))


def _own_calls(
    spec: AttentionSpec, batch: Column, local: Column
) -> list[tuple[str, Column, Column, Column | float]]:
    """Return name, sequences, tokens of each and count of the calls over a rank's own tokens.

    Chunks are sequences of their own, the last perhaps a shorter one.
    """
    if spec.kind != "chunked":
        return [(CORE, batch, local, 1.0)]
    chunk = np.minimum(float(spec.window), local)
    rest = local - np.floor(local / chunk) * chunk
    calls: list[tuple[str, Column, Column, Column | float]] = [
        (CORE, batch * np.floor(local / chunk), chunk, 1.0)
    ]
    if np.any(rest > 0):
        calls.append(("attention.core_rest", batch, np.maximum(rest, 1.0), (rest > 0) * 1.0))
    return calls


def _unfused_core(ops: OperationList, spec: AttentionSpec, heads: Column, groups: Column) -> None:
    """Two batched products with masked softmax and dropout between (full square, no skipping)."""
    keys = ops.keys
    if np.any(keys.number("context_parallel") > 1):
        with ops.in_module("core_attn"):
            context_communication(ops, spec, heads, groups, (CORE, RING_STEP))
    batch = keys.number("micro_batch_size") * heads
    length = keys.number("sequence_length") / keys.number("context_parallel")
    whole = keys.number("sequence_length")
    scores = batch * length * whole

    def product(name: str, inner: float, first: bool) -> None:
        on_cores = 2 * inner % MATRIX_ALIGNMENT == 0

        def add(phase: str, m: Column, n: Column, k: Column, **how: Any) -> None:
            if on_cores:
                ops.add(Gemm(name, phase, m, n, k, batch=batch, quantised=False), **how)
                return
            reads, writes = 2.0 * batch * (m * k + k * n), 2.0 * batch * m * n
            ops.add(Stream(name, phase, reads, writes, flops=2.0 * batch * m * n * k), **how)

        width = np.full_like(length, inner)
        m, n, k = (length, whole, width) if first else (length, width, whole)
        add("forward", m, n, k, module="core_attn")
        # Gradients of the two inputs: each contracts over one of the other two dimensions.
        add("backward_input", m, k, n)
        add("backward_input", k, n, m)

    product("attention.scores", float(spec.head_dim), True)
    ops.stream("attention.softmax", scores, (2, 2), (4, 2), flops=8.0, module="core_attn")
    if ops.framework.dropout:
        ops.stream("attention.dropout", scores, (2, 3), (3, 2), module="core_attn")
    product("attention.values", float(spec.value_head_dim), False)
    # Heads are gathered into one row per token for the output projection.
    ops.add(
        Stream(
            "attention.merge_heads",
            "forward",
            batch * length * spec.value_head_dim * 2.0,
            batch * length * spec.value_head_dim * 2.0,
        )
    )


ENCODER = "encoder"


def tower_tokens(tower: TowerSpec, sequence_length: Column) -> Column:
    """Tokens of a tower per sequence; 0 where they are not stated and it is no encoder."""
    if tower.tokens:
        return np.full(sequence_length.shape, float(tower.tokens))
    return sequence_length if tower.name == ENCODER else np.zeros(sequence_length.shape)


def encoder_tokens(model: ModelSpec, sequence_length: Column) -> Column:
    """Tokens of a sequence to which cross attention attends."""
    for tower in model.towers:
        if tower.name == ENCODER:
            return tower_tokens(tower, sequence_length)
    return sequence_length
