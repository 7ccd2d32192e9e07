"""The software that a row of a table of measured runs names, and how it was set.

Every rule states what the software does by its own documentation or source; none was
chosen because it brings a projection nearer to a measurement.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from perfmodel.base.precisions import PRECISIONS, format_name
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.software.framework import Framework, load_framework

# NVIDIA's recipes reduce gradients in 16 bits (grad_reduce_in_fp32=False), which in
# Megatron-Core also is the format of the accumulated gradients.
_TUNED = {"gradient_bytes": 2.0, "gradient_reduce_bytes": 2.0}

# (pattern of the framework cell, preset, changed fields); the first match counts.
SOFTWARE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (r"megatron-deepspeed", "megatron-2021", {}),
    # Composer's FSDP, mixed_precision DEFAULT: 16-bit parameters, fp32 reduction.
    # Its tables of 2023 were made with flash-attn 1 and its Triton port.
    (
        r"llm-foundry|composer",
        "fsdp",
        {"gradient_reduce_bytes": 4.0, "attention_generation": 1},
    ),
    (r"torchtitan", "torchtitan", {}),
    (r"fms-fsdp", "torchtitan", {"gradient_reduce_bytes": 2.0}),
    (r"automodel", "torchtitan", {}),
    (r"maxtext|jax", "maxtext", {}),
    # One compiled program per step.
    (r"neuron|nxd", "megatron", {"graph_launch": True, "gradient_reduce_bytes": 2.0}),
    (r"megascale", "megatron-tuned", _TUNED),
    # Megatron-LM with Transformer Engine, not one of NVIDIA's recipes.
    (r"megatron-lm \d", "megatron", {}),
    (r"primus", "megatron", {}),
    # DeepSeek-V3 report: DualPipe hides dispatch and combine of one micro-batch behind
    # another's compute (3.2.1); bf16 moments beside the fp32 master weights (3.3.3).
    # Its dispatch goes once to each node, at most four of them (2.1.2).
    (
        r"hai-llm|dualpipe",
        "megatron",
        {
            "overlap_expert_parallel": True,
            "optimizer_bytes": 8.0,
            "deduplicated_dispatch": True,
            "dispatch_bytes": 1.0,
            "low_precision_parameters": True,
        },
    ),
    (r"megatron-bridge|nemo|nvidia|ngc", "megatron-tuned", _TUNED),
    (r"megatron-core", "megatron", {}),
    (r"megatron", "megatron", {}),
    (r"internevo|internlm", "megatron", {"gradient_reduce_bytes": 2.0}),
    (r"fsdp", "fsdp", {}),
)
GRAPH_SCOPES = ("full_iteration", "attn")


def framework_of(row: MeasuredRow) -> tuple[Framework, tuple[str, ...]]:
    """Return the declared behaviour of a row's software, and notes."""
    notes: list[str] = []
    name = row.lower("framework")
    preset, changes = "", dict[str, Any]()
    if name.startswith("megatron-lm") and "examples/llama" in row.lower("source"):
        # Its README: "follows those defined in NeMo Framework's performance scripts".
        preset, changes = "megatron-tuned", dict(_TUNED)
    elif name.startswith("megatron-lm") and (year := _year(row)) and year <= 2022:
        preset = f"megatron-{max(year, 2021)}"
    else:
        for pattern, found, fields in SOFTWARE:
            if re.search(pattern, name):
                preset, changes = found, dict(fields)
                break
    if not preset:
        preset = "megatron"
        notes.append(f"framework '{row.text('framework')}' taken as Megatron-Core")
    if preset == "megatron-tuned" and (
        _before_current_scaling(row) or "examples/llama" in row.lower("source")
    ):
        changes["scaling"] = "delayed"
    if re.search(r"\bMP mode PURE\b", row.text("notes")):
        changes["gradient_reduce_bytes"] = 2.0
    if row.lower("flash"):
        changes["flash_attention"] = not re.match(r"no\b", row.lower("flash"))
    framework = load_framework(preset, **changes)
    return _overlaps(row, _compiled(row, framework)), tuple(notes)


def _before_current_scaling(row: MeasuredRow) -> bool:
    """Transformer Engine 2.0 (early 2025) brought current scaling; before, fp8 was delayed."""
    version = row.lower("version")
    if found := re.match(r"mlperf v(\d)", version):
        return int(found.group(1)) <= 4
    found = re.search(r"\b(?:20)?(2\d)\b[.-]?", version)
    return found is not None and int(found.group(1)) < 25


def _year(row: MeasuredRow) -> int:
    found = re.match(r"20\d\d", row.text("version"))
    return int(found.group()) if found else 0


def _before_flash_attention_3(row: MeasuredRow) -> bool:
    """Software older than FlashAttention-3 (July 2024, Transformer Engine 1.11).

    MLPerf submissions had cuDNN kernels of their own; TPUs have other kernels.
    """
    if row.lower("family") == "mlperf" or row.lower("hardware").startswith("tpu"):
        return False
    version = row.lower("version")
    if container := re.match(r"(?:nemo )?(2\d)\.(\d\d)\b", version):
        return (int(container.group(1)), int(container.group(2))) < (24, 9)
    if core := re.match(r"r?0\.(\d+)\b", version):
        return int(core.group(1)) <= 8  # Megatron-Core 0.8 is of July 2024
    return 0 < _year(row) < 2024


def _compiled(row: MeasuredRow, framework: Framework) -> Framework:
    """Without torch.compile nothing of torchtitan's is fused; async TP and float8 imply it."""
    if framework.name != "torchtitan":
        return framework
    compiled = re.search(r"compile|async", row.lower("overlap")) or "fp8" in row.lower("precision")
    return (
        framework
        if compiled
        else replace(framework, fused_elementwise=False, fused_cross_entropy=False)
    )


def _overlaps(row: MeasuredRow, framework: Framework) -> Framework:
    """Apply what the ``overlap`` cell states."""
    text = row.lower("overlap")
    changes: dict[str, Any] = {}
    if "comm overlap off" in text:
        changes = {
            "overlap_tensor_parallel": "none",
            "overlap_gradient_reduce": False,
            "overlap_parameter_gather": False,
            "overlap_pipeline": False,
            "overlap_expert_parallel": False,
        }
    if "async-tp" in text or "tp-comm" in text:
        changes["overlap_tensor_parallel"] = "full"
    elif "vanilla tp" in text:
        changes["overlap_tensor_parallel"] = "none"
    elif framework.name == "megatron-tuned" and (
        re.search(r"grad[-/]|dp grad", text) or precision_of(row)[0] == "nvfp4"
    ):
        # A list of overlaps without tp-comm; and NVIDIA's nvfp4 recipes switch it off.
        changes["overlap_tensor_parallel"] = "backward"
    dispatcher = text + " " + row.lower("framework")
    if re.search(r"hybrid-?ep|deepep|dispatcher=flex", dispatcher):
        changes["deduplicated_dispatch"] = True
    if _before_flash_attention_3(row) and framework.attention_generation == 0:
        changes["attention_generation"] = 2
    if "a2a overlap" in text or "overlap_moe_expert_parallel_comm" in text:
        changes["overlap_expert_parallel"] = True
    if graphs := re.search(r"cuda_graph=(\S+)\s*(\[[^\]]*\])?", text):
        scope = graphs.group(2) or ""
        if graphs.group(1).rstrip(";") != "none":
            changes["graph_launch"] = not scope or any(part in scope for part in GRAPH_SCOPES)
    elif re.search(r"config \S*_cg", row.text("notes")):
        changes["graph_launch"] = True  # MLPerf names its configurations with CUDA graphs so
    return replace(framework, **changes)


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
    elif framework.name in ("fsdp", "torchtitan", "maxtext"):
        stage = 3
    else:
        # Megatron's distributed optimizer came after the runs of these two presets.
        stage = 0 if framework.name in ("megatron-2021", "megatron-2022") else 1
    if stage == 3 and pipeline > 1 and framework.name == "torchtitan":
        # reshard_after_forward "default": with a pipeline, parameters stay gathered.
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
    """Ring (Transformer Engine's default), all-gather (torchtitan, XLA) or as stated."""
    if re.search(r"cp comm a2a|ulysses", row.lower("notes")):
        return "all_to_all"
    return "all_gather" if framework.name in ("torchtitan", "maxtext") else "ring"


def sequence_parallel(row: MeasuredRow, framework: Framework, tensor: int) -> bool:
    """As stated; else on with tensor parallelism, but for software that came before it."""
    if tensor == 1:
        return False
    stated = row.lower("sequence_parallel")
    if stated:
        return stated.startswith(("y", "1", "true"))
    return framework.name not in ("megatron-2021", "megatron-2022")
