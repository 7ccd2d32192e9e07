"""Options that fine-tune a model with low-rank adapters."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from perfmodel.base.errors import ModelError
from perfmodel.cli.shared.options import options_of, stack
from perfmodel.cli.shared.types import ListType
from perfmodel.model.adapters import EVERYTHING, FROZEN_BYTES, WORDS, AdapterSpec

NAMES = ("lora_rank", "lora_targets", "lora_frozen", "lora_share_experts", "lora_expert_rank")


class Targets(ListType):
    """Matrices that have adapters."""

    name = "NAME,…"

    def proposals(self) -> tuple[str, ...]:
        """Return the words for them."""
        return WORDS


lora_options = stack(
    options_of("shared.adapters", "lora_rank"),
    options_of("shared.adapters", "lora_targets", type=Targets()),
    options_of("shared.adapters", "lora_frozen", type=click.Choice(tuple(FROZEN_BYTES))),
    options_of("shared.adapters", "lora_share_experts", default=None),
    options_of("shared.adapters", "lora_expert_rank"),
)


def given_adapters(options: dict[str, Any]) -> AdapterSpec | None:
    """Take the options of `NAMES` out of all options, and return the adapters that they name.

    Raises
    ------
    ModelError
        Something is said of adapters, but not their rank.
    """
    rank, targets, frozen, shared, inner = (options.pop(name, None) for name in NAMES)
    if rank is None:
        if targets or frozen or shared or inner:
            raise ModelError("options of adapters (--lora-…) need --lora-rank")
        return None
    return AdapterSpec(rank, tuple(targets or EVERYTHING), frozen or "", bool(shared), inner or 0)


def adapter_defaults(spec: AdapterSpec) -> dict[str, Any]:
    """Return the adapters of a launch file as values of the options."""
    inner = str(spec.expert_rank) if spec.expert_rank else ""
    values = (str(spec.rank), list(spec.targets), spec.frozen, spec.share_experts, inner)
    return {name: value for name, value in zip(NAMES, values, strict=True) if value}


def adapter_words(reading: Mapping[str, Any]) -> str:
    """Return the options that name the adapters again; empty without."""
    spec: AdapterSpec | None = reading.get("adapters")
    if spec is None:
        return ""
    words = ["--lora-rank", str(spec.rank)]
    if spec.targets != EVERYTHING:
        words += ["--lora-targets", ",".join(spec.targets)]
    words += ["--lora-frozen", spec.frozen] if spec.frozen else []
    words += ["--lora-share-experts"] if spec.share_experts else []
    words += ["--lora-expert-rank", str(spec.expert_rank)] if spec.expert_rank else []
    return shlex.join(words)
