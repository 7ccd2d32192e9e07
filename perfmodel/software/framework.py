"""Declared behaviour of the training software: what it overlaps, fuses and keeps.

A framework is not fitted. Each field states what that software does, as its
documentation or source says; the costs follow from the operations. The values and their
sources stand in ``frameworks/*.toml``, one file each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.notebook import facts_html
from perfmodel.software.facts import fact, facts_of, read_folder, with_changes

FOLDER = Path(__file__).parent / "frameworks"


@dataclass(frozen=True, slots=True)
class Framework:
    """What a training framework does beside the operations that mathematics asks for."""

    def __repr__(self) -> str:
        return f"<Framework {self.name}>"

    def _repr_html_(self) -> str:
        facts = [
            (f"{name}: {about.meaning}", getattr(self, name))
            for name, about in facts_of(Framework).items()
        ]
        return facts_html(f"framework {self.name}", facts)

    name: str = fact("preset name")
    flash_attention: bool = fact(
        "fused attention; otherwise two batched products with a softmax between them"
    )
    attention_generation: int = fact(
        "FlashAttention generation of the kernels: 1 (2022), 2 (2023), or 0 for the best that the "
        "device has (FlashAttention 3 or cuDNN on Hopper and Blackwell)"
    )
    fused_cross_entropy: bool = fact(
        "loss and its gradient in two passes over the logits instead of one per step"
    )
    fused_elementwise: bool = fact("norms, activation, bias and dropout-add run as fused kernels")
    keeps_intermediates: bool = fact(
        "autograd keeps what lies between the kernels of norms and activations, besides the inputs "
        "of products and fused kernels"
    )
    fused_mamba_output: bool = fact(
        "gated norm and output projection of Mamba-2 run inside the function of its scan, which "
        "computes their inputs again; otherwise behind it"
    )
    overlap_tensor_parallel: str = fact(
        "'backward': gradient collectives of column-parallel layers hide behind the weight "
        "gradient; 'full': every tensor-parallel collective is pipelined with its matrix product",
        choices=("none", "backward", "full"),
    )
    overlap_gradient_reduce: bool = fact("gradient reduction runs beside the last backward")
    overlap_parameter_gather: bool = fact("parameters are gathered beside the first forward")
    overlap_pipeline: bool = fact("stage-to-stage sends hide behind the next chunk's compute")
    overlap_expert_parallel: bool = fact(
        "dispatch and combine of one micro-batch hide behind another's compute"
    )
    deduplicated_dispatch: bool = fact(
        "a token is sent once to each rank (or, between nodes, to each node) that holds any of "
        "its experts, and copied there; otherwise once per expert"
    )
    dispatch_bytes: float = fact(
        "one dispatched activation; it is combined in 2", "B", positive=True
    )
    scaling: str = fact(
        "fp8 scales come from earlier steps, or from a pass of their own over the tensor",
        choices=("delayed", "current"),
    )
    low_precision_parameters: bool = fact(
        "parameters are stored in the low precision of the products, without a 16-bit copy beside "
        "the fp32 master"
    )
    grouped_gemm: bool = fact(
        "all experts of a device run in one launch; otherwise one product each"
    )
    gradient_accumulation: str = fact(
        "'fused': products add weight gradients to the main gradient; 'autograd': a kernel of its "
        "own adds 16-bit ones in place; 'separate': one adds them to a wider main gradient",
        choices=("fused", "autograd", "separate"),
    )
    gradient_bytes: float = fact("one stored main gradient", "B", positive=True)
    gradient_reduce_bytes: float = fact("one gradient on the wire", "B", positive=True)
    optimizer_bytes: float = fact("optimizer state per parameter: master copy and two moments", "B")
    bucket_bytes: float = fact("gradients per data-parallel bucket", "B", positive=True)
    graph_launch: bool = fact("kernels are launched from a captured graph or one compiled program")
    operators_per_kernel: float = fact(
        "operators that the host dispatches for each kernel outside of graphs: the one that "
        "launches it, views, allocations and autograd's nodes around it",
        minimum=1.0,
    )
    activation_bytes: float = fact("one stored activation", "B", positive=True)
    dropout: bool = fact("dropout is on: its masks (1 byte per element) are written and kept")
    pads_vocabulary_to: int = fact(
        "vocabulary is padded to a multiple of this times tensor_parallel", minimum=1
    )
    # What a published run means that does not say.
    zero_stage: int = fact("ZeRO stage of a run that states none")
    gathers_once_in_pipeline: bool = fact(
        "with a pipeline, gathered parameters stay from forward to backward: ZeRO 2 in place of 3"
    )
    sequence_parallel: bool = fact("on with tensor parallelism in a run that does not say")
    context_parallel_kind: str = fact(
        "how context ranks exchange keys and values in a run that does not say",
        choices=("ring", "all_gather", "all_to_all"),
    )
    accumulates_gradients: bool = fact(
        "a replica's sequences run as several micro-batches; otherwise, without a pipeline, as one"
    )
    compiles_on_request: bool = fact(
        "fused kernels come from a compiler that each run may leave out"
    )
    tensor_overlap_on_request: bool = fact(
        "overlap 'full' of tensor parallelism is a switch of each run; otherwise 'backward' stays"
    )
    fp8_library: str = fact(
        "whose casts and scales low-precision products use",
        choices=("none", "transformer-engine", "torchao", "xla"),
    )


_RECORDS = read_folder(FOLDER, {"": Framework}, StrategyError)

FRAMEWORKS: Mapping[str, Framework] = {name: it.facts[""] for name, it in _RECORDS.items()}
"""Presets by name."""

SOURCES: Mapping[str, Mapping[str, str]] = {name: it.source for name, it in _RECORDS.items()}
"""Preset -> field -> where its value is from."""


TITLES: Mapping[str, str] = {name: it.title for name, it in _RECORDS.items()}
"""Preset -> what it is, in a line."""

OF_MEASURED_RUNS = (
    "zero_stage",
    "gathers_once_in_pipeline",
    "sequence_parallel",
    "context_parallel_kind",
    "accumulates_gradients",
    "compiles_on_request",
    "tensor_overlap_on_request",
    "fp8_library",
)
"""Fields that say what a published run means; a projection is told by its strategy."""


def load_framework(name: str | Framework, /, **changes: Any) -> Framework:
    """Return a framework preset by name, with single fields changed.

    Parameters
    ----------
    name : str or Framework
    **changes
        Values of fields; the name of the result says which differ from the preset
        (``megatron[gradient_bytes=2]``).

    Raises
    ------
    StrategyError
        Unknown preset or field, or a value that the field cannot have.
    """
    if isinstance(name, str):
        if name not in FRAMEWORKS:
            raise StrategyError(f"unknown framework '{name}'{did_you_mean(name, FRAMEWORKS)}")
        name = FRAMEWORKS[name]
    framework: Framework = with_changes(name, changes, FRAMEWORKS, "framework", StrategyError)
    return framework
