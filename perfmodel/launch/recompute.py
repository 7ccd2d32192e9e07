"""How launch files say which layers, and which modules of them, are recomputed.

Megatron's words: a method, ``uniform`` or ``block``, with a number of layers, beside the
granularity ``full``; a list of modules beside ``selective`` (megatron/core/transformer/
transformer_config.py). All layers, one by one, are ``uniform`` with 1.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import Keys, Limit, Settings
from perfmodel.software.recompute import MODULES, WORDS

METHODS = ("uniform", "block")
CORE_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Megatron-Core's ``recompute_modules``; of other software's words no list is written."""


class RecomputeKeys(NamedTuple):
    """How a software calls method, number of layers and modules; empty: it has none."""

    method: str
    layers: str
    modules: str = ""


def method_limit(*offered: str) -> Limit:
    """Return the limit of a software that has these methods beside ``single``."""
    return Limit(
        ("recompute_method",),
        lambda launch: launch["recompute_method"] not in ("single", *offered),
        f"it offers {', '.join(('single', *offered))}",
    )


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
