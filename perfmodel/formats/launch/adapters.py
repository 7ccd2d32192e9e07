"""Low-rank adapters as Megatron-Bridge and NeMo state them: the section ``peft``."""

from __future__ import annotations

from perfmodel.formats.launch.settings import Settings
from perfmodel.model.adapters import EVERYTHING, WORDS, AdapterSpec

DEFAULT_RANK = 32
"""Of LoRA in Megatron-Bridge and NeMo (peft/lora.py, ``dim``)."""

RANK, TARGETS = "peft.dim", "peft.target_modules"
UNPRICED = ("peft.alpha", "peft.dropout", "peft.dropout_position", "peft.a2a_experimental")


def read_adapters(settings: Settings) -> AdapterSpec | None:
    """Return the adapters that a file states; None where it says nothing of them.

    Raises
    ------
    FormatError
        A rank that is none, or a module that no layer has.
    """
    for key in UNPRICED:
        settings.stated(key)
    modules = settings.stated(TARGETS)
    if RANK not in settings and modules is None:
        return None
    rank = settings.whole(RANK, DEFAULT_RANK)
    if modules is None:
        return AdapterSpec(rank, EVERYTHING)
    listed = modules if isinstance(modules, list) else str(modules).strip("[]").split(",")
    # A pattern that names layers one by one counts for all of them.
    words = tuple(dict.fromkeys(str(item).strip(" '\"").rpartition(".")[2] for item in listed))
    unknown = [word for word in words if word not in WORDS]
    if unknown or not words:
        what = f", not {unknown[0]!r}" if unknown else ""
        raise settings.wrong(TARGETS, f"modules such as linear_qkv{what}")
    if any("*" in str(item) for item in listed):
        settings.remark(f"{settings.name(TARGETS)}: patterns are taken for all layers")
    return AdapterSpec(rank, words)
