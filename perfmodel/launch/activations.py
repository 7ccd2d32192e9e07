"""What launch files say of activations: which are recomputed, and what is left to the host.

Megatron's words: a method, ``uniform`` or ``block``, with a number of layers, beside the
granularity ``full``; a list of modules beside ``selective`` (megatron/core/transformer/
transformer_config.py). All layers, one by one, are ``uniform`` with 1. Parameters and optimizer
that are offloaded to the host are read alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import Keys, Settings
from perfmodel.launch.table import RecomputeKeys, Switch
from perfmodel.software.offload import INPUTS, offloaded_inputs
from perfmodel.software.recompute import MODULES, WORDS
from perfmodel.strategy.fields import OFFLOAD_TO

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
