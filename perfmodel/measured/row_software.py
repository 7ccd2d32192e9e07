"""The software that a row of a table of measured runs names, and how it was set.

Every rule states what the software does by its own documentation or source; none was
chosen because it brings a projection nearer to a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from perfmodel.base.precisions import PRECISIONS, format_name
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.software.framework import Framework, load_framework


class Preset(NamedTuple):
    """A preset, with fields changed, for rows in whose cells all patterns are found."""

    where: Mapping[str, str]
    name: str
    changes: Mapping[str, Any] = {}


class Rule(NamedTuple):
    """Fields that change where all patterns of `where` are found and none of `unless`.

    `given` asks for more than cells can be searched for; it sees what earlier rules made.
    """

    changes: Mapping[str, Any]
    where: Mapping[str, str] = {}
    unless: Mapping[str, str] = {}
    given: Callable[[MeasuredRow, Framework], bool] | None = None

    def holds(self, row: MeasuredRow, framework: Framework) -> bool:
        """Tell whether the rule speaks of a row."""
        return (
            all(_found(row, *cell) for cell in self.where.items())
            and not any(_found(row, *cell) for cell in self.unless.items())
            and (self.given is None or self.given(row, framework))
        )


def _found(row: MeasuredRow, column: str, pattern: str) -> bool:
    return re.search(pattern, row.lower(column)) is not None


# NVIDIA's recipes reduce gradients in 16 bits (grad_reduce_in_fp32=False), which in
# Megatron-Core also is the format of the accumulated gradients.
_TUNED = {"gradient_bytes": 2.0, "gradient_reduce_bytes": 2.0}

# The first that holds counts.
PRESETS = (
    # Its README: "follows those defined in NeMo Framework's performance scripts".
    Preset(
        {"framework": r"^megatron-lm", "source": "examples/llama"},
        "megatron-tuned",
        {**_TUNED, "scaling": "delayed"},
    ),
    Preset({"framework": r"^megatron-lm", "version": r"^20([01]\d|2[01])"}, "megatron-2021"),
    Preset({"framework": r"^megatron-lm", "version": r"^2022"}, "megatron-2022"),
    Preset({"framework": r"megatron-deepspeed"}, "megatron-2021"),
    # Composer's FSDP, mixed_precision DEFAULT: 16-bit parameters, fp32 reduction.
    # Its tables of 2023 were made with flash-attn 1 and its Triton port.
    Preset(
        {"framework": r"llm-foundry|composer"},
        "fsdp",
        {"gradient_reduce_bytes": 4.0, "attention_generation": 1},
    ),
    Preset({"framework": r"torchtitan"}, "torchtitan"),
    Preset({"framework": r"fms-fsdp"}, "torchtitan", {"gradient_reduce_bytes": 2.0}),
    Preset({"framework": r"automodel"}, "torchtitan"),
    Preset({"framework": r"maxtext|jax"}, "maxtext"),
    # One compiled program per step.
    Preset(
        {"framework": r"neuron|nxd"},
        "megatron",
        {"graph_launch": True, "gradient_reduce_bytes": 2.0},
    ),
    Preset({"framework": r"megascale"}, "megatron-tuned", _TUNED),
    # Megatron-LM with Transformer Engine, not one of NVIDIA's recipes.
    Preset({"framework": r"megatron-lm \d"}, "megatron"),
    Preset({"framework": r"primus"}, "megatron"),
    # DeepSeek-V3 report: DualPipe hides dispatch and combine of one micro-batch behind
    # another's compute (3.2.1); bf16 moments beside the fp32 master weights (3.3.3).
    # Its dispatch goes once to each node, at most four of them (2.1.2).
    Preset(
        {"framework": r"hai-llm|dualpipe"},
        "megatron",
        {
            "overlap_expert_parallel": True,
            "optimizer_bytes": 8.0,
            "deduplicated_dispatch": True,
            "dispatch_bytes": 1.0,
            "low_precision_parameters": True,
        },
    ),
    Preset({"framework": r"megatron-bridge|nemo|nvidia|ngc"}, "megatron-tuned", _TUNED),
    Preset({"framework": r"megatron"}, "megatron"),
    Preset({"framework": r"internevo|internlm"}, "megatron", {"gradient_reduce_bytes": 2.0}),
    Preset({"framework": r"nanotron"}, "nanotron"),
    Preset({"framework": r"fsdp"}, "fsdp"),
)


def _before_current_scaling(row: MeasuredRow, framework: Framework) -> bool:
    """Transformer Engine 2.0 (early 2025) brought current scaling; before, fp8 was delayed."""
    if framework.fp8_library != "transformer-engine":
        return False
    version = row.lower("version")
    if found := re.match(r"mlperf v(\d)", version):
        return int(found.group(1)) <= 4
    found = re.search(r"\b(?:20)?(2\d)\b[.-]?", version)
    return found is not None and int(found.group(1)) < 25


def _before_flash_attention_3(row: MeasuredRow, framework: Framework) -> bool:
    """Software older than FlashAttention-3 (July 2024, Transformer Engine 1.11).

    MLPerf submissions had cuDNN kernels of their own; TPUs have other kernels.
    """
    if framework.attention_generation != 0:
        return False
    if row.lower("family") == "mlperf" or row.lower("hardware").startswith("tpu"):
        return False
    version = row.lower("version")
    if container := re.match(r"(?:nemo )?(2\d)\.(\d\d)\b", version):
        return (int(container.group(1)), int(container.group(2))) < (24, 9)
    if core := re.match(r"r?0\.(\d+)\b", version):
        return int(core.group(1)) <= 8  # Megatron-Core 0.8 is of July 2024
    year = re.match(r"20\d\d", version)
    return year is not None and 0 < int(year.group()) < 2024


def _leaves_tensor_overlap_out(row: MeasuredRow, framework: Framework) -> bool:
    """A list of overlaps without tp-comm; and NVIDIA's nvfp4 recipes switch it off."""
    listed = r"grad[-/]|dp grad"
    return framework.tensor_overlap_on_request and (
        _found(row, "overlap", listed) or precision_of(row)[0] == "nvfp4"
    )


_ASYNCHRONOUS = "async-tp|tp-comm"

# All that hold count, one after the other.
RULES = (
    Rule({"scaling": "delayed"}, given=_before_current_scaling),
    Rule({"gradient_reduce_bytes": 2.0}, where={"notes": r"\bmp mode pure\b"}),
    Rule({"flash_attention": False}, where={"flash": r"^no\b"}),
    Rule({"flash_attention": True}, where={"flash": r"."}, unless={"flash": r"^no\b"}),
    # Without torch.compile nothing of torchtitan's is fused; async TP and float8 imply it.
    Rule(
        {"fused_elementwise": False, "fused_cross_entropy": False},
        unless={"overlap": r"compile|async", "precision": "fp8"},
        given=lambda row, framework: framework.compiles_on_request,
    ),
    Rule(
        {
            "overlap_tensor_parallel": "none",
            "overlap_gradient_reduce": False,
            "overlap_parameter_gather": False,
            "overlap_pipeline": False,
            "overlap_expert_parallel": False,
        },
        where={"overlap": "comm overlap off"},
    ),
    Rule({"overlap_tensor_parallel": "full"}, where={"overlap": _ASYNCHRONOUS}),
    Rule(
        {"overlap_tensor_parallel": "none"},
        where={"overlap": "vanilla tp"},
        unless={"overlap": _ASYNCHRONOUS},
    ),
    Rule(
        {"overlap_tensor_parallel": "backward"},
        unless={"overlap": f"{_ASYNCHRONOUS}|vanilla tp"},
        given=_leaves_tensor_overlap_out,
    ),
    *(
        Rule({"deduplicated_dispatch": True}, where={column: r"hybrid-?ep|deepep|dispatcher=flex"})
        for column in ("overlap", "framework")
    ),
    Rule({"attention_generation": 2}, given=_before_flash_attention_3),
    Rule(
        {"overlap_expert_parallel": True},
        where={"overlap": "a2a overlap|overlap_moe_expert_parallel_comm"},
    ),
)
GRAPH_SCOPES = ("full_iteration", "attn")


def framework_of(row: MeasuredRow) -> tuple[Framework, tuple[str, ...]]:
    """Return the declared behaviour of a row's software, and notes."""
    notes: tuple[str, ...] = ()
    for preset in PRESETS:
        if all(_found(row, *cell) for cell in preset.where.items()):
            framework = replace(load_framework(preset.name, **preset.changes), name=preset.name)
            break
    else:
        framework = load_framework("megatron")
        notes = (f"framework '{row.text('framework')}' taken as Megatron-Core",)
    for rule in RULES:
        if rule.holds(row, framework):
            framework = replace(framework, **rule.changes)
    return _with_graphs(row, framework), notes


def _with_graphs(row: MeasuredRow, framework: Framework) -> Framework:
    """Apply what a row says of CUDA graphs and of what they hold."""
    graphs = re.search(r"cuda_graph=(\S+)\s*(\[[^\]]*\])?", row.lower("overlap"))
    if graphs and graphs.group(1).rstrip(";") != "none":
        scope = graphs.group(2) or ""
        launched = not scope or any(part in scope for part in GRAPH_SCOPES)
        return replace(framework, graph_launch=launched)
    if not graphs and re.search(r"config \S*_cg", row.text("notes")):
        return replace(framework, graph_launch=True)  # so MLPerf names its configurations
    return framework


def precision_of(row: MeasuredRow) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the precision, what was assumed, and notes.

    Raises
    ------
    Skip
        A format that is not modelled.
    """
    text = row.lower("precision")
    known = "nvfp4" if text == "fp4" else format_name(text)
    if known in PRECISIONS:
        return known, (), ()
    if not text:
        if row.lower("version").startswith("mlperf"):
            # The closed-division configurations of H100 and later train in fp8 or below.
            return "fp8", ("precision=fp8",), ()
        return "bf16", ("precision=bf16",), ()
    if "int8" in text:
        raise Skip("int8 training is not modelled yet", row.text("precision"))
    if "nvfp4" in text:
        note = f"precision '{row.text('precision')}' taken as nvfp4"
        return "nvfp4", ("precision=nvfp4",), (note,)
    for name in ("mxfp8", "fp8", "bf16", "fp16"):
        if name in text:
            note = f"precision '{row.text('precision')}' taken as {name}"
            return name, (), (note,)
    raise Skip("unknown precision", row.text("precision"))


def zero_of(
    row: MeasuredRow, framework: Framework, pipeline: int, model_parallel: int
) -> tuple[int, int]:
    """Return the ZeRO stage and the shard group (0: all replicas).

    Parameters
    ----------
    row : MeasuredRow
    framework : Framework
    pipeline : int
        Pipeline degree.
    model_parallel : int
        Tensor times pipeline degree.
    """
    text = row.lower("fsdp_zero")
    if found := re.search(r"zero-?\s*(\d)", text):
        stage = int(found.group(1))
    elif "shard-grad-op" in text:
        stage = 2
    elif "fsdp" in text or "full-shard" in text or "hsdp" in text:
        stage = 3
    elif row.lower("dist_optimizer").startswith("no"):
        stage = 0
    elif row.lower("dist_optimizer").startswith("yes"):
        stage = 1
    else:
        stage = framework.zero_stage
    if stage == 3 and pipeline > 1 and framework.gathers_once_in_pipeline:
        stage = 2
    return stage, _shard_group(row, text, model_parallel) if stage else 0


def _shard_group(row: MeasuredRow, text: str, model_parallel: int) -> int:
    if found := re.search(r"(?:shard|size|group|scope)\s*=\s*(\d+)", text):
        return int(found.group(1))
    slice_devices, devices = row.whole("gpus_per_node") or 0, row.whole("n_gpus") or 0
    in_slice = "in-pod" in text or ("ici_fsdp" in text and "dcn_fsdp" not in text)
    if in_slice and 0 < slice_devices < devices:
        return max(slice_devices // model_parallel, 1)
    return 0


def recompute_of(row: MeasuredRow) -> tuple[str, int, tuple[str, ...]]:
    """Return the recompute level, layers per chunk where only some are, and notes.

    An empty level means that the row doesn't say.
    """
    text = row.lower("recompute")
    if not text:
        return "", 0, ()
    if found := re.match(r"full \(block (\d+)", text):
        return "full", int(found.group(1)), ()
    if text.startswith(("none", "no")):
        return "none", 0, ()
    if text in ("full", "selective"):
        return text, 0, ()
    note = (f"recompute '{row.text('recompute')}'",)
    if text.startswith("full"):
        return "full", 0, (*note, "taken as full")
    if text.startswith("selective"):
        return "selective", 0, (*note, "taken as selective")
    if "offload" in text or "custom" in text:
        # MaxText policies that keep some projections in host memory and compute the rest
        # of the layer again.
        return "full", 0, (*note, "taken as full; offloading is not modelled")
    return "", 0, (*note, "not understood")


def recomputes_half(row: MeasuredRow) -> bool:
    """Tell whether "selective" means half of the forward pass.

    In torchtitan it does, in both of its options: every second layer, or every second
    matrix product with all that is cheap (torchtitan/models/…/parallelize.py).
    """
    return "torchtitan" in row.lower("framework") and row.lower("recompute") == "selective"


def context_parallel_kind(row: MeasuredRow, framework: Framework) -> str:
    """As stated, else as the software does it."""
    if re.search(r"cp comm a2a|ulysses", row.lower("notes")):
        return "all_to_all"
    return framework.context_parallel_kind


def sequence_parallel(row: MeasuredRow, framework: Framework, tensor: int) -> bool:
    """As stated; else on with tensor parallelism where the software has it."""
    if tensor == 1:
        return False
    stated = row.lower("sequence_parallel")
    if stated:
        return stated.startswith(("y", "1", "true"))
    return framework.sequence_parallel
