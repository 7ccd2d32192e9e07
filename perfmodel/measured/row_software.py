"""The software that a row of a table of measured runs names, and how it was set.

Every rule states what the software does by its own documentation or source; none was
chosen because it brings a projection nearer to a measurement, but for one that says so.
What a row of fine-tuning leaves open is as the recipe of its software has it. Expressions over
cells stand in ``words/training.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from perfmodel.base.precisions import PRECISIONS, format_name
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.model.adapters import WORDS as ADAPTED
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.build import ModelSpec
from perfmodel.software.facts import Run
from perfmodel.software.framework import (
    AS_STATED,
    FRAMEWORKS,
    Framework,
    as_run,
    find_framework,
    load_framework,
    releases_of,
)
from perfmodel.software.graphs import NO_GRAPHS, graph_facts
from perfmodel.software.recompute import MODULES, OFFLOADED_POLICIES, SAVING_POLICIES, WORDS


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


# Words of the framework cell -> software; the first that is found counts.
SOFTWARE = (
    (r"megatron-deepspeed|neox", "megatron-deepspeed"),
    (r"llm-foundry|composer", "llm-foundry"),
    (r"torchtitan", "torchtitan"),
    (r"fms-fsdp", "fms-fsdp"),
    (r"automodel", "automodel"),
    (r"maxtext|\bjax\b|pax|t5x|axlearn|levanter|easylm|torch_?xla", "maxtext"),
    (r"neuron|nxd", "neuron"),
    (r"megascale", "megascale"),
    (r"primus", "primus"),
    (r"hai-llm|dualpipe", "hai-llm"),
    (r"megatron-bridge", "megatron-bridge"),
    (r"nemo|nvidia|ngc|bignlp", "nemo"),
    (r"megatron.*rocm", "megatron-rocm"),
    (r"megatron", "megatron"),
    (r"internevo|internlm", "internevo"),
    (r"colossal", "colossal-ai"),
    (r"nanotron", "nanotron"),
    (r"fsdp", "fsdp"),
)


MONTHS = 12


# Devices that only a compiler of whole programs drives, whatever the software is called.
COMPILED = (("tpu", "maxtext"), ("trainium", "neuron"))


def software_of(row: MeasuredRow) -> tuple[str, tuple[str, ...]]:
    """Return the preset of a row's software and release, and notes.

    Software without facts is a plain stack of the year that the row states.
    """
    cell, month = row.lower("framework"), release_of(row)
    found = next((name for words, name in SOFTWARE if re.search(words, cell)), "")
    if found == "nemo" and row.lower("version").startswith("mlperf"):
        found = "nvidia-mlperf"  # containers of a round, ahead of NeMo's releases
    if found == "primus" and "turbo" in row.lower("overlap"):
        found = "primus-turbo"
    notes: tuple[str, ...] = ()
    if not found:
        device = row.lower("hardware")
        found = next((name for word, name in COMPILED if word in device), "plain")
        notes = (f"framework '{row.text('framework')}' taken as {found} of its year",)
    own = FRAMEWORKS[find_framework(found)].software
    round_of_others = row.lower("version").startswith("mlperf") and own != "nvidia-mlperf"
    dated = bool(month) and len(releases_of(own)) > 1 and not round_of_others
    return find_framework(f"{own}@{month}" if dated else found), notes


def release_of(row: MeasuredRow) -> str:
    """Return the release that a row states: a number, a month or a year; empty for none.

    NVIDIA's and AMD's containers are called after the month (``NeMo container 26.02``,
    ``rocm/primus:v26.5``), as are the recipes of DGX Cloud.
    """
    version = row.lower("version")
    if found := re.match(r"mlperf v(\d+\.\d+)", version):
        return found.group(1)
    if found := re.search(r"\bv?(2\d)\.(\d\d?)\b", version):
        return f"20{found.group(1)}-{int(found.group(2)):02d}"
    if found := re.search(r"\b(20\d\d)(?:-(\d\d))?\b", version):
        second = found.group(2)
        # ``2023-24`` are two years, of which the later counts.
        return f"20{second}" if second and int(second) > MONTHS else found.group(0)
    if found := re.match(r"(?:core[_ ])?[rv]?(0\.\d+)", version):
        return found.group(1)
    return ""


_ASYNCHRONOUS = "async-tp|tp-comm"
_BESIDE_COMPUTE = "a2a overlap|overlap_moe_expert_parallel_comm"
_TURBO = r"turbo (?:attention|grouped|gemm|linear|deepep)"
_RECIPE = r"\bddp\.|dispatcher="  # a list of all that a recipe of NVIDIA's sets

# All that hold count, one after the other.
RULES = (
    Rule({"dropout": True}, where={"notes": r"dropout 0\.[0-9]*[1-9]"}),
    # Loads that no run forced to be even: those measured on DeepSeek-V3 (docs/routing.md).
    Rule({"routing": "two_level"}, where={"notes": r"real routing"}),
    # Composer, mosaic_parallelism.py, get_mixed_precision: DEFAULT reduces in fp32.
    Rule({"gradient_reduce_bytes": 4.0}, where={"notes": r"\bmp mode default\b"}),
    Rule({"gradient_reduce_bytes": 2.0}, where={"notes": r"\bmp mode pure\b"}),
    Rule({"flash_attention": False}, where={"flash": r"^no\b"}),
    Rule({"flash_attention": True}, where={"flash": r"."}, unless={"flash": r"^no\b"}),
    # Transformer Engine on ROCm: NVTE_CK_USES_BWD_V3, which scripts set before it was the default.
    Rule({"attention_generation": 0}, where={"flash": r"backward v3|bwd_?v3"}),
    # Primus' switches one by one, where a row lists them: what is not named is off.
    Rule(
        {"best_attention_is_plain": True},
        where={"overlap": _TURBO},
        unless={"overlap": r"turbo attention"},
    ),
    Rule(
        {"grouped_gemm": False},
        where={"overlap": _TURBO},
        unless={"overlap": r"turbo grouped"},
    ),
    # Without torch.compile nothing of torchtitan's is fused; async TP and float8 imply it.
    Rule(
        {
            "fused_elementwise": False,
            "fused_norm_and_rotary": False,
            "fused_cross_entropy": False,
        },
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
    # torchtitan gathers in 8 bits with one scale per tensor alone (parallelize_llama.py).
    Rule(
        {"scaling": "rows", "gathers_quantised": False},
        where={"notes": r"row-?wise", "precision": "fp8"},
        given=lambda _, framework: framework.fp8_library == "torchao",
    ),
    Rule({"overlap_tensor_parallel": "full"}, where={"overlap": _ASYNCHRONOUS}),
    Rule(
        {"overlap_tensor_parallel": "none"},
        where={"overlap": "vanilla tp"},
        unless={"overlap": _ASYNCHRONOUS},
    ),
    Rule(
        {"overlap_tensor_parallel": "backward"},
        where={"overlap": r"grad[-/]|dp grad"},
        unless={"overlap": f"{_ASYNCHRONOUS}|vanilla tp"},
        given=lambda row, framework: framework.tensor_overlap_on_request,
    ),
    Rule({"expert_dispatch": "all_to_all"}, where={"overlap": _RECIPE}),
    *(
        Rule({"expert_dispatch": way}, where={column: words})
        for way, words in (
            ("deepep", r"deepep"),
            ("hybrid_ep", r"hybrid-?ep|dispatcher=flex"),
            ("all_to_all", r"dispatcher=alltoall"),
        )
        for column in ("overlap", "framework")
    ),
    # Primus (training/utils.py, _get_sync_free_moe_options): stage 1 fuses router and permutation,
    # from stage 2 on counts stay on the device.
    Rule({"sorts_chunks": False}, where={"overlap": r"sync-?free"}),
    Rule(
        {"expert_counts_on_host": False},
        where={"overlap": r"sync-?free"},
        unless={"overlap": r"sync-?free moe stage 1"},
    ),
    # nanotron's script for several nodes (run_multinode.sh, with which its benchmarks start)
    # came to export TORCH_DISTRIBUTED_DEBUG=DETAIL (its first version does not; slurm_launcher.py
    # has it, later as a comment). Tables do not say which runs it started; the
    # host's floor per layer, which grows with the tensor degree, is in all those with a pipeline
    # over several nodes, and in none without.
    Rule(
        {"checks_collectives": True},
        where={"framework": "nanotron"},
        given=lambda row, _: (
            (row.number("pp") or 1) > 1
            and (row.number("n_gpus") or 1) > (row.number("gpus_per_node") or 8)
        ),
    ),
    # Read off the peaks, not off a source: most runs without a pipeline hold the gathered inputs
    # of two products of every layer, most of the others do not. functional.py has both ways
    # (tp_recompute_allgather); tables do not say which one a run took.
    Rule(
        {"keeps_gathered_inputs": True},
        where={"framework": "nanotron"},
        given=lambda row, _: (row.number("pp") or 1) == 1,
    ),
    # NVIDIA's scripts for experts (Megatron-MoE-ModelZoo): --expert-tensor-parallel-size 1 and
    # --moe-permute-fusion.
    Rule(
        {"expert_tensor_parallel": False, "sorts_chunks": False},
        where={"framework": r"megatron-core moe"},
    ),
    Rule({"overlap_expert_parallel": False}, where={"overlap": _RECIPE}),
    Rule({"overlap_expert_parallel": True}, where={"overlap": _BESIDE_COMPUTE}),
    Rule(
        {"grouped_gemm": False, "graph_launch": False, "graph_scope": "none"},
        where={"overlap": _RECIPE},
    ),
    *(Rule({"grouped_gemm": True}, where={column: "cutedsl"}) for column in ("overlap", "notes")),
    # Experts that take a fixed number of tokens; dispatch then is the plain all-to-all
    # (Megatron-Bridge, training/utils/moe_token_drop.py asserts so).
    Rule(
        {
            "capacity_factor": 1.0,
            "expert_dispatch": "all_to_all",
            "overlap_expert_parallel": False,
        },
        where={"notes": r"token-?drop"},
    ),
    # MaxText drops tokens in dense_matmul only (layers/moe.py).
    Rule({"expert_dispatch": "einsum"}, where={"notes": r"token-?drop", "framework": "maxtext"}),
    # Its shapes are static: without a pipeline, recipes hold whole iterations in a graph
    # (Megatron-Bridge 0.1, scripts/performance/configs/qwen3: "local", "full_iteration").
    Rule({"graph_launch": True}, where={"notes": r"token-?drop", "pp": r"^1$"}),
)


# Settings that a table took from the newest recipe of a repository, not from the run's release:
# what recipes switch on changes with each one, so that the dated facts know better.
_OF_ANOTHER_RELEASE = re.compile(r"overlap from (?:the )?(?:repo|repository) head")


def framework_of(row: MeasuredRow, run: Run) -> tuple[Framework, tuple[str, ...]]:
    """Return the declared behaviour of a row's software as it was set, and notes."""
    name, notes = software_of(row)
    framework = as_run(load_framework(name), run)
    if _OF_ANOTHER_RELEASE.search(row.lower("notes")):
        row = row.replaced("overlap", "")
    for rule in RULES:
        if rule.holds(row, framework):
            framework = replace(framework, **rule.changes)
    if words := recompute_of(row).words:
        framework = replace(framework, selective_recompute=words)
    return replace(_with_graphs(row, framework), name=f"{name}{AS_STATED}"), notes


def _with_graphs(row: MeasuredRow, framework: Framework) -> Framework:
    """Apply what a row says of CUDA graphs and of what they hold."""
    graphs = re.search(r"cuda_graph=(\S+)\s*(\[[^\]]*\])?", row.lower("overlap"))
    if graphs:
        some = graphs.group(1).rstrip(";") != "none"
        return replace(framework, **(graph_facts(graphs.group(2) or "") if some else NO_GRAPHS))
    if re.search(r"config \S*_cg|config_common_cg", row.text("notes")):
        return replace(framework, graph_launch=True)  # so MLPerf names its configurations
    return framework


# Words of the precision cell -> format; the first that is found counts. AMD's 4-bit blocks of 32
# elements (OCP Microscaling) run the same products as NVIDIA's of 16.
PRECISION_WORDS = (
    (r"fp4", "nvfp4"),
    (r"mx-?fp8|fp8[ _-]mx", "mxfp8"),
    (r"fp8|float8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16", "fp16"),
)


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
            # config_common.sh of NVIDIA's containers exports FP8=True; *_fp4.sh go below.
            return "fp8", ("precision=fp8",), ()
        return "bf16", ("precision=bf16",), ()
    if "int8" in text:
        raise Skip("int8 training is not modelled yet", row.text("precision"))
    for pattern, name in PRECISION_WORDS:
        if re.search(pattern, text):
            note = f"precision '{row.text('precision')}' taken as {name}"
            open_choice = name == "nvfp4" and "fp8" in text
            return name, (f"precision={name}",) if open_choice else (), (note,)
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


# "shard=64", "dp_shard 8", "HSDP 8x4"; "ZeRO-1 in 8", "within groups of 8".
_SCOPE = re.compile(
    r"(?:shard|size|group|scope|hsdp)\w*\s*(?:[=:]|of)?\s*(\d+)(?!d\b)"
    r"|zero-?\s*\d\s*(?:\(|,)?\s*(?:with)?in\s+(?:groups? of\s+)?(\d+)"
)


def _shard_group(row: MeasuredRow, text: str, model_parallel: int) -> int:
    """Return how many replicas share a set of shards; 0 for all.

    Stated as a number of replicas, or as the domain that holds them: a slice, pod or node.
    """
    if found := _SCOPE.search(text):
        return int(found.group(1) or found.group(2))
    slice_devices, devices = row.whole("gpus_per_node") or 0, row.whole("n_gpus") or 0
    in_slice = "in-pod" in text or ("ici_fsdp" in text and "dcn_fsdp" not in text)
    in_node = re.search(r"(?:with)?in (?:a |the |each )?node|in-node|intra-?node", text)
    if (in_slice or in_node) and 0 < slice_devices < devices:
        return max(slice_devices // model_parallel, 1)
    return 0


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


SPELLED: Mapping[str, str] = {
    "norm": "layernorm norm_linear",
    "rmsnorm": "layernorm norm_linear",
    "act": "activation moe_act",
    "mla up-proj": "mla_up_proj",
}
"""Modules as tables call them."""


class RowRecompute(NamedTuple):
    """What a row says.

    Attributes
    ----------
    level : str
        Empty: it does not say.
    layers : mapping
        Fields of the strategy, where only some layers are recomputed.
    words : str
        The fact `selective_recompute`; empty: as the software means it.
    waiting : tuple of str
        Saved outputs that wait in the host's memory.
    notes : tuple of str
    """

    level: str = ""
    layers: Mapping[str, Any] = {}
    words: str = ""
    waiting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def recompute_of(row: MeasuredRow) -> RowRecompute:
    """Return what a row recomputes."""
    text = row.lower("recompute")
    if found := re.match(r"full \((block|uniform) (\d+)", text):
        method, layers = found[1], int(found[2])
        return RowRecompute("full", {"recompute_method": method, "recompute_num_layers": layers})
    if text in ("", "full", "selective") or text.startswith("no"):
        return RowRecompute("none" if text.startswith("no") else text)
    note = (f"recompute '{row.text('recompute')}'",)
    if text.startswith("full"):
        return RowRecompute("full", notes=(*note, "taken as full"))
    if text.startswith("selective"):
        words = _modules(text)
        notes = () if words else (*note, "taken as selective")
        return RowRecompute("selective", words=words, notes=notes)
    return _policy(text, note)


def _modules(text: str) -> str:
    """Return the modules of a list in brackets, in the order of `WORDS`; empty without one."""
    found = re.search(r"[\[(]([^\])]*)[\])]", text)
    listed = re.split(r"\s*[,;]\s*", found[1].strip()) if found else []
    words = " ".join(SPELLED.get(word, word if word in MODULES else "") for word in listed).split()
    return " ".join(word for word in WORDS if word in words)


def _policy(text: str, note: tuple[str, ...]) -> RowRecompute:
    """Return what a policy of MaxText's repeats."""
    name = re.sub(r"^offload (\w+)$", r"\1_offloaded", text).replace("_flash", "_with_context")
    if name in OFFLOADED_POLICIES:
        words = OFFLOADED_POLICIES[name]
        return RowRecompute("selective", words=words, waiting=tuple(words.split()))
    if name in SAVING_POLICIES:
        return RowRecompute("selective", words=SAVING_POLICIES[name])
    if "offload" in text or "custom" in text:
        return RowRecompute("full", notes=(*note, "taken as full: no tensors are named"))
    return RowRecompute(notes=(*note, "not understood"))


class Recipe(NamedTuple):
    """Adapters of a recipe, and how long the documents are that it packs (0: as sequences)."""

    rank: int
    targets: tuple[str, ...]
    document_length: int = 0


SQUAD_TOKENS = 256
"""Tokens of the document of SQuAD in which a token stands on average [1]: an estimate.

Paragraphs of 117 words on average (23,215 of them, arXiv:1606.05250), with question, answer and
template; attention within them is so little that neither half nor twice as many would show."""

RECIPES: Mapping[str, Recipe] = {
    # Megatron-Bridge, recipes/llama: dim 16; perf_recipes/llama: target_modules linear_qkv,
    # packed_sequence_size as long as the sequence, of SQuAD ("packed sequence length" in the
    # tables of NVIDIA's performance summaries, of fine-tuning whole models as well).
    "megatron-bridge": Recipe(16, ("linear_qkv",), SQUAD_TOKENS),
    # NeMo 24.07, megatron_gpt_finetuning_config.yaml: adapter_dim 32, attention_qkv; from 2.0 on
    # recipes/llama3_8b.py: dim 8, finetune_performance_optimizations: linear_qkv.
    "nemo": Recipe(32, ("linear_qkv",), SQUAD_TOKENS),
    # MLPerf Training's benchmark: rank 16 on the projections of attention, documents of 8,192
    # tokens (training_policies, llama2_70b_lora).
    "nvidia-mlperf": Recipe(16, ("attention",)),
}
OTHERWISE = Recipe(16, ("all_linear",))
"""QLoRA's choice (arXiv:2305.14314, section 4), transformers' for quantised models."""


def tuned(row: MeasuredRow, model: ModelSpec) -> tuple[ModelSpec, dict[str, Any], tuple[str, ...]]:
    """Return the model with the adapters of a row, its documents, and what was assumed.

    Parameters
    ----------
    row : MeasuredRow
    model : ModelSpec
        As trained whole; returned so where the row is no LoRA.
    """
    task = row.lower("task")
    if task not in ("lora", "sft"):
        return model, {}, ()
    name, _ = software_of(row)
    recipe = RECIPES.get(name.partition("@")[0], OTHERWISE)
    strategy: dict[str, Any] = {}
    packed: tuple[str, ...] = ()
    if recipe.document_length and (row.whole("seq") or 0) > recipe.document_length:
        strategy["document_length"] = recipe.document_length
        packed = (f"document_length={recipe.document_length}",)
    if task == "sft":
        return model, strategy, packed
    notes = f"{row.lower('model')} {row.lower('notes')}"
    stated = re.search(r"lora (?:dim|rank|r) ?=?(\d+)|\br(\d+)\b|(?:dim|rank) ?=?(\d+)", notes)
    rank = int(next(filter(None, stated.groups()))) if stated else recipe.rank
    words = re.findall(r"\w+", row.lower("notes"))
    targets = tuple(word for word in ADAPTED if "_" in word and word in words)
    adapters = AdapterSpec(rank, targets or recipe.targets)
    assumed = [] if stated else [f"lora_rank={rank}"]
    assumed += [] if targets else [f"lora_targets={'+'.join(adapters.targets)}"]
    return model.with_adapters(adapters), strategy, (*assumed, *packed)
