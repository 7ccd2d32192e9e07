"""AMD's Primus: the YAML of an experiment, written and read.

A module ``pre_trainer`` names a model and overrides the arguments of Megatron-LM, with underscores
(AMD-AGI/Primus, ``examples/megatron/configs`` and ``primus/configs/modules/megatron``, v26.5).
Values may be taken from the environment, ``${PRIMUS_TP:1}``: the default behind the colon counts.
What is not overridden is as ``pre_trainer.yaml`` and ``primus_turbo.yaml`` have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from perfmodel.base.errors import FormatError, ModelError
from perfmodel.formats.launch import megatron
from perfmodel.formats.launch.core_model import core_facts
from perfmodel.formats.launch.describe import Launch
from perfmodel.formats.launch.settings import Entry, Keys, Limit, Settings
from perfmodel.formats.launch.shell import format_comment
from perfmodel.formats.launch.tree import format_yaml, launcher, parse_yaml
from perfmodel.model.build import ModelSpec
from perfmodel.model.presets import find_preset, load_model

TITLE = "Primus"
PRESET = "primus-turbo"
PRESETS = ("primus-turbo", "primus")
CHOICES = megatron.CHOICES
LIMITS: tuple[Limit, ...] = megatron.LIMITS

ROOT = "modules.pre_trainer."
OVERRIDES = ROOT + "overrides."

# Key of Primus -> Megatron-LM's option, where it is not the same with dashes.
RENAMED = {"fp8": "fp8-format", "fp4": "fp4-format"}
# Switches that Megatron-LM names by what they switch off.
NEGATED = {
    "overlap_p2p_comm": "no-overlap-p2p-communication",
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
}
# pre_trainer.yaml, trainer_base.yaml and the models' files, where Megatron-LM's default is another.
DEFAULTS: Mapping[str, Any] = {
    "bf16": True,
    "use_distributed_optimizer": True,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "seq_length": 1024,
    "hidden_dropout": "0.0",
    "moe_token_dispatcher_type": "alltoall",
}
SYNC_FREE = 2  # stage of turbo_sync_free_moe_stage from which the host waits for nothing

_VARIABLE = re.compile(r"\$\{(\w+):([^}]*)\}")


class Overrides(Settings):
    """Megatron-LM's options, spelled with underscores in a file of Primus."""

    def name(self, key: str) -> str:
        """Return a key as the file writes it."""
        back = {option: name for name, option in {**RENAMED, **NEGATED}.items()}
        return back.get(key, key.replace("-", "_"))


def recognises(text: str) -> bool:
    """Tell whether a text looks like an experiment of Primus."""
    return re.search(r"^modules:", text, re.MULTILINE) is not None and "_trainer:" in text


def parse_launch(text: str, path: str) -> Launch:
    """Return what an experiment's YAML says.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    stated = parse_yaml(text, path)
    entries = {key: _filled(entry) for key, entry in stated.entries.items()}
    plain = Settings(path, entries)
    if not any(key.startswith(ROOT) for key in entries):
        raise FormatError(f"{path}: no module '{ROOT[:-1]}'; what is trained should stand there")
    if plain.word(ROOT + "framework", "megatron") != "megatron":
        raise plain.wrong(ROOT + "framework", "megatron, the only backend whose keys are read here")
    options = {
        key: Entry(value) for key, value in DEFAULTS.items() if OVERRIDES + key not in entries
    }
    for key, entry in entries.items():
        if key.startswith(OVERRIDES):
            options[key.removeprefix(OVERRIDES)] = entry
    if "fp16" in options and options["fp16"].value is True:
        options.pop("bf16", None)
    settings = Overrides(path, dict(map(_option, options.items())))
    model = _model(plain)
    settings.remarks += plain.remarks
    devices, per_node = launcher(text)
    if devices:
        settings.entries |= {
            "nnodes": Entry(str(devices // per_node)),
            "nproc-per-node": Entry(str(per_node)),
        }
    presets = PRESETS if _turbo(settings) else PRESETS[::-1]
    return megatron.launch_of(settings, model, presets[:1], _facts(settings))


def _filled(entry: Entry) -> Entry:
    """Put defaults in place of variables of the environment."""
    if not isinstance(entry.value, str) or not _VARIABLE.search(entry.value):
        return entry
    text = _VARIABLE.sub(lambda found: found[2], entry.value)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    return entry._replace(value=value if isinstance(value, str | int | float | bool) else text)


def _option(item: tuple[str, Entry]) -> tuple[str, Entry]:
    """Return an override as Megatron-LM's option."""
    key, entry = item
    if key in NEGATED:
        return NEGATED[key], entry._replace(value=entry.value in (False, 0, "false"))
    if entry.value in (0, 1) and key in ("sequence_parallel",):  # examples write 1
        entry = entry._replace(value=bool(entry.value))
    return RENAMED.get(key, key.replace("_", "-")), entry


def _model(settings: Settings) -> ModelSpec | None:
    """Return the model whose file is named, None where overrides describe one."""
    key = ROOT + "model"
    if key not in settings:
        return None
    name = settings.word(key).removesuffix(".yaml")
    found = find_preset(name.replace("_", "-"))
    if found is None:
        settings.remark(f"{key} '{name}' is not known by name; --model names the model")
        return None
    try:
        return load_model(found)
    except ModelError as error:
        raise FormatError(f"{settings.where(key)}: {error}") from None


def _turbo(settings: Settings) -> bool:
    return settings.flag("enable-primus-turbo") and settings.flag("use-turbo-attention")


def _facts(settings: Settings) -> Keys:
    """Return facts of the framework that only Primus has keys for."""
    fused = not settings.flag("no-gradient-accumulation-fusion")
    facts: Keys = {"gradient_accumulation": "fused" if fused else "separate"}
    if settings.flag("enable-primus-turbo"):
        grouped = ("use-turbo-grouped-gemm", "use-turbo-grouped-mlp")
        facts["grouped_gemm"] = any([settings.flag(key) for key in grouped])
        stage = settings.whole("turbo-sync-free-moe-stage", 0, 0)
        facts["expert_counts_on_host"] = stage < SYNC_FREE
    return facts


def _named(model: ModelSpec | None) -> str | None:
    """Return the preset that a model is; None for one that has to be described."""
    name = find_preset(model.name) if model is not None else None
    return name if name is not None and load_model(name) == model else None


def keys_of(launch: Launch) -> Keys:
    """Return all keys of the experiment, as dotted paths."""
    options = megatron.keys_of(launch)
    keys: Keys = {}
    if launch.model is not None and (name := _named(launch.model)) is not None:
        keys[ROOT + "model"] = f"{name}.yaml"
        described = megatron.model_arguments(
            core_facts(launch.model, TITLE, launch["sequence_length"])
        )
        options = {key: value for key, value in options.items() if key not in described}
    turbo = launch.framework.name.startswith("primus-turbo")
    found: Keys = {
        "use_distributed_optimizer": False,  # unless the options below say otherwise
        "gradient_accumulation_fusion": launch.framework.gradient_accumulation == "fused",
        "enable_primus_turbo": turbo,
        "use_turbo_attention": turbo,
    }
    if launch.experts and turbo:
        found["use_turbo_grouped_gemm"] = launch.framework.grouped_gemm
        free = not launch.framework.expert_counts_on_host
        found["turbo_sync_free_moe_stage"] = SYNC_FREE if free else 0
    back = {option: name for name, option in RENAMED.items()}
    for option, value in options.items():
        if option in NEGATED.values():
            name = next(key for key, negated in NEGATED.items() if negated == option)
            found[name] = not value
        else:
            found[back.get(option, option.replace("-", "_"))] = value
    return keys | {OVERRIDES + key: value for key, value in found.items()}


def format_launch(launch: Launch, header: Sequence[str]) -> str:
    """Return an experiment's YAML."""
    lines = [
        *header,
        "An experiment of Primus (v26.5); data, learning rate and checkpoints are yours to add.",
        f"  torchrun --nnodes {launch.nodes} --nproc-per-node {launch.processes_per_node} "
        "primus/cli/main.py train pretrain --config THIS.yaml",
    ]
    fixed = {ROOT + "framework": "megatron", ROOT + "config": "pre_trainer.yaml"}
    return format_comment(lines) + format_yaml(fixed | keys_of(launch))


def notes(launch: Launch) -> list[str]:
    """Return what a user of this file should know."""
    if launch.model is None or _named(launch.model) is not None:
        return ["the model's file in primus/configs/models may be called otherwise"]
    return []
