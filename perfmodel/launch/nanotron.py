"""nanotron's configuration (YAML), read.

Sections and defaults are those of ``src/nanotron/config`` of huggingface/nanotron (2025): degrees
stand in ``parallelism``, batches in ``tokens`` for one replica, sizes in ``model.model_config`` in
the words of Hugging Face. Ranks are laid out tensor, context, data, pipeline
(``parallel/context.py``). It is read only.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.base.errors import ModelError
from perfmodel.launch.describe import Launch
from perfmodel.launch.reading import finished
from perfmodel.launch.settings import (
    Choice,
    Keys,
    Number,
    Settings,
    Spelling,
    read_choices,
    read_numbers,
)
from perfmodel.launch.tree import launcher, parse_yaml
from perfmodel.model.build import ModelSpec
from perfmodel.model.config import model_from_config

TITLE = "nanotron"
PRESETS = ("nanotron",)

NUMBERS = (
    Number("parallelism.dp", "data_parallel", None),
    Number("parallelism.tp", "tensor_parallel", None),
    Number("parallelism.pp", "pipeline_parallel", None),
    Number("parallelism.context_parallel_size", "context_parallel"),
    Number("parallelism.expert_parallel_size", "expert_parallel"),
    Number("tokens.micro_batch_size", "micro_batch_size", None),
    Number("tokens.sequence_length", "sequence_length", None),
)
_MODE, _ENGINE = "parallelism.tp_mode", "parallelism.pp_engine"
_STEPS = "tokens.batch_accumulation_per_replica"
_CONFIG = "model.model_config."

_MOE = "parallelism.moe_layer_recompute"

CHOICES = (
    Choice(
        "sequence_parallel",
        (Spelling(True, {_MODE: "reduce_scatter"}), Spelling(False, {_MODE: "all_reduce"})),
        {_MODE: "all_reduce"},
    ),
    Choice(
        "pipeline_schedule",
        (Spelling("1f1b", {_ENGINE: "1f1b"}), Spelling("gpipe", {_ENGINE: "afab"})),
        {_ENGINE: "afab"},
    ),
    Choice(
        "zero_stage",
        tuple(Spelling(stage, {"optimizer.zero_stage": stage}) for stage in (0, 1)),
        {"optimizer.zero_stage": 0},
    ),
    Choice(
        "recompute",
        (
            Spelling("none"),
            Spelling("full", {"parallelism.recompute_layer": True}),
            Spelling("full", {"parallelism.recompute_layer": True, _MOE: True}),
            Spelling("selective", {_MOE: True}, software={"selective_recompute": "moe"}),
        ),
    ),
    Choice(
        "precision",
        (
            Spelling("bf16", {"model.dtype": "bfloat16"}),
            Spelling("fp16", {"model.dtype": "float16"}),
        ),
        {"model.dtype": "bfloat16"},
    ),
)
SOFTWARE = (
    Choice(
        "overlap_tensor_parallel",
        (
            Spelling("none"),
            Spelling("backward", {"parallelism.tp_linear_async_communication": True}),
        ),
        when=lambda launch: launch["tensor_parallel"] > 1,
    ),
    Choice(
        "gradient_reduce_bytes",
        (
            Spelling(4.0, {"optimizer.accumulate_grad_in_fp32": True}),
            Spelling(2.0, {"optimizer.accumulate_grad_in_fp32": False}),
        ),
        {"optimizer.accumulate_grad_in_fp32": True},
    ),
)
CLOSED = {
    "parallelism.": ("tp_recompute_allgather",),
    "tokens.": (
        "train_steps",
        "val_check_interval",
        "limit_val_batches",
        "limit_test_batches",
    ),
}
# How nanotron tells configurations apart -> Hugging Face's model_type.
FAMILIES = {
    "is_llama_config": "llama",
    "is_qwen2_config": "qwen2",
    "is_starcoder2_config": "starcoder2",
}


def recognises(text: str) -> bool:
    """Tell whether a text looks like a configuration of nanotron."""
    return "batch_accumulation_per_replica" in text or "is_llama_config" in text


def parse_launch(text: str, path: str, devices: int = 0) -> Launch:
    """Return what a configuration says; its degrees say how many `devices` there are.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    settings = parse_yaml(text, path)
    for key in (_MODE, _ENGINE):  # enumerations, whose case does not matter
        if key in settings:
            entry = settings.entries[key]
            settings.entries[key] = entry._replace(value=str(entry.value).lower())
    strategy = read_numbers(settings, NUMBERS)
    spelled, facts = read_choices(settings, CHOICES)
    strategy |= spelled
    if strategy["tensor_parallel"] == 1:
        strategy["sequence_parallel"] = False
    replicas = strategy["data_parallel"]
    strategy["global_batch_size"] = (
        strategy["micro_batch_size"] * settings.whole(_STEPS, 1) * replicas
    )
    product = replicas * strategy["context_parallel"] * strategy["pipeline_parallel"]
    product *= strategy["tensor_parallel"]
    found, per_node = launcher(text)
    if found and found != product:
        keys = [settings.fields[name] for name in ("data_parallel", "tensor_parallel")]
        raise settings.contradiction(
            f"{found} devices: the degrees' product {product} should be as many",
            *keys,
            settings.fields["pipeline_parallel"],
        )
    facts["pads_vocabulary_to"] = settings.whole("model.make_vocab_size_divisible_by", 1)
    return finished(
        settings,
        strategy,
        facts,
        _read_model(settings),
        devices=product,
        devices_per_node=per_node,
        software=SOFTWARE,
        presets=PRESETS,
        closed=CLOSED,
    )


def _read_model(settings: Settings) -> ModelSpec | None:
    sizes: Keys = {}
    for key, entry in settings.entries.items():
        if key.startswith(_CONFIG) and entry.value is not None:
            sizes[key.removeprefix(_CONFIG)] = entry.value
    if not sizes:
        settings.remark(f"no {_CONFIG[:-1]} in the file; --model names the model")
        return None
    if any(key.startswith("moe_config.") for key in sizes):
        settings.remark(f"{_CONFIG}moe_config is not read; --model names the model")
        return None
    family = next((FAMILIES[key] for key in FAMILIES if sizes.pop(key, False) is True), "llama")
    try:
        model = model_from_config({"model_type": family, **sizes}, name="nanotron")
    except ModelError as error:
        raise ModelError(f"{settings.path}: {_CONFIG[:-1]}: {error}") from None
    return replace(model, remarks=())
