"""What readers of launch files share: activations, and the end of reading.

Activations are said in Megatron's words: a method, ``uniform`` or ``block``, with a number of
layers, beside the granularity ``full``; a list of modules beside ``selective`` (megatron/core/
transformer/transformer_config.py). All layers, one by one, are ``uniform`` with 1. Parameters and
optimizer that are offloaded to the host are read alike. What depends on the number of devices and
on other fields is read at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.strategy_fields import FIELDS, OFFLOAD_TO
from perfmodel.launch.describe import Launch, known_as, settled
from perfmodel.launch.settings import Keys, Settings, refuse_unknown, remark_unread
from perfmodel.launch.table import Program, RecomputeKeys, Switch
from perfmodel.model.presets import preset_names
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import FRAMEWORKS, Framework, load_framework
from perfmodel.software.modules import INPUTS, MODULES, WORDS, offloaded_inputs

METHODS = ("uniform", "block")
CORE_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Megatron-Core's ``recompute_modules``; of other software's words no list is written."""


def read_layers(settings: Settings, keys: RecomputeKeys, level: str) -> Keys:
    """Return the fields of a strategy that say which layers are recomputed.

    Raises
    ------
    FormatError
        Names the key, and what it could be.
    """
    method = settings.word(keys.method)
    layers = settings.whole(keys.layers, 1, 0)
    if level != "full" or method in ("", "null", "None"):
        return {}
    if method not in METHODS:
        raise settings.wrong(keys.method, f"one of {', '.join(METHODS)}")
    if method == "uniform" and layers == 0:
        raise settings.wrong(keys.layers, "at least 1")
    return {"recompute_method": method, "recompute_num_layers": layers}


def write_layers(launch: Launch, keys: RecomputeKeys) -> Keys:
    """Return the keys that say which layers are recomputed, and which modules."""
    if launch["recompute"] == "selective" and keys.modules:
        return _write_modules(launch, keys.modules)
    if launch["recompute"] != "full":
        return {}
    if launch["recompute_method"] == "single":
        return {keys.method: "uniform", keys.layers: 1}
    return {
        keys.method: launch["recompute_method"],
        keys.layers: launch["recompute_num_layers"],
    }


def _write_modules(launch: Launch, key: str) -> Keys:
    words = launch.framework.selective_recompute.split()
    if any(word.startswith("save_") for word in words):
        raise StrategyError(
            f"selective_recompute {' '.join(words)}: {key} lists modules that are repeated: "
            f"{', '.join(CORE_MODULES)}"
        )
    return {key: words} if words and set(words) <= set(CORE_MODULES) else {}


def read_modules(settings: Settings, key: str) -> Keys:
    """Return what selective recomputation repeats, where a file lists modules.

    Raises
    ------
    FormatError
        A word is nearly that of a module.
    """
    entry = settings.entries.get(key)
    if entry is None:
        return {}
    settings.read.add(key)
    words = re.findall(r"[a-z_]+", str(entry.value).lower())
    known = [word for word in words if word in MODULES]
    for word in (word for word in words if word not in (*known, "none", "null")):
        hint = did_you_mean(word, CORE_MODULES)
        if hint.startswith("; did you mean"):
            raise settings.wrong(key, f"modules of {', '.join(CORE_MODULES)}{hint}")
        settings.remark(f"{settings.name(key)} {word}: projected as kept")
    if not known:
        return {}
    return {"selective_recompute": " ".join(word for word in WORDS if word in known)}


def read_offload(settings: Settings, switches: Iterable[Switch]) -> Keys:
    """Return the shares that keys leave to the host; empty where they leave nothing.

    Raises
    ------
    FormatError
        A share above 1.
    """
    found: Keys = {}
    for switch in switches:
        value = settings.stated(switch.key, flag=True)
        share = settings.number(switch.share, 1.0) if switch.share else 1.0
        if share > 1.0:
            raise settings.wrong(switch.share, "a share of at most 1")
        if value is None:
            continue
        found |= dict.fromkeys(switch.fields, share)
        if value == "nvme":
            found |= {OFFLOAD_TO[name]: value for name in switch.fields}
    return found


def read_activations(
    settings: Settings, spelled: Callable[[str], str], layers: int
) -> tuple[Keys, Keys]:
    """Return what Megatron-Core leaves to the host of activations: strategy and facts.

    Parameters
    ----------
    settings : Settings
    spelled : callable
        How the software spells a field of ``TransformerConfig``.
    layers : int
        Of the model; 0 where nobody says.

    Raises
    ------
    FormatError
        A module that is none, or more layers than there are.
    """
    switch, key = spelled("fine_grained_activation_offloading"), spelled("offload_modules")
    if settings.flag(switch):
        settings.read.add(key)
        value = settings.entries[key].value if key in settings.entries else ""
        words = " ".join(re.findall(r"\w+", str(value)))
        try:
            offloaded_inputs(words)
        except StrategyError:
            one = "; fused_group_mlp without expert_fc1 and moe_act"
            raise settings.wrong(key, f"modules of {', '.join(INPUTS)}{one}") from None
        if words:
            share = settings.number(spelled("activation_offload_fraction"), 1.0)
            return {"offload_activations": share}, {"offload_modules": words}
    key = spelled("cpu_offloading_num_layers")
    count = settings.whole(key, 0, minimum=0)
    if not count:
        return {}, {}
    if not layers:
        settings.remark(f"{settings.name(key)}: say it with --offload-activations: the share")
        return {}, {}
    if count > layers:
        raise settings.wrong(key, f"at most the {layers} layers of the model")
    return {"offload_activations": count / layers}, {}


DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel")


def with_replicas(settings: Settings, strategy: Keys, devices: int, sets: str = "") -> Keys:
    """Return a strategy with its data-parallel degree and shard sets, as devices allow.

    Parameters
    ----------
    settings : Settings
    strategy : dict
        With the other degrees.
    devices : int
        0 where a file does not say.
    sets : str
        Key that says how many shard sets there are; empty: none.

    Raises
    ------
    FormatError
        The degrees do not divide the devices, or the shard sets the ranks.
    """
    strategy = {**strategy, **{it: settings.typed[it] for it in DEGREES if it in settings.typed}}
    product = 1
    for name in DEGREES:
        product *= strategy.get(name, 1)
    count = settings.whole(sets, 1) if sets else 1
    if devices % product:
        keys = [settings.fields[name] for name in DEGREES if name in settings.fields]
        raise settings.contradiction(
            f"{devices} devices: should be a multiple of the degrees' product {product}", *keys
        )
    if not devices:
        if count > 1:
            settings.remark(
                f"{settings.name(sets)} {count}: the file does not say how many devices there "
                "are; --shard-group says how many share a shard set"
            )
        return strategy
    strategy = {**strategy, "data_parallel": devices // product}
    ranks = strategy["data_parallel"] * strategy.get("context_parallel", 1)
    if ranks % count:
        raise settings.wrong(sets, f"a divisor of data × context degrees = {ranks}")
    if count > 1:
        strategy["shard_group"] = ranks // count
    return strategy


def finished(
    settings: Settings,
    strategy: Keys,
    facts: Mapping[str, Any],
    model: ModelSpec | None,
    program: Program,
    *,
    devices: int,
    devices_per_node: int = 0,
    domain: int = 0,
    presets: Iterable[str] = (),
    closed: Mapping[str, Iterable[str]] | None = None,
) -> Launch:
    """Return the launch that was read.

    Parameters
    ----------
    settings : Settings
    strategy : dict
        Fields as read.
    facts : mapping
        Facts of the framework that came with them.
    model : ModelSpec or None
    program : Program
        Its software facts count where they matter, its watched keys where nothing read them.
    devices, devices_per_node, domain : int
        0 where a file does not say.
    presets : iterable of str
        Frameworks that the software may be; default: those of the program.
    closed : mapping
        Sections of which all keys are known: see `refuse_unknown`.

    Raises
    ------
    FormatError
        A key is none, or batches do not fit together.
    """
    presets = tuple(presets) or program.presets
    spelled = (
        key
        for item in program.software
        for words in item.spellings
        for key in (*words.keys, *words.also)
    )
    refuse_unknown(settings, {*program.watched, *spelled}, closed)
    strategy = {**strategy, **settings.typed}
    strategy.pop("devices", None)
    _check_batches(settings, strategy)
    if "data_parallel" in strategy and {"global_batch_size", "sequence_length"} <= set(strategy):
        strategy = settled(strategy, model)
    complete = {spec.name: strategy.get(spec.name, spec.default) for spec in FIELDS}
    base = Launch(complete, FRAMEWORKS[presets[0]], model, devices)
    found = {
        choice.field: choice.find(settings).value
        for choice in program.software
        if choice.matters(base)
    }
    facts = {**facts, **found}
    framework = nearest_framework(presets, facts)
    remark_unread(settings, program.watched)
    return Launch(
        strategy,
        framework,
        model,
        devices,
        devices_per_node,
        domain,
        facts=facts,
        remarks=tuple(dict.fromkeys(settings.remarks)),
    )


def _check_batches(settings: Settings, strategy: Mapping[str, Any]) -> None:
    """Refuse a global batch that replicas cannot share in micro-batches."""
    names = ("global_batch_size", "micro_batch_size", "data_parallel")
    if set(names) <= set(strategy):
        total, micro, replicas = (strategy[name] for name in names)
        if total % (micro * replicas):
            keys = [settings.fields[name] for name in names if name in settings.fields]
            raise settings.contradiction(
                f"{replicas} replicas: the batch should be a multiple of {micro * replicas}", *keys
            )


def named(model: ModelSpec | None) -> ModelSpec | None:
    """Return a model under the name of the preset that has its layers, where one has."""
    name = known_as(model, {name: name for name in preset_names()})
    return model if model is None or name is None else replace(model, name=name)


def nearest_framework(presets: Iterable[str], facts: Mapping[str, Any]) -> Framework:
    """Return the preset that fits stated facts best, the first of equals, with those facts."""

    def changes(name: str) -> int:
        return sum(getattr(FRAMEWORKS[name], key) != value for key, value in facts.items())

    return load_framework(min(presets, key=changes), **facts)
