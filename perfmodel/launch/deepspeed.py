"""DeepSpeed: its configuration (JSON) and Megatron-DeepSpeed's arguments, written and read.

Keys of the configuration are those of DeepSpeed's documentation (deepspeed.ai/docs/config-json,
0.17 of 2025), arguments those of ``megatron/arguments.py`` of deepspeedai/Megatron-DeepSpeed
(f1feb887 of 2025), whose ``examples_deepspeed`` write the configuration within the script, as here.
ZeRO 2 and 3 go without a pipeline (``--no-pipeline-parallel``); sequences are shared by Ulysses'
all-to-all (``--ds-sequence-parallel-size``), without tensor or pipeline parallelism
(``megatron/core/parallel_state.py``); experts neither with a pipeline nor with ZeRO 3. A
configuration alone, as other trainers use it, is read too: it says batches, sharding, precision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import StrategyError
from perfmodel.base.facts import Run
from perfmodel.base.files import Entry, json_object, key_line, read_text, shortened
from perfmodel.base.precisions import FORMATS
from perfmodel.launch.core import CoreWords, core_facts
from perfmodel.launch.describe import Launch, has_experts
from perfmodel.launch.megatron import read_devices, read_model
from perfmodel.launch.reading import (
    DEGREES,
    finished,
    read_layers,
    read_offload,
    with_replicas,
    write_layers,
)
from perfmodel.launch.settings import NOTHING, Keys, Settings, Words
from perfmodel.launch.table import load_program
from perfmodel.launch.text import format_command, heredocs, nested, parse_arguments
from perfmodel.model.presets import find_preset, load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import as_run

PROGRAM = load_program("deepspeed")
TRAINER = ("plain-2024",)  # Hugging Face's
FILE = "ds_config.json"
LARGEST = 2**20  # B of a configuration

_MICRO, _GLOBAL = "train_micro_batch_size_per_gpu", "train_batch_size"
_STEPS = "gradient_accumulation_steps"
_STAGE, _MICS = "zero_optimization.stage", "zero_optimization.mics_shard_size"
_OVERLAPS = ("pipeline_read", "pipeline_write")
SIZES = PROGRAM.own["sizes"]


def model_arguments(launch: Launch) -> Keys:
    """Return the options that describe the model.

    Raises
    ------
    StrategyError
        Megatron-DeepSpeed has no such model.
    """
    assert launch.model is not None
    facts = core_facts(launch.model, PROGRAM.title, launch["sequence_length"])
    for name, what in PROGRAM.own["absent"].items():
        if facts.get(name):
            raise StrategyError(
                f"{PROGRAM.title} cannot do {launch.model.name}: {what}; Megatron-DeepSpeed offers "
                "the models of GPT and Llama"
            )
    keys: Keys = {option: facts[name] for name, option in SIZES.items() if name in facts}
    keys |= {
        "expert-interval": 1 if launch.experts else None,
        "swiglu": facts["gated_linear_unit"] or None,
        "normalization": PROGRAM.own["norms"][facts["normalization"]],
        "disable-bias-linear": not facts["add_bias_linear"] or None,
        "use-rotary-position-embeddings": facts["position_embedding_type"] == "rope" or None,
        "untie-embeddings-and-output-weights": not facts["share_embeddings_and_output_weights"]
        or None,
        "make-vocab-size-divisible-by": launch.framework.pads_vocabulary_to,
    }
    return {key: value for key, value in keys.items() if value is not None}


def keys_of(launch: Launch) -> Keys:
    """Return all keys: of the configuration those with ``_`` or ``.``, the others options."""
    keys: Keys = {
        _GLOBAL: launch["global_batch_size"],
        _MICRO: launch["micro_batch_size"],
        _STEPS: launch.micro_batches,
    }
    keys |= PROGRAM.write(launch) | write_layers(launch, PROGRAM.recompute)
    if launch["shard_group"]:
        keys[_MICS] = launch["shard_group"]
    keys |= PROGRAM.write_software(launch)
    run = Run(launch["precision"], launch.experts, 1)
    if (
        run.precision == "bf16"
        and as_run(launch.framework, run).gradient_bytes > FORMATS["bf16"].bytes
    ):
        keys["data_types.grad_accum_dtype"] = "fp32"  # else the type of the parameters
    keys["micro-batch-size"] = launch["micro_batch_size"]
    keys["global-batch-size"] = launch["global_batch_size"]
    keys["seq-length"] = launch["sequence_length"]
    keys["zero-stage"] = launch["zero_stage"]
    keys[launch["precision"]] = True
    if launch["pipeline_parallel"] == 1:
        keys["no-pipeline-parallel"] = True
    if not launch.experts:
        del keys["moe-expert-parallel-size"]
    elif launch["tensor_parallel"] > 1:
        keys["enable-expert-tensor-parallelism"] = True
    if launch["context_parallel"] == 1:
        del keys["ds-sequence-parallel-size"]
    if launch.model is not None:
        keys |= model_arguments(launch)
    return keys


def of_configuration(key: str) -> bool:
    """Tell whether a key stands in the configuration, not among the options."""
    return "_" in key or "." in key


def body(launch: Launch) -> str:
    """Return a script that writes the configuration and starts a run with it."""
    keys = keys_of(launch)
    configuration = nested({key: keys[key] for key in keys if of_configuration(key)})
    options = {key: value for key, value in keys.items() if not of_configuration(key)}
    document = json.dumps(configuration, indent=2)
    words = [
        "deepspeed",
        f"--num_nodes {launch.nodes}",
        f"--num_gpus {launch.processes_per_node}",
        "pretrain_gpt.py",
        "--deepspeed",
        f"--deepspeed_config {FILE}",
    ]
    script = f"cat > {FILE} <<'EOF'\n{document}\nEOF\n"
    return script + format_command(words, options, '"$@"')


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what a script, or a configuration alone, says.

    Raises
    ------
    FormatError
        Names the key or option and its line.
    """
    alone = text.lstrip().startswith("{")
    settings = Settings(path, {}) if alone else parse_arguments(text, path)
    settings.typed = typed
    documents = [(text, 0, path)]
    if not alone:
        inside = [(document, before, path) for document, before in heredocs(text)]
        documents = [*_beside(settings, path), *inside]
    for document, before, file in documents:
        if document.lstrip().startswith("{"):
            content = json_object(file, document, f'"{_GLOBAL}": 256')
            for key, value in _flat(content, ""):
                line = key_line(document, key.rpartition(".")[2]) + before
                settings.entries[key] = Entry(None if value == "auto" else value, line)
                settings.files[key] = file
    trainer = _read_trainer(settings)
    _join(settings)
    skipped = ("context_parallel_kind", "pipeline_schedule", "mapping")
    strategy, facts = PROGRAM.read(settings, skipped)
    strategy |= read_layers(settings, PROGRAM.recompute, strategy["recompute"])
    if strategy["tensor_parallel"] == 1:
        strategy["sequence_parallel"] = False
    if strategy["context_parallel"] > 1:
        strategy["context_parallel_kind"] = "all_to_all"
    if "seq-length" in settings:
        strategy["sequence_length"] = settings.whole("seq-length")
    model = _trained(settings) if trainer else None
    if "num-layers" in settings:
        model = read_model(
            Options(settings), "megatron-deepspeed", strategy.get("sequence_length", 1)
        )
    experts = has_experts(model)
    cut = settings.flag("enable-expert-tensor-parallelism")
    strategy["expert_tensor_parallel"] = strategy["tensor_parallel"] if experts and cut else 1
    found, per_node = read_devices(settings)
    devices = typed.get("devices", found)
    strategy = with_replicas(settings, strategy, devices)
    _read_batches(settings, strategy)
    if _MICS in settings and strategy["zero_stage"] == 3:
        strategy["shard_group"] = settings.whole(_MICS)
    if not trainer:
        facts["pads_vocabulary_to"] = settings.whole("make-vocab-size-divisible-by", 128)
    strategy |= read_offload(settings, PROGRAM.offloaded)
    overlaps = [settings.flag(f"zero_optimization.offload_optimizer.{key}") for key in _OVERLAPS]
    facts |= {"overlap_nvme": True} if any(overlaps) else {}
    return finished(
        settings,
        strategy,
        facts,
        model,
        PROGRAM,
        devices=devices,
        devices_per_node=per_node,
        presets=TRAINER if trainer else (),
    )


def _beside(settings: Settings, path: str) -> list[tuple[str, int, str]]:
    """Return the configuration that a command names, where it lies beside its script."""
    key = "deepspeed-config" if "deepspeed-config" in settings else "deepspeed"
    name = settings.word(key)
    if not name.endswith(".json"):
        return []
    file = Path(path).parent / name
    try:
        found = file.is_file()
    except (OSError, ValueError):  # a name that none can have
        found = False
    if found:
        settings.remark(f"with {shortened(name)} beside it")
        return [(read_text(file, "a configuration of DeepSpeed", LARGEST), 0, str(file))]
    return []


def _read_trainer(settings: Settings) -> bool:
    """Put arguments of Hugging Face's Trainer into Megatron-DeepSpeed's; tell whether they are.

    Values ``auto`` of the configuration are the Trainer's arguments
    (transformers/integrations/deepspeed.py).
    """
    entries = settings.entries
    if "per-device-train-batch-size" not in entries and "model-name-or-path" not in entries:
        return False
    for key, entry in entries.items():
        if isinstance(entry.value, Words) and entry.value[:1] in (("False",), ("false",)):
            entries[key] = entry._replace(value=False)
    for old, new in PROGRAM.own["trainers"].items():
        settings.rename(old, new)
    entries.setdefault("micro-batch-size", Entry(8))
    steps = entries.get("gradient-accumulation-steps", Entry(1))
    if entries.get(_STEPS, Entry(None)).value is None:
        entries[_STEPS] = steps
    settings.read.add("gradient-accumulation-steps")
    if settings.flag("gradient-checkpointing"):
        entries["checkpoint-activations"] = Entry(value=True)
    entries.setdefault("hidden-dropout", Entry("0.0"))
    entries["use-flash-attn-v2"] = Entry(value=True)  # SDPA, if nothing else
    return True


def _trained(settings: Settings) -> ModelSpec | None:
    name = settings.word("model-name-or-path")
    preset = find_preset(name) if name else None
    if preset is None:
        settings.remark(f"model '{shortened(name)}' is not known here; --model names one")
        return None
    return load_model(preset)


def _flat(content: Mapping[str, Any], prefix: str, depth: int = 0) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in content.items():
        if isinstance(value, Mapping) and depth < 10:
            found += _flat(value, f"{prefix}{key}.", depth + 1)
        else:
            found.append((prefix + key, value))
    return found


def _join(settings: Settings) -> None:
    """Take from the options what the configuration leaves out."""
    pairs = {"zero-stage": _STAGE, "micro-batch-size": _MICRO, "global-batch-size": _GLOBAL}
    pairs |= {"bf16": "bf16.enabled", "fp16": "fp16.enabled"}
    for option, key in pairs.items():
        stated = settings.stated(option, flag=option in ("bf16", "fp16"))
        if stated is None:
            continue
        other = settings.stated(key)
        if other is None:
            settings.entries[key] = settings.entries[option]._replace(value=stated)
        elif str(other) != str(stated):
            settings.remark(f"{settings.name(option)} {stated} is not {key} {other}, which counts")
    if not settings.flag("bf16.enabled") and not settings.flag("fp16.enabled"):
        settings.remark("no precision is enabled; projected as bf16")
        settings.entries["bf16.enabled"] = Entry(True)


def _read_batches(settings: Settings, strategy: Keys) -> None:
    """Read the two batches; of three numbers in a configuration one may be left out."""
    typed = settings.typed
    for field, key in (("micro_batch_size", _MICRO), ("global_batch_size", _GLOBAL)):
        if field in typed:
            settings.put({key: typed[field]})
    if settings.asked_of((*DEGREES, "devices", "micro_batch_size", "global_batch_size")):
        settings.put({}, [_STEPS] if _MICRO in settings and _GLOBAL in settings else ())
    replicas = strategy.get("data_parallel")
    micro = settings.whole(_MICRO) if _MICRO in settings else None
    total = settings.whole(_GLOBAL) if _GLOBAL in settings else None
    steps = settings.whole(_STEPS) if _STEPS in settings else None
    if micro is None and replicas and total and steps and total % (replicas * steps) == 0:
        micro = total // (replicas * steps)
    if total is None and replicas and micro:
        total = micro * replicas * (steps or 1)
    if micro is not None:
        strategy["micro_batch_size"] = micro
    if total is not None:
        strategy["global_batch_size"] = total
    if micro and total and steps and replicas and micro * steps * replicas != total:
        raise settings.wrong(
            _STEPS,
            f"{total // (micro * replicas)} of {micro} sequences on {replicas} replicas to make "
            f"{_GLOBAL} {total}",
        )


class Options(CoreWords):
    """Megatron-Core's words as Megatron-DeepSpeed's options."""

    def key(self, name: str) -> str:
        """Return the option for a word."""
        return SIZES.get(name, name.replace("_", "-"))

    def flag(self, name: str) -> bool:
        """Tell whether a switch is on."""
        if name == "add_bias_linear":
            return not self.settings.flag("disable-bias-linear")
        if name == "share_embeddings_and_output_weights":
            return not self.settings.flag("untie-embeddings-and-output-weights")
        return name == "gated_linear_unit" and self.settings.flag("swiglu")

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        found = super().size(name, default)
        return 0 if name == "num_moe_experts" and found == 1 else found

    def word(self, name: str, default: str) -> str:
        """Return a word."""
        if name == "position_embedding_type":
            rotary = self.settings.flag("use-rotary-position-embeddings")
            return "rope" if rotary else "learned_absolute"
        return super().word(name, default)
