"""torchtitan's job configuration (TOML), written and read.

Tables, keys and defaults are those of ``torchtitan/config/job_config.py`` of torchtitan v0.2
(pytorch/torchtitan, 2025; since 2026 jobs are configured in Python under the same names); checks
are those of ``torchtitan/distributed/parallel_dims.py`` and ``pipeline_parallel.py``. Parameters
are sharded by FSDP2 over the shard × context ranks (ZeRO 3; without resharding after the forward
pass ZeRO 2) and replicated over the replicate ranks. Tensor parallelism always shards the sequence.
Context parallelism passes keys and values on by an all-to-all of neighbours, which is a ring, or
gathers them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.describe import Launch, has_experts, known_as
from perfmodel.launch.offload import Switch, read_offload
from perfmodel.launch.reading import finished
from perfmodel.launch.recompute import method_limit
from perfmodel.launch.settings import (
    Choice,
    Entry,
    Keys,
    Limit,
    Number,
    Settings,
    Spelling,
    read_choices,
    read_numbers,
    write_table,
)
from perfmodel.launch.shell import format_comment, parse_arguments
from perfmodel.launch.stages import NAMED
from perfmodel.launch.torchtitan_stages import LIMITS as STAGE_LIMITS
from perfmodel.launch.torchtitan_stages import (
    NAMES,
    SCHEDULE,
    name_schedule,
    read_stages,
    stage_keys,
)
from perfmodel.launch.tree import format_toml, launcher, parse_toml
from perfmodel.model.build import ModelSpec
from perfmodel.model.presets import load_model

TITLE = "torchtitan"
PRESET = "torchtitan"
PRESETS = ("torchtitan",)

_SHARD = "parallelism.data_parallel_shard_degree"
_REPLICATE = "parallelism.data_parallel_replicate_degree"
_MICRO = "parallelism.pipeline_parallel_microbatch_size"
_LOCAL = "training.local_batch_size"
_GLOBAL = "training.global_batch_size"
_EXPERT_TENSOR = "parallelism.expert_tensor_parallel_degree"
_RESHARD = "parallelism.fsdp_reshard_after_forward"
_ROTATE = "parallelism.context_parallel_rotate_method"
_PARAMETERS = "training.mixed_precision_param"

_DEGREES = (
    _REPLICATE,
    "parallelism.tensor_parallel_degree",
    "parallelism.context_parallel_degree",
    "parallelism.pipeline_parallel_degree",
)
NUMBERS = (
    Number("training.seq_len", "sequence_length", 2048),
    Number("parallelism.tensor_parallel_degree", "tensor_parallel"),
    Number("parallelism.context_parallel_degree", "context_parallel"),
    Number("parallelism.pipeline_parallel_degree", "pipeline_parallel"),
    Number("parallelism.expert_parallel_degree", "expert_parallel"),
)


def _shards(launch: Launch) -> bool:
    return launch.replicas > 1 and launch["zero_stage"] > 0


_MODE, _OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"

CHOICES = (
    Choice(
        "sequence_parallel",
        (Spelling(True),),
        when=lambda launch: launch["tensor_parallel"] > 1,
    ),
    Choice(
        "context_parallel_kind",
        (Spelling("all_gather", {_ROTATE: "allgather"}), Spelling("ring", {_ROTATE: "alltoall"})),
        {_ROTATE: "allgather"},
        lambda launch: launch["context_parallel"] > 1,
    ),
    Choice(
        "pipeline_schedule",
        tuple(Spelling(schedule, {SCHEDULE: name}) for schedule, name in NAMES.items()),
        {SCHEDULE: "1F1B"},
        lambda launch: launch["pipeline_parallel"] > 1,
    ),
    Choice("mapping", (Spelling("tensor-context-data-pipeline"),)),
    Choice(
        "zero_stage",
        (Spelling(3, {_RESHARD: "always"}), Spelling(2, {_RESHARD: "never"})),
        when=_shards,
    ),
    Choice(
        "recompute",
        (
            Spelling("none", {"activation_checkpoint.mode": "none"}),
            Spelling(
                "selective",
                {"activation_checkpoint.mode": "selective"},
            ),
            Spelling("full", {"activation_checkpoint.mode": "full"}),
        ),
        {"activation_checkpoint.mode": "selective"},
    ),
    Choice(
        "precision",
        (
            Spelling("bf16", {"model.converters": []}, {_PARAMETERS: "bfloat16"}),
            Spelling("fp8", {"model.converters": ["quantize.linear.float8"]}),
            Spelling("mxfp8", {"model.converters": ["quantize.linear.mx"]}),
            # Names up to v0.1.
            Spelling("fp8", {"model.converters": ["float8"]}),
            Spelling("mxfp8", {"model.converters": ["mx"]}),
        ),
        {"model.converters": []},
    ),
)

_RECIPE = "quantize.linear.float8.recipe_name"
_RECIPES = {"scaling": ("current", "rows"), "gathers_quantised": (True, False)}
_COMPILED = {"fused_elementwise", "fused_norm_and_rotary", "fused_cross_entropy"}
SOFTWARE = (
    *(
        Choice(
            field,
            (Spelling(True, {"compile.enable": True}), Spelling(False, {"compile.enable": False})),
        )
        for field in sorted(_COMPILED)
    ),
    Choice(
        "overlap_tensor_parallel",
        (
            Spelling("none", {"parallelism.enable_async_tensor_parallel": False}),
            Spelling("full", {"parallelism.enable_async_tensor_parallel": True}),
        ),
        when=lambda launch: launch["tensor_parallel"] > 1,
    ),
    *(
        Choice(
            field,
            (Spelling(tensors, {_RECIPE: "tensorwise"}), Spelling(rows, {_RECIPE: "rowwise"})),
            {_RECIPE: "tensorwise"},
            when=lambda launch: launch["precision"] == "fp8",
        )
        for field, (tensors, rows) in _RECIPES.items()
    ),
)


def _expert_meshes(launch: Launch) -> bool:
    """Tell whether expert groups break a rule of torchtitan's meshes."""
    expert, inner = launch["expert_parallel"], launch["expert_tensor_parallel"]
    tensor, context = launch["tensor_parallel"], launch["context_parallel"]
    shard = _shard_degree(launch) * context
    if expert == 1:
        return bool(inner != tensor)
    if inner == tensor:
        return bool(expert % context or shard % expert)
    return bool(inner != 1 or expert % (context * tensor) or shard * tensor % expert)


LIMITS = (
    method_limit("every"),
    Limit(
        ("zero_stage",),
        lambda launch: (
            launch["zero_stage"] == 0
            and launch.replicas > 1
            and launch["data_parallel"] != launch.devices
        ),
        "replicas without sharding (DDP) go with no other parallelism; FSDP is zero 3, or 2",
    ),
    Limit(
        ("shard_group", "context_parallel"),
        lambda launch: launch["shard_group"] % launch["context_parallel"] != 0,
        "context ranks share a shard set: it has to be a multiple of them",
    ),
    Limit(
        ("expert_parallel", "expert_tensor_parallel"),
        lambda launch: launch.experts and _expert_meshes(launch),
        "experts are cut by all of tensor parallelism or, with expert parallelism over all tensor "
        "and context ranks, not at all; expert_tensor_parallel 1 or that of the rest",
    ),
    *STAGE_LIMITS,
    NAMED,
    Limit(
        ("sequence_length", "tensor_parallel", "context_parallel"),
        lambda launch: (
            launch["context_parallel"] > 1
            and launch["sequence_length"]
            % (2 * launch["tensor_parallel"] * launch["context_parallel"])
            != 0
        ),
        "the length has to be a multiple of twice both",
    ),
)

# FSDP2's CPUOffloadPolicy: shards, their gradients and the optimizer stay with the host.
OFFLOADED = (Switch("training.enable_cpu_offload", ("offload_parameters", "offload_optimizer")),)

WATCHED: Mapping[str, str] = {
    "optimizer.early_step_in_backward": "the optimizer is projected after the backward pass",
    "parallelism.disable_loss_parallel": "the loss is projected as sharded over the vocabulary",
    "parallelism.enable_compiled_autograd": "compiled autograd is not modelled",
    "quantize.linear.float8.enable_fsdp_float8_all_gather": "parameters are gathered in 16 bits "
    "unless --set software.low_precision_parameters=true",
    "float8.enable_fsdp_float8_all_gather": "parameters are gathered in 16 bits unless --set "
    "software.low_precision_parameters=true",
    "parallelism.pipeline_parallel_schedule_csv": "stages run as the named schedule says; "
    "--schedule-file takes the table",
    "parallelism.pipeline_parallel_microbatches": "micro-batches of a pipeline hold one sequence "
    "unless pipeline_parallel_microbatch_size says so",
    "parallelism.context_parallel_load_balancer": "sequences are projected as balanced",
    "parallelism.expert_parallel_comm_backend": "tokens are exchanged as --framework says",
    "parallelism.pipeline_parallel_expert_parallel_overlap": "expert exchanges are projected "
    "without overlap",
    "fault_tolerance.enable": "fault tolerance is not modelled",
}

# Name of today -> earlier ones: torchtitan/config_manager.py of 2024 had the degrees in [training]
# and [experimental], up to v0.1; batch_size became local_batch_size in v0.2.
OLD_NAMES: Mapping[str, str] = {
    "training.batch_size": _LOCAL,
    "float8.recipe_name": _RECIPE,
    "training.compile": "compile.enable",
    "training.data_parallel_degree": _SHARD,
    "training.data_parallel_shard_degree": _SHARD,
    "training.data_parallel_replicate_degree": _REPLICATE,
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.fsdp_reshard_after_forward": _RESHARD,
    **{
        f"experimental.{name}": f"parallelism.{name}"
        for name in (
            "pipeline_parallel_degree",
            "pipeline_parallel_schedule",
            "pipeline_parallel_microbatch_size",
            "pipeline_parallel_split_points",
            "context_parallel_degree",
            "context_parallel_rotate_method",
            "enable_async_tensor_parallel",
            "enable_compiled_autograd",
        )
    },
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatches",
}
# Keys of [parallelism] that are known and change no time.
OTHERS = ("enable_sequence_parallel",)
_PRESET_OF = re.compile(r"^#.*\bpreset for (\d{1,7}) [\w ]*GPUs?\b", re.MULTILINE)

# torchtitan/models/*/__init__.py of v0.2: (name, flavor) -> preset.
FLAVORS: Mapping[tuple[str, str], str] = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("llama2", "7B"): "llama-2-7b",
    ("llama2", "13B"): "llama-2-13b",
    ("llama2", "70B"): "llama-2-70b",
    ("llama4", "17bx16e"): "llama-4-scout",
    ("llama4", "17bx128e"): "llama-4-maverick",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "14B"): "qwen3-14b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}


def _shard_degree(launch: Launch) -> int:
    """Return the data-parallel ranks of one shard set."""
    if launch["zero_stage"] == 0:
        return 1
    return int((launch["shard_group"] or launch.replicas) // launch["context_parallel"])


def _recompute_keys(launch: Launch) -> Keys:
    """Return what selective recomputation is of: operations, or every so many-th layer."""
    if launch["recompute"] == "selective":
        return {_OPTION: "op"}
    if launch["recompute_method"] != "every":
        return {}
    return {_MODE: "selective", _OPTION: str(launch["recompute_num_layers"])}


def _read_layers(settings: Settings, level: str) -> Keys:
    """Return which layers are recomputed whole, where that is every so many-th.

    Raises
    ------
    FormatError
        The option is neither ``op`` nor a number of layers.
    """
    option = settings.word(_OPTION, "op")
    if level != "selective" or option == "op":
        return {}
    layers = settings.whole(_OPTION)
    return {"recompute": "full", "recompute_method": "every", "recompute_num_layers": layers}


def keys_of(launch: Launch) -> Keys:
    """Return all keys that say what a launch is, as dotted paths."""
    keys: Keys = {}
    if launch.model is not None and launch.model.mtp_layers:
        raise StrategyError(
            f"{TITLE} cannot do {launch.model.name}: modules that predict more tokens; "
            "it trains models without them (--mtp none)"
        )
    flavor = known_as(launch.model, FLAVORS)
    if flavor is not None:
        keys = {"model.name": flavor[0], "model.flavor": flavor[1]}
    table = write_table(launch, NUMBERS, CHOICES) | _recompute_keys(launch)
    pipeline = launch["pipeline_parallel"] > 1
    each = launch["global_batch_size"] // launch["data_parallel"]
    keys["training.seq_len"] = table.pop("training.seq_len")
    keys[_LOCAL] = each if pipeline else launch["micro_batch_size"]
    keys[_GLOBAL] = launch["global_batch_size"]
    shard = _shard_degree(launch)
    keys[_REPLICATE] = launch["data_parallel"] // shard
    keys[_SHARD] = shard
    keys |= table
    if pipeline:
        keys[_MICRO] = launch["micro_batch_size"]
        keys |= stage_keys(launch)
    if launch.experts:
        keys[_EXPERT_TENSOR] = launch["expert_tensor_parallel"]
    else:
        del keys["parallelism.expert_parallel_degree"]
    keys |= write_table(launch, (), SOFTWARE)
    keys["training.mixed_precision_reduce"] = "float32"
    order = ("model", "training", "parallelism", "activation_checkpoint", "compile", "quantize")
    return dict(sorted(keys.items(), key=lambda item: order.index(item[0].partition(".")[0])))


def notes(launch: Launch) -> list[str]:
    """Return what a user of this file should know."""
    found = []
    if known_as(launch.model, FLAVORS) is None:
        known = ", ".join(f"{name} {flavor}" for name, flavor in FLAVORS)
        name = launch.model.name if launch.model is not None else "this model"
        found.append(
            f"torchtitan has no flavor of {name} (it has {known}): register one, and name it in "
            "[model]"
        )
    return found


def format_launch(launch: Launch, header: Sequence[str]) -> str:
    """Return a job configuration."""
    lines = [
        *header,
        "A job configuration of torchtitan v0.2:",
        f"  torchrun --nnodes {launch.nodes} --nproc-per-node {launch.processes_per_node} "
        "-m torchtitan.train --job.config_file THIS.toml",
        "Data, tokenizer, learning rate, number of steps and checkpoints are yours to add.",
    ]
    return format_comment(lines) + format_toml(keys_of(launch))


def recognises(text: str) -> bool:
    """Tell whether a text looks like a job configuration of torchtitan."""
    lines = {line.partition("#")[0].strip() for line in text.splitlines()}
    return bool(lines & {"[parallelism]", "[training]"}) or "--parallelism." in text


def parse_launch(text: str, path: str, devices: int = 0) -> Launch:
    """Return what a job configuration, or words such as ``--training.seq_len 8192``, say.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    if "--parallelism." in text or "--training." in text:
        words = parse_arguments(text, path)
        entries = {key.replace("-", "_"): entry for key, entry in words.entries.items()}
        settings = Settings(path, entries, "--")
    else:
        settings = parse_toml(text, path)
    found, per_node = launcher(text)
    preset = _PRESET_OF.search(text)
    if not found and not devices and preset:
        found = int(preset[1])
        settings.remark(f"{found} devices, as its first comment says it is meant for")
    return launch_of(settings, found or devices, per_node)


def launch_of(settings: Settings, devices: int, per_node: int = 0) -> Launch:
    """Return what the keys of a job configuration say."""
    _old_names(settings)
    name_schedule(settings)
    strategy = read_numbers(settings, NUMBERS)
    spelled, _ = read_choices(settings, [item for item in CHOICES if item.field != "zero_stage"])
    strategy |= spelled | _read_layers(settings, spelled["recompute"])
    strategy["sequence_parallel"] = strategy["tensor_parallel"] > 1
    model = _read_model(settings)
    _read_replicas(settings, strategy, devices)
    _read_sharding(settings, strategy)
    _read_batches(settings, strategy)
    facts = read_stages(settings, strategy, model, settings.whole(_LOCAL, 8))
    inner = strategy["tensor_parallel"] if has_experts(model) else 1
    if strategy["expert_parallel"] > 1:
        inner = 1
    strategy["expert_tensor_parallel"] = settings.whole(_EXPERT_TENSOR, inner)
    product = 1
    for name in ("data_parallel", "tensor_parallel", "context_parallel", "pipeline_parallel"):
        product *= strategy.get(name, 1)
    known = "data_parallel" in strategy
    strategy |= read_offload(settings, OFFLOADED)
    return finished(
        settings,
        strategy,
        facts,
        model,
        devices=product if known else 0,
        devices_per_node=per_node,
        software=SOFTWARE,
        presets=PRESETS,
        watched=WATCHED,
        closed={"parallelism.": OTHERS},
    )


def _old_names(settings: Settings) -> None:
    """Put today's names in place of those of earlier versions."""
    for old, new in OLD_NAMES.items():
        settings.rename(old, new)
    for key in ("training.enable_float8_linear", "float8.enable_float8_linear"):  # up to 2025-01
        if settings.flag(key) and "model.converters" not in settings.entries:
            line = settings.entries[key].line
            settings.entries["model.converters"] = Entry(["float8"], line)
    converters = settings.entries.get("model.converters")
    if converters is not None and not isinstance(converters.value, list):
        words = settings.word("model.converters").replace("[", "").replace("]", "")
        listed = [word.strip(" \"'") for word in words.split(",") if word.strip(" \"'")]
        settings.entries["model.converters"] = Entry(listed, converters.line)


def _read_model(settings: Settings) -> ModelSpec | None:
    name, flavor = settings.word("model.name", ""), settings.word("model.flavor", "")
    preset = FLAVORS.get((name, flavor))
    if preset is None and name:
        settings.remark(f"model '{name}' '{flavor}' is not known here; --model names one")
    return replace(load_model(preset, mtp="stated"), mtp_layers=()) if preset else None


def _read_replicas(settings: Settings, strategy: Keys, devices: int) -> None:
    """Read the degrees of data parallelism; one of them may be what is left."""
    replicate = settings.whole(_REPLICATE, 1)
    stated = settings.stated(_SHARD)
    if stated in (-1, "-1", None):
        settings.entries.pop(_SHARD, None)
        product = replicate * strategy["tensor_parallel"] * strategy["context_parallel"]
        product *= strategy["pipeline_parallel"]
        if not devices:
            settings.remark(
                f"{_SHARD} is what is left of the devices, and the file does not say how many "
                "there are"
            )
            if replicate > 1:
                raise FormatError(
                    f"{settings.path}: {_SHARD} is needed beside {_REPLICATE} {replicate}"
                )
            return
        if devices % product:
            raise settings.contradiction(
                f"{devices} devices: should be a multiple of the degrees' product {product}",
                *(key for key in _DEGREES if settings.whole(key, 1) > 1),
            )
        shard = devices // product
    else:
        shard = settings.whole(_SHARD)
        product = replicate * shard * math.prod(settings.whole(key, 1) for key in _DEGREES[1:])
        if devices and devices != product:
            raise settings.contradiction(
                f"{devices} devices: the degrees' product {product} should be as many",
                _SHARD,
                *(key for key in _DEGREES if settings.whole(key, 1) > 1),
            )
    strategy["data_parallel"] = replicate * shard
    if replicate > 1:
        strategy["shard_group"] = shard * strategy["context_parallel"]


def _read_sharding(settings: Settings, strategy: Keys) -> None:
    """Read the ZeRO stage: of FSDP by what it keeps after the forward pass, of DDP 0."""
    words = {"always": 3, "never": 2, "default": 2 if strategy["pipeline_parallel"] > 1 else 3}
    word = settings.word(_RESHARD, "default")
    if word not in words:
        raise settings.wrong(_RESHARD, f"one of {', '.join(words)}")
    strategy["zero_stage"] = words[word]
    if strategy.get("shard_group") == 1:
        strategy["zero_stage"], strategy["shard_group"] = 0, 0


def _read_batches(settings: Settings, strategy: Keys) -> None:
    """Read micro- and global batch, which depend on whether there is a pipeline."""
    local = settings.whole(_LOCAL, 8)
    settings.fields |= {"micro_batch_size": _LOCAL, "global_batch_size": _GLOBAL}
    stated = settings.stated(_GLOBAL)
    replicas = strategy.get("data_parallel")
    if stated in (-1, "-1", None):
        settings.entries.pop(_GLOBAL, None)
        if replicas is not None:
            strategy["global_batch_size"] = local * replicas
    else:
        strategy["global_batch_size"] = settings.whole(_GLOBAL)
    if strategy["pipeline_parallel"] == 1:
        strategy["micro_batch_size"] = local
        return
    strategy["micro_batch_size"] = settings.whole(_MICRO, 1)
    total = strategy.get("global_batch_size", 0)
    if replicas is not None and total != local * replicas:
        settings.remark(
            f"{_LOCAL} {local}: the pipeline runs {total // (local * replicas)} times a step; "
            "projected as once over all micro-batches"
        )
