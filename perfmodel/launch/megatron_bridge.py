"""Megatron Bridge's overrides of a recipe, written and read.

A recipe makes a ``ConfigContainer``; a YAML file (``--config-file``) or ``a.b=c`` words on the
command line override its fields (NVIDIA-NeMo/Megatron-Bridge, docs/training/
config-container-overview.md and docs/megatron-lm-to-megatron-bridge.md, v0.2). Fields are those of
Megatron-Core 0.15 (`perfmodel.launch.megatron`); names of precisions are those of
``src/megatron/bridge/training/mixed_precision.py``. What a file leaves out is the recipe's, which
cannot be known here: such fields are named in a remark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfmodel.launch.adapters import read_adapters
from perfmodel.launch.core_model import CoreWords, core_facts
from perfmodel.launch.core_software import core_software
from perfmodel.launch.core_stages import (
    core_schedule,
    read_layout,
    read_stages,
    stage_words,
)
from perfmodel.launch.describe import Launch, has_experts
from perfmodel.launch.megatron import LIMITS as CORE_LIMITS
from perfmodel.launch.megatron import PRESETS, read_model
from perfmodel.launch.megatron import SOFTWARE as CORE_SOFTWARE
from perfmodel.launch.offload import Switch, read_activations, read_offload
from perfmodel.launch.reading import finished, with_replicas
from perfmodel.launch.recompute import (
    RecomputeKeys,
    read_layers,
    read_modules,
    write_layers,
)
from perfmodel.launch.settings import (
    Choice,
    Entry,
    Keys,
    Number,
    Settings,
    Spelling,
    read_choices,
    read_numbers,
    write_table,
)
from perfmodel.launch.shell import format_comment
from perfmodel.launch.tree import format_yaml, launcher, parse_yaml
from perfmodel.model.build import ModelSpec

TITLE = "Megatron Bridge"
PRESET = "megatron-tuned"
LIKELY = (PRESET, *(name for name in PRESETS if name != PRESET))
LIMITS = CORE_LIMITS

NUMBERS = (
    Number("model.tensor_model_parallel_size", "tensor_parallel"),
    Number("model.context_parallel_size", "context_parallel"),
    Number("model.pipeline_model_parallel_size", "pipeline_parallel"),
    Number("model.virtual_pipeline_model_parallel_size", "virtual_pipeline"),
    Number("model.expert_model_parallel_size", "expert_parallel"),
)
# Without these a file says nothing of them, and the command line has to.
BATCHES = (
    Number("train.micro_batch_size", "micro_batch_size"),
    Number("train.global_batch_size", "global_batch_size"),
    Number("model.seq_length", "sequence_length"),
)

_SHARD = "ddp.data_parallel_sharding_strategy"
_OPTIMIZER = "ddp.use_distributed_optimizer"
_ALSO_OPTIMIZER = "optimizer.use_distributed_optimizer"
_FSDP = "ddp.use_megatron_fsdp"
_FSDP_ALSO = {
    "dist.use_megatron_fsdp": True,
    "model.gradient_accumulation_fusion": False,
    "checkpoint.ckpt_format": "fsdp_dtensor",
}
RECOMPUTED = RecomputeKeys(
    "model.recompute_method", "model.recompute_num_layers", "model.recompute_modules"
)

CHOICES = (
    Choice(
        "sequence_parallel",
        (
            Spelling(True, {"model.sequence_parallel": True}),
            Spelling(False, {"model.sequence_parallel": False}),
        ),
    ),
    Choice(
        "context_parallel_kind",
        (
            Spelling("ring", {"model.cp_comm_type": "p2p"}),
            Spelling("all_to_all", {"model.cp_comm_type": "a2a"}),
            Spelling("all_gather", {"model.cp_comm_type": "all_gather"}),
            Spelling("all_gather", {"model.cp_comm_type": "allgather"}),
        ),
        {"model.cp_comm_type": "p2p"},
        lambda launch: launch["context_parallel"] > 1,
    ),
    Choice(
        "mapping",
        (
            Spelling("tensor-context-data-pipeline"),
            Spelling("tensor-context-pipeline-data", {"dist.use_tp_pp_dp_mapping": True}),
        ),
    ),
    Choice(
        "zero_stage",
        (
            Spelling(1, {_OPTIMIZER: True}, {_ALSO_OPTIMIZER: True}),
            Spelling(0, {_OPTIMIZER: False}, {_ALSO_OPTIMIZER: False}),
            Spelling(2, {_OPTIMIZER: True, _FSDP: True, _SHARD: "optim_grads"}, _FSDP_ALSO),
            Spelling(3, {_OPTIMIZER: True, _FSDP: True, _SHARD: "optim_grads_params"}, _FSDP_ALSO),
            Spelling(1, {_OPTIMIZER: True, _FSDP: True, _SHARD: "optim"}),
        ),
        # Recipes use the distributed optimizer.
        {_OPTIMIZER: True, _SHARD: "no_shard"},
    ),
    Choice(
        "recompute",
        (
            Spelling("none", {"model.recompute_granularity": "null"}),
            Spelling("selective", {"model.recompute_granularity": "selective"}),
            Spelling("full", {"model.recompute_granularity": "full"}),
        ),
    ),
    Choice(
        "precision",
        (
            Spelling("bf16", {"mixed_precision": "bf16_mixed"}),
            Spelling("fp16", {"mixed_precision": "fp16_mixed"}),
            Spelling(
                "fp8",
                {"mixed_precision": "bf16_with_fp8_delayed_scaling_mixed"},
                software={"scaling": "delayed"},
            ),
            Spelling(
                "fp8",
                {"mixed_precision": "bf16_with_fp8_current_scaling_mixed"},
                software={"scaling": "current"},
            ),
            Spelling("mxfp8", {"mixed_precision": "bf16_with_mxfp8_mixed"}),
            Spelling("nvfp4", {"mixed_precision": "bf16_with_nvfp4_mixed"}),
        ),
        {"mixed_precision": "bf16_mixed"},
    ),
)

# Fact of the framework -> the key that is true where it holds.
SWITCHES = {
    "overlap_gradient_reduce": "ddp.overlap_grad_reduce",
    "overlap_parameter_gather": "ddp.overlap_param_gather",
    "overlap_expert_parallel": "comm_overlap.overlap_moe_expert_parallel_comm",
    "overlap_shared_experts": "model.moe_shared_expert_overlap",
    "fused_cross_entropy": "model.cross_entropy_loss_fusion",
    "deterministic_attention": "model.deterministic_mode",
}
_WHEN = {choice.field: choice.when for choice in CORE_SOFTWARE}
_TRUE_IN_RECIPES = ("overlap_gradient_reduce", "overlap_parameter_gather", "fused_cross_entropy")

SOFTWARE = (
    *(
        Choice(
            field,
            (Spelling(True, {key: True}), Spelling(False, {key: False})),
            {key: field in _TRUE_IN_RECIPES},
            _WHEN[field],
        )
        for field, key in SWITCHES.items()
    ),
    Choice(
        "overlap_tensor_parallel",
        (
            Spelling("full", {"comm_overlap.tp_comm_overlap": True}),
            Spelling("backward", {"comm_overlap.tp_comm_overlap": False}),
        ),
        {},
        _WHEN["overlap_tensor_parallel"],
    ),
    Choice(
        "expert_dispatch",
        (
            Spelling("all_to_all", {"model.moe_token_dispatcher_type": "alltoall"}),
            *(
                Spelling(
                    way,
                    {"model.moe_token_dispatcher_type": "flex"},
                    {"model.moe_flex_dispatcher_backend": backend},
                )
                for way, backend in (("deepep", "deepep"), ("hybrid_ep", "hybridep"))
            ),
            Spelling("all_gather", {"model.moe_token_dispatcher_type": "allgather"}),
        ),
        {"model.moe_token_dispatcher_type": "alltoall"},
        _WHEN["expert_dispatch"],
    ),
    Choice(
        "dropout",
        (
            Spelling(False, {"model.hidden_dropout": 0.0}),
            Spelling(True, {"model.hidden_dropout": 0.1}),
        ),
        {"model.hidden_dropout": 0.0},
    ),
)

OFFLOADED = (
    Switch(
        "optimizer.optimizer_cpu_offload",
        ("offload_optimizer",),
        "optimizer.optimizer_offload_fraction",
    ),
)

WATCHED: Mapping[str, str] = {
    "model.min_offloaded_tensor_size": "small tensors of offloaded modules leave too",
    "model.moe_paged_stash": "paged stashes of experts are not modelled",
    "model.moe_expert_capacity_factor": "dropped tokens without padding are not modelled",
    "comm_overlap.delay_wgrad_compute": "delayed weight gradients are not modelled",
    "optimizer.use_precision_aware_optimizer": "optimizer states are projected in fp32",
    "mixed_precision.fp8_dot_product_attention": "attention is projected in 16 bits",
    "ddp.nccl_ub": "registered buffers are not modelled",
    "ddp.grad_reduce_in_fp32": "gradients are reduced as --framework says",
}

# Keys of a precision that is spelled field by field -> the name of the whole.
_FP8_NAMES = {
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
}
_ACTIVATIONS = {
    True: "torch.nn.functional.silu",
    False: "torch.nn.functional.gelu",
}
_SQUARED = "megatron.core.activations.squared_relu"
FUNCTION = "model.activation_func._target_"


def keys_of(launch: Launch) -> Keys:
    """Return all fields of the configuration that say what a launch is, as dotted paths."""
    keys = write_table(launch, (*NUMBERS, *BATCHES), CHOICES)
    # What a recipe says of layers goes with its granularity.
    nothing = {RECOMPUTED.method: "null", RECOMPUTED.layers: "null"}
    keys |= nothing | write_layers(launch, RECOMPUTED)
    if launch["virtual_pipeline"] == 1:
        keys["model.virtual_pipeline_model_parallel_size"] = "null"
    keys["dataset.sequence_length"] = launch["sequence_length"]
    if launch.experts:
        keys["model.expert_tensor_parallel_size"] = launch["expert_tensor_parallel"]
        keys["model.moe_grouped_gemm"] = launch["precision"] != "fp16"
    if launch["shard_group"]:
        instances = launch.replicas // launch["shard_group"]
        keys["ddp.num_distributed_optimizer_instances"] = instances
    keys |= {_of_model(word): value for word, value in stage_words(launch).items()}
    keys |= write_table(launch, (), SOFTWARE)
    if launch.model is not None:
        keys |= _model_keys(launch)
    return dict(sorted(keys.items(), key=lambda item: _ORDER.index(item[0].partition(".")[0])))


_ORDER = ("model", "train", "dataset", "mixed_precision", "comm_overlap", "ddp", "optimizer",
          "dist", "checkpoint")  # fmt: skip


def _model_keys(launch: Launch) -> Keys:
    assert launch.model is not None
    facts = core_facts(launch.model, TITLE, launch["sequence_length"])
    squared = facts.pop("squared_relu")
    keys: Keys = {f"model.{name}": value for name, value in facts.items() if value is not None}
    keys[FUNCTION] = _SQUARED if squared else _ACTIVATIONS[bool(facts["gated_linear_unit"])]
    keys["model.activation_func._call_"] = False
    keys["model.hidden_dropout"] = 0.1 if launch.framework.dropout else 0.0
    keys["model.attention_dropout"] = keys["model.hidden_dropout"]
    keys["model.make_vocab_size_divisible_by"] = launch.framework.pads_vocabulary_to
    return keys


def notes(launch: Launch) -> list[str]:
    """Return what a user of this file should know."""
    found = []
    if launch.framework.gradient_reduce_bytes == 2.0 and launch["precision"] != "fp16":
        found.append(
            "projected with gradients reduced in 16 bits: the recipe's "
            "mixed_precision.grad_reduce_in_fp32 has to be false, which a precision by name is not"
        )
    return found


def format_launch(launch: Launch, header: Sequence[str]) -> str:
    """Return a YAML file that overrides a recipe."""
    lines = [
        *header,
        "Overrides for a recipe of Megatron Bridge (v0.2, Megatron-Core 0.15), such as",
        f"  torchrun --nnodes {launch.nodes} --nproc-per-node {launch.processes_per_node} "
        "scripts/training/run_recipe.py --recipe RECIPE --config-file THIS.yaml",
        "Data, learning rate, number of iterations and checkpoints are the recipe's.",
    ]
    return format_comment(lines) + format_yaml(keys_of(launch))


def recognises(text: str) -> bool:
    """Tell whether a text looks like overrides of a recipe."""
    return any(
        word in text
        for word in ("model.tensor_model_parallel_size", "tensor_model_parallel_size:",
                     "train.global_batch_size=", "megatron.bridge")
    )  # fmt: skip


def parse_launch(text: str, path: str, devices: int = 0) -> Launch:
    """Return what a YAML file, or words such as ``model.tensor_model_parallel_size=8``, say.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    settings = parse_yaml(text, path, root="ConfigContainer")
    found, per_node = launcher(text)
    return launch_of(settings, found or devices, per_node)


def launch_of(
    settings: Settings,
    devices: int,
    per_node: int = 0,
    *,
    model: ModelSpec | None = None,
    name: str = "megatron-bridge",
    presets: Sequence[str] = LIKELY,
) -> Launch:
    """Return what fields of a configuration say.

    Parameters
    ----------
    settings : Settings
    devices, per_node : int
        0 where unknown.
    model : ModelSpec, optional
        The one that is known by name, in place of its sizes.
    name : str
        What a model of sizes is called.
    presets : sequence of str
        Frameworks that the software may be.
    """
    _name_precision(settings)
    strategy = read_numbers(settings, NUMBERS)
    strategy |= read_numbers(settings, [item for item in BATCHES if item.key in settings])
    spelled, facts = read_choices(settings, CHOICES)
    strategy |= spelled
    words = BridgeWords(settings, "model.")
    # The recipe's, unless the file has it.
    if model is None and "model.num_layers" in settings:
        model = read_model(words, name, strategy.get("sequence_length", 1))
    inner = strategy["tensor_parallel"] if has_experts(model) else 1
    strategy["expert_tensor_parallel"] = settings.whole("model.expert_tensor_parallel_size", inner)
    pipeline, stated = strategy["pipeline_parallel"], strategy["virtual_pipeline"]
    virtual, layout = read_layout(settings, _of_model, pipeline, lambda: stated)
    strategy |= core_schedule(settings, pipeline, virtual)
    strategy["micro_batch_group"], stages = read_stages(
        settings, _of_model, layout, model, pipeline, virtual
    )
    facts |= stages
    if strategy["tensor_parallel"] == 1:
        strategy["sequence_parallel"] = False
    elif settings.silent("model.sequence_parallel"):
        strategy["sequence_parallel"] = True  # recipes have it with tensor parallelism
    sets = "ddp.num_distributed_optimizer_instances"
    strategy = with_replicas(settings, strategy, devices, sets)
    facts["pads_vocabulary_to"] = settings.whole("model.make_vocab_size_divisible_by", 128)
    facts |= core_software(settings, _of_model)
    facts |= read_modules(settings, RECOMPUTED.modules)
    strategy |= read_layers(settings, RECOMPUTED, strategy["recompute"])
    adapters = read_adapters(settings, model)
    strategy |= read_offload(settings, OFFLOADED)
    layers = model.num_layers if model is not None else 0
    offloaded, modules = read_activations(settings, _of_model, layers)
    strategy |= offloaded
    facts |= modules
    silent = [item.key for item in NUMBERS[:3] if settings.silent(item.key)]
    if silent:
        settings.remark(f"the recipe's {', '.join(silent)} is not in the file: taken as 1")
    launch = finished(
        settings,
        strategy,
        facts,
        model,
        devices=devices,
        devices_per_node=per_node,
        software=SOFTWARE,
        presets=presets,
        watched=WATCHED,
    )
    return replace(launch, adapters=adapters)


def _name_precision(settings: Settings) -> None:
    """Put the name of a precision in place of one that is spelled field by field."""
    if "mixed_precision" in settings:
        value = settings.word("mixed_precision").replace("-", "_")
        settings.entries["mixed_precision"] = settings.entries["mixed_precision"]._replace(
            value=value
        )
        return
    name = "fp16_mixed" if settings.flag("mixed_precision.fp16") else ""
    if "mixed_precision.fp8" in settings or "mixed_precision.fp8_recipe" in settings:
        recipe = settings.word("mixed_precision.fp8_recipe", "tensorwise")
        if recipe not in _FP8_NAMES:
            raise settings.wrong("mixed_precision.fp8_recipe", f"one of {', '.join(_FP8_NAMES)}")
        name = _FP8_NAMES[recipe]
    if "mixed_precision.fp4" in settings:
        name = "bf16_with_nvfp4_mixed"
    if name:
        settings.entries["mixed_precision"] = Entry(name)


def _of_model(word: str) -> str:
    """Return the field for a word of Megatron-Core."""
    return f"model.{word}"


class BridgeWords(CoreWords):
    """Megatron-Core's words as fields of a model provider."""

    def flag(self, name: str) -> bool:
        """Tell whether a switch is on."""
        if name == "squared_relu":
            return self.settings.word(FUNCTION).endswith("squared_relu")
        return super().flag(name)
