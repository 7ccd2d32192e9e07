"""Operations of a served pass that depend on its tokens alone: training's forward, fused.

What depends on the sequences is left out: cores of mixers, and the products of latent attention
that differ between prefill and decode. So is what routed experts do from their choice to their
sum, which is priced as a whole.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.compute.stream_catalogue import elementwise, traffic
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec
from perfmodel.model.quantization import WIDE_BYTES
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import (
    Attention,
    Communication,
    Gemm,
    Indexer,
    LayerKeys,
    Machine,
    Operation,
    Recurrence,
    Role,
    SparseAttention,
    Stream,
)
from perfmodel.operations.parts import Part, part_operations
from perfmodel.software.framework import load_framework

SERVED = load_framework(
    "megatron",
    grouped_gemm=True,
    overlap_tensor_parallel="none",
    pads_vocabulary_to=1,
    graph_launch=True,
)
"""Training's habits as far as they are an engine's too: fused kernels, nothing hidden."""

CORES = (Attention, SparseAttention, Indexer, Recurrence)

OF_PROMPTS = ("attention.key_value_up", "attention.assemble_keys")
"""Operations of latent attention that only prefill has."""

AROUND_EXPERTS = (
    *("norm", "post_norm", "part_norms", "sum", "residual"),
    *("router", "latent_down", "latent_up"),
)
"""What stands around routed experts: norms, their scores, projections to their latent."""

SAMPLER_LAUNCHES = 4.0
"""Kernels behind the logits: cast to fp32, scaling, softmax, choice (vLLM's ``Sampler.forward``
without top-k, SGLang's ``Sampler``)."""


def pass_keys(tensor_parallel: np.ndarray, tokens: np.ndarray) -> LayerKeys:
    """Return layer keys of passes of `tokens` tokens on `tensor` devices, shape (keys,)."""
    ones, zeros = np.ones(tokens.size, np.int64), np.zeros(tokens.size, np.int64)
    return LayerKeys(
        {
            "tensor_parallel": tensor_parallel.astype(np.int64),
            "sequence_parallel": zeros,
            "context_parallel": ones,
            "context_parallel_kind": zeros,
            "expert_parallel": ones,
            "expert_tensor_parallel": ones,
            "micro_batch_size": ones,
            "sequence_length": tokens.astype(np.int64),
            "recompute": zeros,
            "precision": zeros,
        }
    )


def served_operations(
    model: ModelSpec, part: Part, keys: LayerKeys, machine: Machine
) -> list[Operation]:
    """List what a part of a model does to the tokens of a pass, whichever sequences they are of.

    Parameters
    ----------
    model : ModelSpec
    part : Part
        One of `perfmodel.operations.parts.model_parts`.
    keys : LayerKeys
        See `pass_keys`.
    machine : Machine

    Returns
    -------
    list of Operation
        Phase "forward" only. Residual additions run inside the norms behind them
        (``fused_add_rms_norm`` of vLLM, ``fused_add_rmsnorm`` of FlashInfer), queries and keys
        are normed and rotated by a kernel each.
    """
    forward = [
        item
        for item in part_operations(model, part, keys, SERVED, machine)
        if item.phase == "forward"
        and not isinstance(item, CORES)
        and item.role != Role.LOSS
        and item.name not in OF_PROMPTS
    ]
    routed = part.layer is not None and part.layer.experts > 0
    if routed:
        forward = [item for item in forward if not _of_experts(item, part.layer)]
    return [_fused(item) for item in forward if not item.name.endswith(".residual")]


def _of_experts(item: Operation, layer: LayerSpec | None) -> bool:
    """Whether an operation belongs to routed experts, or is part of what is summed with them."""
    if item.role in (Role.EXPERT_PRODUCT, Role.EXPERT_SHARING):
        return True
    if isinstance(item, Communication) and item.role == Role.SHARED_OUTPUT:
        return True  # summed together with what the experts give
    if item.role != Role.EXPERTS or layer is None:
        return False
    _, _, rest = item.name.partition("mlp.")
    extra = {piece.name for mlp in layer.mlps for piece in mlp.extra}
    return rest not in AROUND_EXPERTS and rest not in extra and not rest.startswith("streams")


def _fused(item: Operation) -> Operation:
    if not isinstance(item, Stream):
        return item
    if item.name.endswith(".norm") and item.name not in ("output.norm", "tower.norm"):
        # The sum with the residual is read and written there too.
        read, written = 2.0 * item.bytes_read, 2.0 * item.bytes_written
        return replace(item, bytes_read=read, bytes_written=written)
    if item.name in ("attention.rope", "attention.qk_norm"):
        return replace(item, launches=1.0)
    return item


def appended_numbers(spec: AttentionSpec, tensor_parallel: np.ndarray) -> np.ndarray:
    """Numbers that attention appends to its cache per token on a device, shape (keys,)."""
    if spec.shared_keys or spec.cross:
        return np.zeros(tensor_parallel.shape)
    if spec.kind == "mla":
        return np.full(tensor_parallel.shape, float(spec.kv_lora_rank + spec.qk_rope_head_dim))
    width = spec.head_dim + (0 if spec.key_is_value and spec.output_groups else spec.value_head_dim)
    return np.maximum(spec.key_value_heads / tensor_parallel, 1.0) * width


def append_operation(spec: AttentionSpec, keys: LayerKeys, element: float) -> Stream:
    """Write keys and values of the pass to the cache, `element` bytes a number."""
    numbers = keys.tokens * appended_numbers(spec, keys.tensor_parallel)
    count = (numbers > 0) * 1.0
    read, written = numbers * WIDE_BYTES, numbers * element
    return Stream("attention.append", "forward", read, written, count=count, role=Role.ATTENTION)


def norm_sums(spec: AttentionSpec, keys: LayerKeys) -> list[Communication]:
    """List what devices tell each other to norm queries and keys over all heads.

    Each holds some heads, and two sums of squares per token join them (vLLM's
    ``MiniMaxText01RMSNormTP``).
    """
    if not spec.qk_norm or spec.qk_norm_scope != "whole":
        return []
    size, parallel = keys.tokens * 2.0 * 4.0, (keys.tensor_parallel > 1) * 1.0
    group = size, keys.tensor_parallel, keys.tensor_stride
    return [
        Communication(
            "attention.qk_norm.all_reduce",
            "forward",
            "tensor",
            "all_reduce",
            *group,
            count=parallel,
            role=Role.ATTENTION,
        )
    ]


def head_operations(model: ModelSpec, keys: LayerKeys, machine: Machine) -> list[Operation]:
    """List what turns sequences into tokens: final norm, logits, their gathering, the choice.

    Parameters
    ----------
    model, keys, machine
        As `served_operations`; tokens are sequences.
    """
    found = served_operations(model, Part("output", "output"), keys, machine)
    ops = OperationList(keys, SERVED, machine)
    logits = keys.tokens * float(model.vocab_size)
    with ops.in_role(Role.OUTPUT):
        ops.add(
            Communication(
                "output.gather",
                "forward",
                "tensor",
                "all_gather",
                logits * WIDE_BYTES,
                keys.tensor_parallel,
                keys.tensor_stride,
                count=(keys.tensor_parallel > 1) * 1.0,
            )
        )
        # Cast to fp32, then a softmax and the largest of each row.
        read, written = traffic(elementwise("copy", 1.0))
        ops.add(
            Stream(
                "output.sample",
                "forward",
                logits * (read + 8.0),
                logits * (written + 4.0),
                launches=SAMPLER_LAUNCHES,
            )
        )
    return found + ops.operations


def operation_launches(item: Operation) -> np.ndarray | float:
    """Kernels that an eager pass launches for an operation, shape (keys,) or a number."""
    launches = 1.0 if isinstance(item, Communication | Gemm) else getattr(item, "launches", 1.0)
    return launches * item.count
