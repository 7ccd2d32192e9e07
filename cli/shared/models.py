"""The model of a command: options that name it, read it and put adapters beside it."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from perfmodel.base.errors import ModelError
from perfmodel.cli.shared.completions import names_or_file
from perfmodel.cli.shared.options import Function, options_of, stack
from perfmodel.cli.shared.printing import remark
from perfmodel.cli.shared.types import ListType
from perfmodel.model.adapters import EVERYTHING, FROZEN_BYTES, WORDS, AdapterSpec
from perfmodel.model.presets import MTP

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec

LORA = ("lora_rank", "lora_targets", "lora_frozen", "lora_share_experts", "lora_expert_rank")


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
    """Take the options of `LORA` out of all options, and return the adapters that they name.

    Raises
    ------
    ModelError
        Something is said of adapters, but not their rank.
    """
    rank, targets, frozen, shared, inner = (options.pop(name, None) for name in LORA)
    if rank is None:
        if targets or frozen or shared or inner:
            raise ModelError("options of adapters (--lora-…) need --lora-rank")
        return None
    return AdapterSpec(rank, tuple(targets or EVERYTHING), frozen or "", bool(shared), inner or 0)


def adapter_defaults(spec: AdapterSpec) -> dict[str, Any]:
    """Return the adapters of a launch file as values of the options."""
    inner = str(spec.expert_rank) if spec.expert_rank else ""
    values = (str(spec.rank), list(spec.targets), spec.frozen, spec.share_experts, inner)
    return {name: value for name, value in zip(LORA, values, strict=True) if value}


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


READING = ("mtp", "family")
"""Options that say how a model is read, by the names that `load_model` has for them."""


def given_reading(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `READING` out of all options, and return them, with adapters."""
    found = {name: options.pop(name) for name in READING if name in options}
    if LORA[0] in options:
        found["adapters"] = given_adapters(options)
    return found


def _collected(function: Function) -> Function:
    """Hand the options of `READING` to a command as one mapping, ``reading``."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, reading=given_reading(kwargs), **kwargs)

    return run  # type: ignore[return-value]


def _complete_families(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a family; a page is left to the shell."""
    from perfmodel.model.config import covered_model_types

    return names_or_file(incomplete, dict.fromkeys(covered_model_types()))


_mtp_option = options_of("shared.models", "mtp", type=click.Choice(MTP))
_family_option = options_of("shared.models", "as", shell_complete=_complete_families)
_name_option = options_of("shared.models", "model")
reading_options: Callable[[Function], Function] = stack(_mtp_option, _family_option, _collected)
model_option = stack(_name_option, reading_options)
tuned_reading_options: Callable[[Function], Function] = stack(
    _mtp_option, _family_option, lora_options, _collected
)
tuned_model_option = stack(_name_option, tuned_reading_options)
"""A model that is trained, perhaps only adapters beside it."""
served_model_option = stack(_name_option, _family_option, _collected)
"""A served model: its multi-token-prediction modules draft, or lie idle."""
models_option = stack(options_of("shared.models", "several"), tuned_reading_options)


def reading_words(reading: Mapping[str, Any]) -> str:
    """Return the options that read a model as it was read; empty for the defaults."""
    mtp = reading.get("mtp", "none")
    words = ["--mtp", mtp] if mtp != "none" else []
    words += ["--as", reading["family"]] if reading["family"] else []
    return f"{shlex.join(words)} {adapter_words(reading)}".strip()


def say_remarks(models: Iterable[ModelSpec]) -> None:
    """Say on stderr what should be known of how models were read."""
    models = list(models)
    for model in models:
        name = f"{model.name}: " if len(models) > 1 else ""
        for text in model.remarks:
            remark(f"note: {name}{text}")


def reading_document(models: Iterable[ModelSpec]) -> dict[str, Any]:
    """Return what JSON says of how models were read."""
    models = list(models)
    remarks = {model.name: list(model.remarks) for model in models}
    modules = {model.name: len(model.mtp_layers) for model in models}
    one = len(models) == 1
    return {
        "mtp_layers": next(iter(modules.values())) if one else modules,
        "remarks": next(iter(remarks.values())) if one else remarks,
    }
