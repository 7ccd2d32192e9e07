"""Operations of one layer: its blocks in a row, with norms, residual additions and streams.

A *block* is what one residual addition takes up: mixers side by side (Falcon-H1), an attention
to an encoder, feed-forward parts side by side (Gemma 4). Parts of a block read the same input,
and their outputs are added up; each has the communication of its own linear layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.compute.stream_catalogue import composed_norm, embedding, norm, traffic
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, Mixer, MlpSpec
from perfmodel.model.recurrence import RecurrenceSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.attention_block import add_attention
from perfmodel.operations.mlp_block import add_mlp
from perfmodel.operations.operation_list import COMPOSED_LAUNCHES, OperationList
from perfmodel.operations.operations import Role
from perfmodel.operations.recurrence_block import add_recurrence, add_short_convolution

SINKHORN_STEPS = 20.0
"""Rounds that make the mixing of residual streams doubly stochastic (``hc_sinkhorn_iters`` of
DeepSeek-V4's config.json; mHC, arXiv:2512.24880, section 4.2)."""

SINKHORN_OPERATIONS = 4.0
"""Operations per weight and round: sums along rows and along columns, and two divisions."""


@dataclass(frozen=True, slots=True)
class Block:
    """Parts side by side, what they are called, and roles of what leads to and from them."""

    name: str
    parts: Sequence[Mixer | MlpSpec]
    role: Role
    output_role: Role


def blocks_of(layer: LayerSpec) -> list[Block]:
    """Return the blocks of a layer in the order in which they run."""
    cross = [part for part in layer.mixers if isinstance(part, AttentionSpec) and part.cross]
    mixers = [part for part in layer.mixers if part not in cross]
    found = []
    if mixers:
        attention = any(isinstance(part, AttentionSpec) for part in mixers)
        name = "attention" if attention else "recurrence"
        roles = (
            (Role.ATTENTION, Role.ATTENTION_OUTPUT)
            if attention
            else (Role.RECURRENCE, Role.RECURRENCE_OUTPUT)
        )
        found.append(Block(name, mixers, *roles))
    if cross:
        found.append(Block("cross", cross, Role.ATTENTION, Role.ATTENTION_OUTPUT))
    if layer.mlps:
        routed = layer.experts > 0
        roles = (Role.EXPERTS, Role.EXPERTS) if routed else (Role.MLP, Role.MLP_OUTPUT)
        found.append(Block("mlp", layer.mlps, *roles))
    return found


def norm_modules(block: Block) -> tuple[str, ...]:
    """Return the modules in which a norm ahead of a block lies, one in the other.

    Norms ahead of latent attention and of experts stand by themselves, others are one function with
    the product behind them, for feed-forward blocks inside the block (Megatron-Core's
    gpt_layer_specs.py with Transformer Engine's ``LayerNormLinear``).
    """
    latent = any(isinstance(part, AttentionSpec) and part.kind == "mla" for part in block.parts)
    if latent or block.role is Role.EXPERTS:
        return ("layernorm",)
    return ("mlp", "norm_linear") if block.role is Role.MLP else ("norm_linear",)


def add_layer(ops: OperationList, model: ModelSpec, layer: LayerSpec) -> None:
    """Add all blocks of a layer.

    Of its norms the first of each block stand ahead of it, the next behind it; where parts have
    norms of their own, the rest is with the last block.
    """
    blocks = blocks_of(layer)
    ops.normed_behind = layer.norms >= 2 * len(blocks)
    elements = ops.keys.stream_tokens * model.hidden_size
    for index, block in enumerate(blocks):
        ahead = layer.norms > index
        behind = layer.norms - len(blocks) > index
        rest = max(layer.norms - 2 * len(blocks), 0) if index == len(blocks) - 1 else 0
        with ops.in_role(block.role):
            if layer.streams > 1:
                _narrow_streams(ops, model, layer, block)
            if ahead:
                with ops.in_module(*norm_modules(block)):
                    add_norm(ops, f"{block.name}.norm", elements, layer.norm)
        for part in block.parts:
            with ops.in_role(_role(part)):
                _add_part(ops, model, part)
        with ops.in_role(block.output_role):
            if behind:
                add_norm(ops, f"{block.name}.post_norm", elements, layer.norm)
            if rest:
                apart = f"{block.name}.part_norms"
                add_norm(ops, apart, rest * elements, layer.norm)
            if len(block.parts) > 1:
                count = float(len(block.parts) - 1)
                ops.stream(f"{block.name}.sum", elements, (4, 2), (0, 0), count=count)
            if layer.streams > 1:
                _widen_streams(ops, model, layer, block)
            else:
                add_residual(ops, f"{block.name}.residual", elements)
    if layer.extra and blocks:
        with ops.in_role(blocks[-1].output_role):
            _add_extra(ops, layer)


def _add_extra(ops: OperationList, layer: LayerSpec) -> None:
    """Add what else stands in a layer: products, rows of tables, convolutions."""
    ops.products("extra", layer.extra, own=True)
    own = ops.keys.stream_tokens
    for piece in layer.extra:
        if piece.kind == "table":
            rows = own * float(piece.outputs * piece.visited)
            forward, backward = (traffic(embedding(1, 1, backward=b)) for b in (False, True))
            ops.stream(f"extra.{piece.name}", rows, forward, backward)
        if piece.kind == "convolution":
            elements = own * float(piece.outputs)
            ops.stream(f"extra.{piece.name}", elements, (2, 2), (4, 2), flops=2.0 * piece.inputs)


def _role(part: Mixer | MlpSpec) -> Role:
    """Role of what leads to a part."""
    if isinstance(part, AttentionSpec):
        return Role.ATTENTION
    if isinstance(part, MlpSpec):
        return Role.EXPERTS if part.kind == "moe" else Role.MLP
    return Role.RECURRENCE


def _add_part(ops: OperationList, model: ModelSpec, part: Mixer | MlpSpec) -> None:
    if isinstance(part, AttentionSpec):
        add_attention(ops, model, part)
    elif isinstance(part, MlpSpec):
        add_mlp(ops, model, part)
    elif isinstance(part, RecurrenceSpec):
        add_recurrence(ops, model, part)
    else:
        add_short_convolution(ops, model, part)


def add_norm(ops: OperationList, name: str, elements: np.ndarray, kind: str) -> None:
    """Norm: read and write once; its gradient reads input and output gradient.

    Unfused (PyTorch ``layer_norm``) statistics are a pass of their own, and so is the
    weight gradient, which reads both tensors again. RMS norms of eager PyTorch are composed.
    """
    fused, launches = ops.framework.fused_elementwise, 1.0
    passes = [norm(1, 1, backward=b, fused=fused) for b in (False, True)]
    if not (ops.framework.fused_norm_and_rotary or kind.startswith("layer")):
        passes = [composed_norm(1, backward=b) for b in (False, True)]
        launches = COMPOSED_LAUNCHES
    forward, backward = map(traffic, passes)
    ops.stream(name, elements, forward, backward, flops=6.0, launches=launches)


def add_residual(ops: OperationList, name: str, elements: np.ndarray) -> None:
    """Residual addition (with dropout mask and bias where the framework has dropout)."""
    mask = 1.0 if ops.framework.dropout else 0.0
    passes = 1.0 if ops.framework.fused_elementwise or not mask else 2.0
    ops.stream(name, elements, (4 * passes, 2 * passes + mask), (4 + 2 * mask, 2 + mask))


def _narrow_streams(ops: OperationList, model: ModelSpec, layer: LayerSpec, block: Block) -> None:
    """Sum m residual streams into the input of a block, by weights that they make themselves.

    A product of all streams with a small matrix gives m weights in, m out and m x m between
    streams, the last made doubly stochastic in fp32 (mHC, arXiv:2512.24880, section 4).
    """
    if layer.stream_rank:
        _gate_streams(ops, model, layer, block)
        return
    m = float(layer.streams)
    own = ops.keys.stream_tokens
    hidden = float(model.hidden_size)
    weights = 2.0 * m + (m * m if layer.stream_mixing else 0.0)
    count = float(len(block.parts))
    name = f"{block.name}.streams"
    ops.linear(
        f"{name}.weights", own, m * hidden, weights, quantised=False, output_bytes=4.0, count=count
    )
    steps = SINKHORN_STEPS if layer.stream_mixing else 1.0  # otherwise only squashed
    ops.stream(
        f"{name}.sinkhorn",
        own * weights,
        (4, 4),
        (8, 4),
        flops=steps * SINKHORN_OPERATIONS,
        count=count,
    )
    # All streams in, one out; the gradient needs them again, for that of the weights.
    ops.stream(
        f"{name}.narrow",
        own * hidden,
        (2.0 * m, 2.0),
        (2.0 + 2.0 * m, 2.0 * m),
        flops=2.0 * m,
        count=count,
    )


def _gate_streams(ops: OperationList, model: ModelSpec, layer: LayerSpec, block: Block) -> None:
    """Sum m residual streams into the input of a block, each number by a gate of its own.

    The gates come through a low rank from all streams, normalised together (Qwen4-Exp).
    """
    m, rank = float(layer.streams), float(layer.stream_rank)
    own = ops.keys.stream_tokens
    width = m * model.hidden_size
    count = float(len(block.parts))
    name = f"{block.name}.streams"
    forward, backward = (traffic(norm(1, 1, backward=b)) for b in (False, True))
    ops.stream(f"{name}.norm", own * width, forward, backward, flops=6.0, count=count)
    ops.linear(f"{name}.gate_down", own, width, rank, count=count)
    ops.linear(f"{name}.gate_up", own, rank, width, count=count)
    ops.linear(f"{name}.weights", own, width, m, count=count)
    few = 2.0 / m  # one stream comes out
    ops.stream(f"{name}.narrow", own * width, (4.0, few), (4.0 + few, 4.0), flops=6.0, count=count)


def _widen_streams(ops: OperationList, model: ModelSpec, layer: LayerSpec, block: Block) -> None:
    """Mix m residual streams and add the output of a block to each."""
    m = float(layer.streams)
    ops.stream(
        f"{block.name}.streams.widen",
        ops.keys.stream_tokens * model.hidden_size,
        (2.0 * m + 2.0, 2.0 * m),
        (4.0 * m + 2.0, 2.0 * m + 2.0),
        flops=2.0 * m * (m + 1.0),
        count=float(len(block.parts)),
    )
