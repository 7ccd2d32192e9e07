"""What the blocks of a layer keep for their backward pass: attention, states, feed-forward.

Kernels of mixers with a state bring autograd functions of their own, which keep inputs and outputs
and compute states again (`recurrence_saved_bytes`, with the sources); the others here are of what
stands around the kernels.

Shape letters: T tokens on one device, h hidden size, f width of a feed-forward block; of attention
a query heads, g key-value heads, d and v head dimensions of keys and values; of a state n heads of
values, m heads of keys, k and v length of a key and of a value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.kernels.recurrence import SELECTIVE_CHUNK
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import MlpSpec
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.operations.context_block import ALL_TO_ALL, RING
from perfmodel.operations.mlp_block import expert_loads, mlp_module
from perfmodel.operations.operations import Size
from perfmodel.operations.sparse_block import absorbs_keys
from perfmodel.training.activations import SINGLE, Inputs, Kept, Modules, Scope


def attention_kept(at: Scope, spec: AttentionSpec, encoded: Size = 1.0) -> Kept:
    """Return what one attention block keeps, its norm over the hidden size left out.

    Fused attention keeps queries, keys, values, its output and a statistic per query
    (flash-attention, `FlashAttnFunc`); the projections keep their inputs.

    Parameters
    ----------
    at : Scope
    spec : AttentionSpec
    encoded : float or ndarray
        Tokens of an encoder per token, whose keys and values cross attention reads.
    """
    tokens, stored, inputs = at.tokens, at.stored, at.inputs
    heads = at.shard(spec.heads)
    known = tokens * encoded if spec.cross else tokens
    projected, results = _projected(at, spec, known), _latent_results(at, spec)
    output = tokens * heads * spec.value_head_dim
    put_out = output * at.attention_outputs
    kept = _latents(at, spec) + projected + results + put_out
    kept = kept + _queries_and_keys_ahead_of_norm(at, spec, known)
    cast: Size = np.zeros(len(at.keys))  # where only a cast copy of the output goes on
    if spec.output_gate == "none" and not spec.output_groups:
        # Output of the kernel and input of the projection are one tensor, but for a cast.
        if not at.framework.attention_output_bytes:
            cast = at.keys.low_precision
        kept = kept + np.where(cast > 0, output * inputs, 0.0)
    else:
        kept = kept + output * inputs + _gate(at, spec)
    if spec.output_groups:
        kept = (
            kept
            + tokens * spec.output_groups * spec.output_lora_rank / at.keys.tensor_parallel * inputs
        )
    kept = kept + _selection(at, spec) + _compressed(at, spec) + at.products(spec.extra)
    outputs: dict[str, Size] = {"save_qkv_proj": projected, "save_context": put_out}
    if at.framework.flash_attention:
        modules: dict[Modules, Size] = {}
        if spec.kind == "mla":
            modules["mla_up_proj",] = projected
        statistic = SINGLE * tokens * heads
        # By operation: of queries, keys, values and the output's product every second, and the
        # kernel's own; the sum over tensor ranks behind.
        values = known * at.shard(spec.key_value_heads) * spec.value_head_dim
        odd = tokens * heads * spec.head_dim + values
        alternate = odd * stored + put_out + statistic
        modules["core_attn",] = statistic + np.where(cast > 0, put_out, 0.0)
        outputs["save_context"] = put_out + statistic
        read: Modules = ("mla_up_proj",) if spec.kind == "mla" else ()
        waiting: Inputs = {
            ("core_attn", read): projected,
            ("core_attn", ("core_attn",)): statistic,
            ("attn_proj", ()): put_out,
        }
        return Kept(kept + statistic, modules, projected, alternate, outputs, waiting)
    # Softmax output and, with dropout, its mask and dropped result (5 a s / h per token).
    length = at.keys.number("sequence_length") * (encoded if spec.cross else 1.0)
    dropped = 1.0 + stored if at.framework.dropout else 0.0
    matrix = tokens * length * heads * (stored + dropped)
    return Kept(kept + matrix, {("core_attn",): matrix}, projected, outputs=outputs)


def context_working(at: Scope, spec: AttentionSpec) -> Size:
    """Bytes of one attention at work among context ranks, beside what it keeps; 0 for a lone rank.

    Gradients of queries, keys and values, and by kind: a *ring* receives every piece of keys and
    values in a buffer of its own and leaves an output for each, or sends and receives keys and
    values with their gradients in two buffers (Transformer Engine, context_parallel.py,
    `AttnFuncWithCPAndKVP2P`: ``p2p_comm_buffers``, ``out_per_step``); an *all-gather* holds all of
    them and their gradients (`AttnFuncWithCPAndKVAllGather`); an *all-to-all* all four tensors as
    they came and as they leave (``flash_attn_a2a_communicate``).
    """
    degree, kind = at.keys.number("context_parallel"), at.keys.columns["context_parallel_kind"]
    tokens, stored = at.tokens, at.stored
    heads, groups = at.shard(spec.heads), at.shard(spec.key_value_heads)
    pieces = tokens * groups * (spec.head_dim + spec.value_head_dim) * stored
    queries = tokens * heads * spec.head_dim * stored
    output = tokens * heads * spec.value_head_dim * stored
    buffers = np.select(
        [kind == RING, kind == ALL_TO_ALL],
        [np.maximum(4.0 * pieces, degree * (pieces + output)), queries + pieces + output],
        2.0 * degree * pieces,
    )
    return np.where((degree > 1) & (not spec.cross), queries + pieces + buffers, 0.0)


def _latents(at: Scope, spec: AttentionSpec) -> Size:
    """Latents of queries, keys and values: the inputs of their norms and those of what follows."""
    rank = float(spec.q_lora_rank + spec.kv_lora_rank)
    return at.norm_input(at.own * rank) + at.own * rank * at.inputs


def _projected(at: Scope, spec: AttentionSpec, known: Size) -> Size:
    """Queries, and keys and values of `known` tokens, as attention reads them.

    Sparse latent attention runs in its latent space as multi-query attention
    (arXiv:2512.02556, appendix A): queries of `kv_lora_rank` + `qk_rope_head_dim` beside
    those that they are made of.
    """
    tokens, stored = at.tokens, at.stored
    heads, groups = at.shard(spec.heads), at.shard(spec.key_value_heads)
    if absorbs_keys(spec):
        width = heads * (spec.head_dim + spec.kv_lora_rank + spec.qk_rope_head_dim)
        return tokens * width * stored
    if spec.kind == "mla":
        width = heads * (2 * spec.head_dim + spec.value_head_dim)
        if not at.fused:
            # Values are a view of what the up-projection wrote: keys stay with them.
            width = width + heads * spec.qk_nope_head_dim
        return tokens * width * stored
    if spec.shared_keys:  # the layer that made them keeps them
        groups = np.zeros_like(groups)
    kept = tokens * heads * spec.head_dim * stored + known * groups * spec.head_dim * stored
    if spec.compression is not None:  # values are the keys themselves
        return kept
    values = known * groups * spec.value_head_dim * stored
    if at.framework.copies_heads and spec.heads == spec.key_value_heads and not spec.cross:
        # Queries are a slice of the copy of all three, and rotated in place: it stays with them.
        kept = kept + known * groups * spec.head_dim * stored + values
    elif spec.fused_projection and not at.fused:
        # Values are a view of the projection: queries and keys ahead of their rotation stay, too.
        kept = kept + tokens * (heads + groups) * spec.head_dim * stored
    if spec.partial_rotary and not at.fused:
        # What comes out lies head by head, as the queries do, and is copied for its projection.
        kept = kept + tokens * heads * spec.value_head_dim * stored
    return kept + values


def _latent_results(at: Scope, spec: AttentionSpec) -> Size:
    """Of attention in latent space: its keys, which are the latents, and its results."""
    if not absorbs_keys(spec):
        return 0.0
    keys = spec.kv_lora_rank + spec.qk_rope_head_dim
    return at.tokens * (at.shard(spec.heads) * spec.kv_lora_rank + keys) * at.stored


def _queries_and_keys_ahead_of_norm(at: Scope, spec: AttentionSpec, known: Size) -> Size:
    if not spec.qk_norm:
        return 0.0
    groups = 0.0 if spec.shared_keys else at.shard(spec.key_value_heads)
    scaled = {"none": (False, False), "keys": (False, True)}.get(spec.qk_norm_scope, (True, True))
    rows = (at.tokens * at.shard(spec.heads), known * groups)
    queries, keys = (
        at.norm_input(elements * spec.head_dim, "rms" if weights else "no_weight")
        for elements, weights in zip(rows, scaled, strict=True)
    )
    return queries + keys


def _gate(at: Scope, spec: AttentionSpec) -> Size:
    """The gate of the output: its own input."""
    width = {"none": 0, "channel": spec.value_head_dim, "head": 1}[spec.output_gate]
    return at.tokens * at.shard(spec.heads) * width * at.stored


def _selection(at: Scope, spec: AttentionSpec) -> Size:
    """What an indexer keeps: the keys chosen, and its own queries, keys and weights.

    Its logits are not kept: S x S of them; the loss that trains it makes them again.
    """
    indexer = spec.indexer
    if indexer is None or indexer.shared:
        return 0.0
    chosen = np.minimum(indexer.top_k, at.keys.number("sequence_length")) / indexer.block
    weights = indexer.heads * SINGLE if indexer.head_weights else 0.0
    own = (indexer.heads + 1) * indexer.head_dim * at.stored + weights
    return at.tokens * chosen * SINGLE + at.own * own


def _compressed(at: Scope, spec: AttentionSpec) -> Size:
    """What compression keeps: projections and their gates, and the entries around their norm."""
    if spec.compression is None:
        return 0.0
    widths = [spec.head_dim]
    if spec.indexer is not None and spec.indexer.compressed:
        widths.append(spec.indexer.head_dim)
    projections = 2 * (2 if spec.compression.overlap else 1)
    return at.own * sum(widths) * (projections + 2 / spec.compression.ratio) * at.stored


def convolution_kept(at: Scope, spec: ShortConvolutionSpec) -> Kept:
    """Return what a gated short convolution keeps.

    The projection's output (two gates and the values), the gated values that the
    convolution reads, what it puts out, and the input of the projection that follows.
    """
    channels = at.tokens * spec.channels / at.keys.tensor_parallel
    kept = channels * (5 * at.stored + at.inputs) + at.products(spec.extra)
    return Kept(kept, widest=channels * 3 * at.stored)


def recurrence_kept(at: Scope, spec: RecurrenceSpec) -> Kept:
    """Return what one mixer with a state keeps, its norm over the hidden size left out."""
    saved = recurrence_saved_bytes(
        spec.kind,
        heads=at.shard(spec.heads),
        key_heads=at.shard(spec.key_heads),
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        chunk=spec.chunk,
        element_bytes=at.stored,
    )
    around = {
        "gated_delta": _delta_rule,
        "kimi_delta": _kimi_delta,
        "mamba2": _mamba2,
        "mamba1": _mamba1,
        "lightning": _lightning,
    }[spec.kind](at, spec)
    kept = at.tokens * (saved + around) + at.products(spec.extra)
    widest = at.tokens * (_read(at, spec) + _inner(at, spec)) * at.stored
    return Kept(kept, widest=widest)


def _inner(at: Scope, spec: RecurrenceSpec) -> Size:
    """Numbers per token that come out of the recurrence."""
    return at.shard(spec.heads) * spec.value_dim


def _read(at: Scope, spec: RecurrenceSpec) -> Size:
    """Queries, keys and values per token, which are the channels of a convolution."""
    return 2 * at.shard(spec.key_heads) * spec.key_dim + _inner(at, spec)


def _delta_rule(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around a delta rule: the convolution's input (causal_conv1d, `CausalConv1dFn`) and the gate.

    The fused norm of the output keeps its input, the gate, and a statistic per head
    (flash-linear-attention, ``modules/fused_norm_gate.py``). Unfused code keeps input, gate
    and the gate's activation in single precision, and the output normalised and scaled
    (transformers, `Qwen3NextRMSNormGated`). The projection behind keeps its input.
    """
    inner = _inner(at, spec)
    convolution = _read(at, spec) * at.stored if spec.conv_kernel else 0.0
    gated = 2 * inner * at.stored
    if spec.output_norm and not at.fused:
        gated = inner * (3 * SINGLE + 2 * at.stored)
    return convolution + gated + at.shard(spec.heads) * SINGLE + inner * at.inputs


def _kimi_delta(at: Scope, spec: RecurrenceSpec) -> Size:
    """As around the delta rule, and the low ranks of decay and gate."""
    forget = 0 if spec.full_forget_gate else spec.value_dim
    return _delta_rule(at, spec) + (forget + spec.gate_rank) * at.inputs


def _mamba2(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around the scan of Mamba-2: a statistic of the norm for every group.

    One function may span convolution, scan, gated norm and output projection, and compute the
    projection's input again. Where norm and projection stand behind it, both keep their inputs.
    """
    statistics = at.shard(spec.key_heads) * SINGLE if spec.output_norm else 0.0
    if at.framework.fused_mamba_output:
        return statistics
    inner = _inner(at, spec)
    norm = at.norm_input(inner) if spec.output_norm else 0.0
    return statistics + norm + inner * at.inputs


def _mamba1(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around the scan of Mamba-1.

    One function spans convolution, projections and scan (mamba_ssm,
    ``ops/selective_scan_interface.py``, `MambaInnerFn`): for the convolved input and the time
    step, which it computes again, it keeps what the convolution and the projections read. With
    norms of time step, B and C inside (Jamba) the scan stands alone (`SelectiveScanFn`), and
    what is around it keeps its inputs.
    """
    inner = _inner(at, spec)
    projected = (spec.time_step_rank + 2 * spec.key_dim) * at.stored
    kept = inner * at.stored + projected
    if not spec.inner_norms:
        return kept - 2 * inner * at.stored
    return kept + spec.time_step_rank * at.inputs + inner * at.inputs


def _lightning(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around lightning attention: what its activation reads, and the gated norm of the output.

    The output is normalised and multiplied by the sigmoid of a gate (transformers,
    `MiniMaxLightningAttention`), both factors of which a product keeps.
    """
    inner = _inner(at, spec)
    norm = at.norm_input(inner) if spec.output_norm else 0.0
    return _read(at, spec) * at.stored + norm + 2 * inner * at.stored + inner * at.inputs


def mlp_kept(at: Scope, mlp: MlpSpec, hidden: float) -> Kept:
    """Return what a feed-forward block keeps, its norm left out.

    One that is repeated whole keeps its input alone, which is counted with the norm.
    """
    return _kept(at, mlp, hidden).inside(mlp_module(mlp))


def _kept(at: Scope, mlp: MlpSpec, hidden: float) -> Kept:
    if mlp.kind == "dense":
        own = mlp.intermediate_size / at.keys.tensor_parallel
        # By operation (`Kept.alternate`): counted through the layer behind the four products of
        # attention, the gate, not what stands beside it, and the last, ahead of its sum over
        # tensor ranks; of a plain block the first.
        odd = own + (hidden if mlp.gated else 0.0)
        block = _block(at, mlp, at.tokens, own, "activation")
        return block + Kept(at.products(mlp.extra), alternate=at.tokens * odd * at.stored)
    inner = at.keys.number("expert_tensor_parallel")
    _, held = expert_loads(at.framework, mlp, at.keys.number("expert_parallel"))
    received = at.own * mlp.experts_per_token * inner * held
    width = float(mlp.latent_size or hidden)
    routed = _block(at, mlp, received, mlp.expert_intermediate_size / inner, "moe_act")
    if not at.fused:
        # Weights of the choice are in single precision and widen what they scale: its gradient,
        # and those of both factors (transformers, integrations/moe.py).
        routed = replace(routed, widest=np.maximum(routed.widest, 3 * SINGLE * received * hidden))
    # Permuted inputs of the experts, the router's scores in fp32, and what the gradient of the
    # weights of the choice needs: the experts' outputs, or their activations, kept anyway.
    kept = received * width * at.inputs + at.own * mlp.experts * 8.0
    if at.framework.scales_in_experts:  # beside the weights, which travel with the tokens
        kept = kept + received * SINGLE
    else:
        kept = kept + at.own * mlp.experts_per_token * width * at.stored
    if mlp.latent_size:  # the sum over experts, which leads back to the hidden size
        kept = kept + at.own * width * at.inputs
    # By operation what arrives and what comes back is kept; grouped products are not.
    exchanged = np.where(at.keys.number("expert_parallel") > 1, 2.0 * received * width, 0.0)
    routed = routed + Kept(
        kept + at.products(mlp.extra),
        widest=received * width * at.stored,
        alternate=exchanged * at.stored,
        outputs={"save_mlpwo": received * width * at.stored},
        inputs={
            (word, ()): received * width * at.inputs for word in ("expert_fc1", "fused_group_mlp")
        },
    )
    if not mlp.shared_intermediate_size:
        return routed
    shared_width = mlp.shared_intermediate_size / at.keys.tensor_parallel
    shared = _block(at, mlp, at.tokens, shared_width, "activation")
    if mlp.shared_expert_gate:  # what the gate scales
        shared = shared + Kept(at.own * hidden * at.stored)
    return routed + replace(shared, widest=0.0).inside("shared_experts")


def _block(at: Scope, mlp: MlpSpec, rows: Size, width: Size, module: str) -> Kept:
    """Two products with an activation between: what it reads, and the second one's input.

    Unfused, the activation of a gated block is a factor of a product of its own.
    """
    wide = rows * width * (2.0 if mlp.gated else 1.0)
    before = wide * (at.gate_inputs if mlp.gated else at.stored)
    gone = mlp.gated and at.framework.repeats_activations
    after = 0.0 * rows if gone else rows * width * at.inputs
    if mlp.gated and not at.fused:
        after = after + rows * width * at.stored
    outputs = {"save_mlpwi": before}
    inputs: Inputs = {}
    if module == "moe_act":
        inputs = {(word, ()): before for word in ("moe_act", "fused_group_mlp")}
        inputs["fused_group_mlp", (module,)] = after
    return Kept(
        before + after,
        {(module,): after},
        np.asarray(wide * at.stored),
        outputs=outputs,
        inputs=inputs,
    )


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
        As of `perfmodel.compute.recurrence_counts.recurrence_flops`.
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
    keys = key_heads * key_dim
    values = heads * value_dim
    if kind == "gated_delta":
        inner = 2 * keys + values + heads + heads * chunk
        return inner * element_bytes + (2 * key_heads + heads) * SINGLE
    if kind == "kimi_delta":
        inner = 2 * keys + values + heads * key_dim + heads + 2 * heads * chunk
        return inner * element_bytes + 2 * key_heads * SINGLE
    if kind == "mamba2":
        return (3 * values + 2 * keys + heads) * element_bytes
    if kind == "mamba1":
        states = 2 * heads * key_dim * value_dim * SINGLE / SELECTIVE_CHUNK
        return (4 * heads + 2 * keys) * element_bytes + states
    return (2 * keys + values) * element_bytes
