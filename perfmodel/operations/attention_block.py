"""Operations of the attention block of one layer.

Shape letters: T tokens on this device, h hidden size, a query heads, g key-value
heads, d and v head dimensions of keys and values, t tensor-parallel degree.
"""

from __future__ import annotations

import numpy as np

from perfmodel.model.build import LayerSpec, ModelSpec
from perfmodel.operations.operations import (
    Attention,
    Communication,
    Gemm,
    OperationList,
    Role,
    Stream,
)
from perfmodel.strategy.grid import CONTEXT_PARALLEL_KINDS

RING, ALL_TO_ALL, ALL_GATHER = range(len(CONTEXT_PARALLEL_KINDS))
CORE = "attention.core"
RING_STEP = "attention.core_remote"


def add_attention(ops: OperationList, model: ModelSpec, layer: LayerSpec) -> None:
    """Add projections, rotary embedding, the attention itself and their communication."""
    spec = layer.attention
    hidden = float(model.hidden_size)
    tokens = ops.keys.tokens
    heads = np.maximum(spec.heads / ops.keys.tensor, 1.0)
    groups = np.maximum(spec.key_value_heads / ops.keys.tensor, 1.0)
    if spec.kind == "mla":
        _latent_projections(ops, model, layer)
        groups = heads
    else:
        width = (heads + groups) * spec.head_dim + groups * spec.value_head_dim
        ops.enter_tensor_parallel("attention.input", hidden, "attention.qkv")
        ops.linear("attention.qkv", tokens, hidden, width)
        # Queries, keys and values are views of one product where they are fused, and copies
        # where they are not; their gradients are always written back into one tensor.
        copied = (0, 0) if ops.framework.fused_elementwise else (2, 2)
        ops.stream("attention.split_qkv", tokens * width, copied, (2, 2))
    if spec.qk_norm:
        elements = tokens * (heads + groups) * spec.head_dim
        ops.stream("attention.qk_norm", elements, (2, 2), (4, 2), launches=2.0)
    if model.position_embedding == "rope":
        rotated = spec.qk_rope_head_dim if spec.kind == "mla" else spec.head_dim
        shared = 1.0 if spec.kind == "mla" else groups
        passes = 1.0 if ops.framework.fused_elementwise else 3.0
        ops.stream(
            "attention.rope",
            tokens * (heads + shared) * rotated,
            (2 * passes, 2 * passes),
            (2 * passes, 2 * passes),
            launches=2.0 * passes,
        )
    if ops.framework.flash_attention:
        _flash_core(ops, layer, heads, groups)
    else:
        _unfused_core(ops, layer, heads, groups)
    with ops.in_role(Role.ATTENTION_OUTPUT):
        ops.linear("attention.output", tokens, heads * spec.value_head_dim, hidden)
        ops.leave_tensor_parallel("attention.output", hidden, "attention.output")


def _latent_projections(ops: OperationList, model: ModelSpec, layer: LayerSpec) -> None:
    """Down- and up-projections of multi-head latent attention (arXiv:2405.04434, §2.1).

    The down-projections are not sharded: every device does its own part of the
    residual stream, and the short latents are gathered instead of the hidden state.
    """
    spec = layer.attention
    hidden = float(model.hidden_size)
    tokens, own = ops.keys.tokens, ops.keys.stream_tokens
    heads = np.maximum(spec.heads / ops.keys.tensor, 1.0)
    latent = float(spec.kv_lora_rank + spec.qk_rope_head_dim)
    if spec.q_lora_rank:
        ops.linear("attention.query_down", own, hidden, float(spec.q_lora_rank))
        ops.stream("attention.query_norm", own * spec.q_lora_rank, (2, 2), (4, 2))
        latent += spec.q_lora_rank
    ops.linear(
        "attention.key_value_down", own, hidden, float(spec.kv_lora_rank + spec.qk_rope_head_dim)
    )
    ops.stream("attention.key_value_norm", own * spec.kv_lora_rank, (2, 2), (4, 2))
    query_inputs = float(spec.q_lora_rank or model.hidden_size)
    gathered = latent if spec.q_lora_rank else latent + hidden
    ops.enter_tensor_parallel("attention.input", gathered, "attention.query_up")
    ops.linear("attention.query_up", tokens, query_inputs, heads * spec.head_dim, selective=True)
    ops.linear(
        "attention.key_value_up",
        tokens,
        float(spec.kv_lora_rank),
        heads * (spec.qk_nope_head_dim + spec.value_head_dim),
        selective=True,
    )
    # Keys are assembled from their two parts, and one rotary part is copied to all heads.
    ops.stream(
        "attention.assemble_keys", tokens * heads * spec.head_dim, (2, 2), (2, 2), selective=True
    )


def _flash_core(
    ops: OperationList, layer: LayerSpec, heads: np.ndarray, groups: np.ndarray
) -> None:
    """Fused attention with context parallelism.

    A balanced causal ring gives each rank one causal block of its own and, for each
    of the other ranks, half a block (Megatron-Core and Transformer Engine, "zigzag");
    all-gather (Llama 3, arXiv:2407.21783, §3.3.2) does the same work after one gather;
    all-to-all (Ulysses, arXiv:2309.14509) exchanges sequence shards for head shards.
    """
    spec = layer.attention
    keys = ops.keys
    degree = keys.number("context_parallel")
    kind = keys.columns["context_parallel_kind"]
    exchanged = (kind == ALL_TO_ALL) & (degree > 1)
    batch = keys.number("micro_batch_size")
    length = keys.number("sequence_length")
    local = np.where(exchanged, length, length / degree)
    split = np.where(exchanged, degree, 1.0)
    local_heads, local_groups = np.maximum(heads / split, 1.0), np.maximum(groups / split, 1.0)
    remote_steps, span, remote_keys = _remote_work(spec.window, length, local, degree)
    remote_steps = np.where(exchanged, 0.0, remote_steps)
    for phase, backward in (("forward", False), ("backward_input", True)):
        ops.add(
            Attention(
                CORE,
                phase,
                batch,
                local,
                local,
                local_heads,
                local_groups,
                float(spec.head_dim),
                float(spec.value_head_dim),
                spec.causal,
                float(spec.window),
                backward,
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
                    float(spec.head_dim),
                    float(spec.value_head_dim),
                    False,
                    0.0,
                    backward,
                    count=remote_steps,
                )
            )
    if np.any(degree > 1):
        _context_communication(ops, layer, heads, groups)


def _remote_work(
    window: int, length: np.ndarray, local: np.ndarray, degree: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention of one rank to keys of other ranks: steps, queries and keys per step.

    All ranks together meet the pairs that one device would: ``S W - W²/2`` of a causal
    sequence S with window W (W = S without one). What a rank does not find in its own
    block is spread over the ranks that the window reaches.
    """
    reach = np.minimum(float(window), length) if window else length
    inside = np.minimum(reach, local)
    pairs = (length * reach - reach**2 / 2) / degree - (local * inside - inside**2 / 2)
    steps = np.minimum(degree - 1.0, np.ceil(reach / local))
    keys = pairs / np.maximum(steps * inside, 1.0)
    return np.where(keys > 0.5, steps, 0.0), inside, np.maximum(keys, 1.0)


def _context_communication(
    ops: OperationList, layer: LayerSpec, heads: np.ndarray, groups: np.ndarray
) -> None:
    spec = layer.attention
    keys = ops.keys
    degree = keys.number("context_parallel")
    kind = keys.columns["context_parallel_kind"]
    stride = keys.context_stride
    key_value = keys.tokens * groups * (spec.head_dim + spec.value_head_dim) * 2.0
    query_output = keys.tokens * heads * (spec.head_dim + spec.value_head_dim) * 2.0
    length = keys.number("sequence_length")
    hops, _, _ = _remote_work(spec.window, length, length / degree, degree)
    ring = ((kind == RING) & (degree > 1)) * hops
    exchange = ((kind == ALL_TO_ALL) & (degree > 1)) * 1.0
    gather = ((kind == ALL_GATHER) & (degree > 1)) * 1.0
    # The slowest hop sets the pace of a ring: over adapters where a node does not hold all of
    # it. Two ranks half the ring apart lie in one node where the whole ring does.
    span = np.maximum(stride, np.ceil(stride * degree / 2.0))
    for phase, volume in (("forward", 1.0), ("backward_input", 2.0)):
        # Backward sends keys, values and their gradients around the ring.
        ops.add(
            Communication(
                "attention.ring",
                phase,
                "context",
                "point_to_point",
                key_value * volume,
                2.0,
                span,
                hidden_by=((CORE, phase), (RING_STEP, phase)),
                hides=1.0,
                count=ring,
            )
        )
        ops.add(
            Communication(
                "attention.exchange",
                phase,
                "context",
                "all_to_all",
                key_value + query_output,
                degree,
                stride,
                count=exchange,
            )
        )
    # Backward gathers keys and values again: only the local ones are kept.
    for phase in ("forward", "backward_input"):
        ops.add(
            Communication(
                "attention.gather_keys",
                phase,
                "context",
                "all_gather",
                key_value * degree,
                degree,
                stride,
                count=gather,
            )
        )
    ops.add(
        Communication(
            "attention.gather_keys",
            "backward_input",
            "context",
            "reduce_scatter",
            key_value * degree,
            degree,
            stride,
            count=gather,
        )
    )


def _unfused_core(
    ops: OperationList, layer: LayerSpec, heads: np.ndarray, groups: np.ndarray
) -> None:
    """Two batched products with masked softmax and dropout between (full square, no skipping)."""
    spec = layer.attention
    keys = ops.keys
    if np.any(keys.number("context_parallel") > 1):
        _context_communication(ops, layer, heads, groups)
    batch = keys.number("micro_batch_size") * heads
    length = keys.number("sequence_length") / keys.number("context_parallel")
    whole = keys.number("sequence_length")
    scores = batch * length * whole

    def product(name: str, inner: float, first: bool) -> None:
        m, n, k = (length, whole, inner) if first else (length, inner, whole)
        shared = {"batch": batch, "quantised": False}
        ops.add(Gemm(name, "forward", m, n, k, **shared), selective=True)
        # Gradients of the two inputs: each contracts over one of the other two dimensions.
        ops.add(Gemm(name, "backward_input", m, k, n, **shared))
        ops.add(Gemm(name, "backward_input", k, n, m, **shared))

    product("attention.scores", float(spec.head_dim), True)
    ops.stream("attention.softmax", scores, (2, 2), (4, 2), flops=8.0, selective=True)
    if ops.framework.dropout:
        ops.stream("attention.dropout", scores, (2, 3), (3, 2), selective=True)
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
