"""Megatron Bridge's overrides of a recipe, written and read.

A recipe makes a ``ConfigContainer``; a YAML file (``--config-file``) or ``a.b=c`` words on the
command line override its fields (NVIDIA-NeMo/Megatron-Bridge, docs/training/
config-container-overview.md and docs/megatron-lm-to-megatron-bridge.md, v0.2). Fields are those of
Megatron-Core 0.15 (`perfmodel.launch.megatron`); names of precisions are those of
``src/megatron/bridge/training/mixed_precision.py``. What a file leaves out is the recipe's, which
cannot be known here: such fields are named in a remark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfmodel.base.files import Entry
from perfmodel.launch.core import CoreWords, core_facts
from perfmodel.launch.describe import Launch, experts_per_token, has_experts
from perfmodel.launch.megatron import read_features, read_model
from perfmodel.launch.reading import finished, with_replicas, write_layers
from perfmodel.launch.settings import NOTHING, Keys, Settings
from perfmodel.launch.stages import core_schedule, read_layout, read_stages, stage_words
from perfmodel.launch.table import load_program
from perfmodel.launch.text import launcher, parse_yaml
from perfmodel.model.adapters import EVERYTHING, WORDS, AdapterSpec
from perfmodel.model.spec import ModelSpec

PROGRAM = load_program("megatron_bridge")
_ACTIVATIONS = {
    True: "torch.nn.functional.silu",
    False: "torch.nn.functional.gelu",
}
_SQUARED = "megatron.core.activations.squared_relu"
FUNCTION = "model.activation_func._target_"


# Low-rank adapters: the section peft, as NeMo has it too.
DEFAULT_RANK = 32
"""Of LoRA in Megatron-Bridge and NeMo (peft/lora.py, ``dim``)."""

RANK, TARGETS = "peft.dim", "peft.target_modules"
SHARED, NORMALISED = "peft.share_expert_adapters", "peft.normalize_moe_lora"
UNPRICED = ("peft.alpha", "peft.dropout", "peft.dropout_position", "peft.a2a_experimental")


def keys_of(launch: Launch) -> Keys:
    """Return all fields of the configuration that say what a launch is, as dotted paths."""
    keys = PROGRAM.write(launch)
    # What a recipe says of layers goes with its granularity.
    nothing = {PROGRAM.recompute.method: "null", PROGRAM.recompute.layers: "null"}
    keys |= nothing | write_layers(launch, PROGRAM.recompute)
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
    keys |= PROGRAM.write_software(launch)
    if launch.model is not None:
        keys |= _model_keys(launch)
    return dict(sorted(keys.items(), key=lambda item: _ORDER.index(item[0].partition(".")[0])))


_ORDER = ("model", "train", "dataset", "mixed_precision", "comm_overlap", "ddp", "optimizer",
          "dist", "checkpoint")  # fmt: skip


def _model_keys(launch: Launch) -> Keys:
    assert launch.model is not None
    facts = core_facts(launch.model, PROGRAM.title, launch["sequence_length"])
    squared = facts.pop("squared_relu")
    keys: Keys = {f"model.{name}": value for name, value in facts.items() if value is not None}
    keys[FUNCTION] = _SQUARED if squared else _ACTIVATIONS[bool(facts["gated_linear_unit"])]
    keys["model.activation_func._call_"] = False
    keys["model.hidden_dropout"] = 0.1 if launch.framework.dropout else 0.0
    keys["model.attention_dropout"] = keys["model.hidden_dropout"]
    keys["model.make_vocab_size_divisible_by"] = launch.framework.pads_vocabulary_to
    return keys


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what a YAML file, or words such as ``model.tensor_model_parallel_size=8``, say.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    settings = parse_yaml(text, path, root="ConfigContainer")
    settings.typed = typed
    found, per_node = launcher(text)
    return launch_of(settings, typed.get("devices", found), per_node)


def launch_of(
    settings: Settings,
    devices: int,
    per_node: int = 0,
    *,
    model: ModelSpec | None = None,
    name: str = "megatron-bridge",
    presets: Sequence[str] = (),
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
        Frameworks that the software may be; default: those of its table.
    """
    _name_precision(settings)
    strategy, facts = PROGRAM.read(settings)
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
    adapters = read_adapters(settings, model)
    layers = model.num_layers if model is not None else 0
    features, more = read_features(settings, PROGRAM, _of_model, strategy["recompute"], layers)
    silent = [item.key for item in PROGRAM.numbers[:3] if settings.silent(item.key)]
    if silent:
        settings.remark(f"the recipe's {', '.join(silent)} is not in the file: taken as 1")
    launch = finished(
        settings,
        strategy | features,
        facts | more,
        model,
        PROGRAM,
        devices=devices,
        devices_per_node=per_node,
        presets=presets,
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
        names = PROGRAM.own["fp8_names"]
        if recipe not in names:
            raise settings.wrong("mixed_precision.fp8_recipe", f"one of {', '.join(names)}")
        name = names[recipe]
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


def read_adapters(settings: Settings, model: ModelSpec | None) -> AdapterSpec | None:
    """Return the adapters that a file states; None where it says nothing of them.

    Parameters
    ----------
    settings : Settings
    model : ModelSpec, optional
        Where the file, or its reader, names one.

    Raises
    ------
    FormatError
        A rank that is none, or a module that no layer has.
    """
    for key in UNPRICED:
        settings.stated(key)
    modules = settings.stated(TARGETS)
    shared = settings.silent(SHARED) or settings.flag(SHARED)
    normalised = settings.flag(NORMALISED)
    if RANK not in settings and modules is None:
        return None
    rank = settings.whole(RANK, DEFAULT_RANK)
    inner = _expert_rank(settings, model) if normalised else 0
    words = EVERYTHING if modules is None else _targets(settings, modules)
    return AdapterSpec(rank, words, share_experts=shared, expert_rank=inner)


def _expert_rank(settings: Settings, model: ModelSpec | None) -> int:
    """Return the rank on experts where it is that of a token over its experts; 0 for all alike."""
    if model is None:
        settings.remark(f"{settings.name(NORMALISED)}: say it with --lora-expert-rank")
        return 0
    per_token, rank = experts_per_token(model), settings.whole(RANK, DEFAULT_RANK)
    if per_token and rank % per_token:
        raise settings.wrong(RANK, f"a multiple of the {per_token} experts of a token")
    return rank // per_token if per_token else 0


def _targets(settings: Settings, modules: Any) -> tuple[str, ...]:
    """Return the modules that a file names as words of `AdapterSpec`."""
    listed = modules if isinstance(modules, list) else str(modules).strip("[]").split(",")
    # A pattern that names layers one by one counts for all of them.
    words = tuple(dict.fromkeys(str(item).strip(" '\"").rpartition(".")[2] for item in listed))
    unknown = [word for word in words if word not in WORDS]
    if unknown or not words:
        what = f", not {unknown[0]!r}" if unknown else ""
        raise settings.wrong(TARGETS, f"modules such as linear_qkv{what}")
    if any("*" in str(item) for item in listed):
        settings.remark(f"{settings.name(TARGETS)}: patterns are taken for all layers")
    return words
