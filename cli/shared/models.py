"""The model of a command: options that name it and say how it is read, and what is said of it."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from perfmodel.cli.shared.adapters import NAMES as LORA
from perfmodel.cli.shared.adapters import adapter_words, given_adapters, lora_options
from perfmodel.cli.shared.completions import complete_models
from perfmodel.cli.shared.options import (
    MODEL_HELP,
    PROBLEM,
    Function,
    option,
    options_of,
)
from perfmodel.cli.shared.options import stack as stacked
from perfmodel.cli.shared.printing import remark
from perfmodel.cli.shared.types import One, Paths
from perfmodel.model.presets import MTP

if TYPE_CHECKING:
    from perfmodel.model.build import ModelSpec

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

    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in covered_model_types() if name.startswith(incomplete)]


_mtp_option = options_of("shared.models", "mtp", type=click.Choice(MTP))
_family_option = options_of("shared.models", "as", shell_complete=_complete_families)
_name_option = option(
    "--model",
    section=PROBLEM,
    required=True,
    type=One(Paths()),
    metavar="NAME|PATH",
    shell_complete=complete_models,
    help=f"{MODEL_HELP}.",
)
reading_options: Callable[[Function], Function] = stacked(_mtp_option, _family_option, _collected)
model_option = stacked(_name_option, reading_options)
tuned_reading_options: Callable[[Function], Function] = stacked(
    _mtp_option, _family_option, lora_options, _collected
)
tuned_model_option = stacked(_name_option, tuned_reading_options)
"""A model that is trained, perhaps only adapters beside it."""
served_model_option = stacked(_name_option, _family_option, _collected)
"""A served model: its multi-token-prediction modules draft, or lie idle."""
models_option = stacked(
    option(
        "--model",
        section=PROBLEM,
        required=True,
        type=Paths(),
        shell_complete=complete_models,
        help=f"{MODEL_HELP}; several to compare.",
    ),
    tuned_reading_options,
)


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
