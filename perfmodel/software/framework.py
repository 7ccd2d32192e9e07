"""Declared behaviour of the training software: what it overlaps, fuses and keeps.

A framework is not fitted. Each field states what that software does, as its
documentation or source says; the costs follow from the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean


@dataclass(frozen=True, slots=True)
class Framework:
    """What a training framework does beside the operations that mathematics asks for.

    Attributes
    ----------
    name : str
        Preset name.
    flash_attention : bool
        Fused attention; otherwise two batched products with a softmax between them.
    attention_generation : int
        FlashAttention generation of the kernels: 1 (2022), 2 (2023), or 0 for the best
        that the device has (FlashAttention 3 or cuDNN on Hopper and Blackwell).
    fused_cross_entropy : bool
        Loss and its gradient in two passes over the logits instead of one per step.
    fused_elementwise : bool
        Activation, bias and dropout-add run as fused kernels.
    overlap_tensor_parallel : {"none", "backward", "full"}
        "backward": gradient collectives of column-parallel layers hide behind the
        weight gradient (Megatron-LM); "full": every tensor-parallel collective is
        pipelined with its matrix product (Transformer Engine user buffers, async TP).
    overlap_gradient_reduce, overlap_parameter_gather : bool
        Data-parallel collectives run beside the last backward and first forward.
    overlap_pipeline : bool
        Stage-to-stage sends hide behind the next chunk's compute.
    overlap_expert_parallel : bool
        Dispatch and combine of one micro-batch hide behind another's compute.
    deduplicated_dispatch : bool
        A token is sent once to each rank (or, between nodes, to each node) that holds
        any of its experts, and copied there (DeepEP, HybridEP); otherwise once per expert.
    scaling : {"delayed", "current"}
        fp8 scales come from earlier steps, or from a pass of their own over the tensor.
    dispatch_bytes : float
        Bytes of one dispatched activation [B]; it is combined in 2.
    low_precision_parameters : bool
        Parameters are stored in the low precision of the products, without a 16-bit
        copy beside the fp32 master ("fp8 parameter gather" of Transformer Engine).
    grouped_gemm : bool
        All experts of a device run in one launch; otherwise one product each, as the
        grouped linear layers of Transformer Engine do.
    gradient_bytes : float
        Bytes of one stored main gradient [B].
    gradient_reduce_bytes : float
        Bytes of one gradient on the wire [B].
    optimizer_bytes : float
        Optimizer state per parameter: master copy and two moments [B].
    bucket_bytes : float
        Gradient bytes per data-parallel bucket [B].
    graph_launch : bool
        Kernels are launched from a captured graph or one compiled program.
    activation_bytes : float
        Bytes of one stored activation [B].
    dropout : bool
        Dropout is on: its masks (1 byte per element) are written and kept.
    pads_vocabulary_to : int
        Vocabulary is padded to a multiple of this times tensor_parallel.
    """

    name: str = "megatron"
    flash_attention: bool = True
    attention_generation: int = 0
    fused_cross_entropy: bool = True
    fused_elementwise: bool = True
    overlap_tensor_parallel: str = "backward"
    overlap_gradient_reduce: bool = True
    overlap_parameter_gather: bool = True
    overlap_pipeline: bool = True
    overlap_expert_parallel: bool = False
    deduplicated_dispatch: bool = False
    dispatch_bytes: float = 2.0
    scaling: str = "delayed"
    low_precision_parameters: bool = False
    grouped_gemm: bool = False
    gradient_bytes: float = 4.0
    gradient_reduce_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    bucket_bytes: float = 160e6
    graph_launch: bool = False
    activation_bytes: float = 2.0
    dropout: bool = False
    pads_vocabulary_to: int = 128


FRAMEWORKS: Mapping[str, Framework] = {
    item.name: item
    for item in (
        # Megatron-Core: ddp.overlap_grad_reduce/overlap_param_gather, bucket of 40M fp32 elements.
        Framework(),
        # Megatron-Core with Transformer Engine user buffers (tp_comm_overlap) and graphs.
        Framework(
            "megatron-tuned",
            overlap_tensor_parallel="full",
            gradient_reduce_bytes=2.0,
            scaling="current",
            low_precision_parameters=True,
        ),
        # The former with DeepEP's dispatcher and Megatron-Core's overlap of expert-parallel
        # exchanges of one micro-batch with another's compute.
        Framework(
            "megatron-deepep",
            overlap_tensor_parallel="full",
            overlap_expert_parallel=True,
            gradient_reduce_bytes=2.0,
            deduplicated_dispatch=True,
            scaling="current",
            low_precision_parameters=True,
            grouped_gemm=True,
        ),
        # Megatron-LM of Narayanan et al. 2021 and Megatron-DeepSpeed of the BLOOM runs:
        # unfused attention with fused softmax, nothing overlapped but the async
        # tensor-parallel all-reduce that came in 2022, dropout on.
        Framework(
            "megatron-2021",
            flash_attention=False,
            fused_cross_entropy=False,
            overlap_tensor_parallel="none",
            overlap_gradient_reduce=False,
            overlap_parameter_gather=False,
            overlap_pipeline=False,
            gradient_reduce_bytes=2.0,
            dropout=True,
        ),
        # Korthikanti et al. 2022: sequence parallelism, backward overlap, no flash.
        Framework(
            "megatron-2022",
            flash_attention=False,
            fused_cross_entropy=False,
            overlap_gradient_reduce=False,
            overlap_parameter_gather=False,
            dropout=True,
        ),
        # PyTorch FSDP: flat parameters per layer, bf16 reduction, no kernel fusion
        # across modules, unfused loss.
        Framework(
            "fsdp",
            attention_generation=2,
            fused_cross_entropy=False,
            fused_elementwise=False,
            overlap_tensor_parallel="none",
            gradient_bytes=4.0,
            gradient_reduce_bytes=2.0,
            bucket_bytes=1e9,
            pads_vocabulary_to=1,
        ),
        # torchtitan: FSDP2 with torch.compile, fp32 reduction, async TP as an option.
        Framework(
            "torchtitan",
            attention_generation=2,  # torch.nn.functional.scaled_dot_product_attention
            scaling="current",
            fused_cross_entropy=True,
            overlap_tensor_parallel="none",
            gradient_reduce_bytes=4.0,
            bucket_bytes=1e9,
            pads_vocabulary_to=1,
        ),
        # MaxText: XLA compiles the whole step; fp32 parameters are cast once per step.
        Framework(
            "maxtext",
            overlap_tensor_parallel="full",
            gradient_reduce_bytes=2.0,
            bucket_bytes=1e9,
            grouped_gemm=True,
            graph_launch=True,
            pads_vocabulary_to=1,
        ),
    )
}


def load_framework(name: str | Framework, **changes: Any) -> Framework:
    """Return a framework preset by name, with single fields changed.

    Raises
    ------
    StrategyError
        Unknown preset or field.
    """
    if isinstance(name, str):
        if name not in FRAMEWORKS:
            raise StrategyError(f"unknown framework '{name}'{did_you_mean(name, FRAMEWORKS)}")
        name = FRAMEWORKS[name]
    fields = Framework.__dataclass_fields__
    for key in changes:
        if key not in fields:
            raise StrategyError(f"unknown framework field '{key}'{did_you_mean(key, fields)}")
    return replace(name, **changes)
