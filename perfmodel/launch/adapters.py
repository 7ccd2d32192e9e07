"""Low-rank adapters as Megatron-Bridge and NeMo state them: the section ``peft``."""

from __future__ import annotations

from typing import Any

from perfmodel.launch.describe import experts_per_token
from perfmodel.launch.settings import Settings
from perfmodel.model.adapters import EVERYTHING, WORDS, AdapterSpec
from perfmodel.model.build import ModelSpec

DEFAULT_RANK = 32
"""Of LoRA in Megatron-Bridge and NeMo (peft/lora.py, ``dim``)."""

RANK, TARGETS = "peft.dim", "peft.target_modules"
SHARED, NORMALISED = "peft.share_expert_adapters", "peft.normalize_moe_lora"
UNPRICED = ("peft.alpha", "peft.dropout", "peft.dropout_position", "peft.a2a_experimental")


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
