"""Options of served models, made from the tables of their fields."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from perfmodel.cli.core.serve.types import (
    Drafts,
    Pool,
    Precisions,
    SinglePrecision,
    Speculative,
    field_type,
)
from perfmodel.cli.shared import completions
from perfmodel.cli.shared.inputs import DEFAULT_ENGINE
from perfmodel.cli.shared.options import Function, option, options_of, stack
from perfmodel.cli.shared.types import One, Words
from perfmodel.serving.fields import (
    DEGREES,
    DEPLOYMENT_FIELD_BY_NAME,
    DEPLOYMENT_FIELDS,
    ENGINE_LIMITS,
    LOAD_FIELDS,
)
from perfmodel.software.engine import ENGINES
from perfmodel.strategy.fields import StrategyField

LOAD, DEPLOYMENT, POOLS, PHASE = "Load", "Deployment", "Two pools", "One phase"
PHASES = ("prefill", "decode")
TOGETHER = ("weight_precision", "activation_precision", "draft_length", "acceptance")
"""Fields that one option names together with another."""
IN_POOLS = tuple(f"prefill_{name}" for name in (*DEGREES, "workers"))
ASSUMED = ("input_length", "output_length")
"""Fields of loads on which answers depend so much that a default is said."""


def field_option(
    spec: StrategyField, section: str, *, single: bool = False
) -> Callable[[Function], Function]:
    """Return the option of a field: a list of values, or one."""
    text = spec.description[0].upper() + spec.description[1:]
    default = {"tensor_parallel": "every sensible value; 1 with --dp-attention"}.get(
        spec.name, _shown(spec.default)
    )
    if spec.choices:
        text += f": {', '.join(spec.choices)}"
    if spec.name == "workers":
        default = "1, or what --devices holds"
    if spec.name not in ("concurrency", "arrival_rate", *ENGINE_LIMITS):
        text += f"  [default: {default}]"
    kind = One(field_type(spec), "perfmodel serve") if single else field_type(spec)
    names = dict.fromkeys((f"--{spec.option}", f"--{spec.name.replace('_', '-')}"))
    return option(*names, spec.name, section=section, type=kind, help=text)


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


load_options = stack(*(field_option(spec, LOAD) for spec in LOAD_FIELDS))
"""One option per field of a load, each a list of values."""

engines_option = option(
    "--engine",
    section=DEPLOYMENT,
    type=Words(),
    metavar="NAME[-RELEASE],…",
    shell_complete=completions.complete_engines,
    help="Serving software, which decides how requests are scheduled, what kernels run and what "
    f"the host takes: {', '.join(dict.fromkeys(it.engine for it in ENGINES.values()))}, with its "
    f"release if that matters, as in vllm-0.12; several to compare.  [default: {DEFAULT_ENGINE}]",
)
device_limit_option = options_of("core.serve", "devices")
precision_option = options_of("core.serve", "precision", type=Precisions())
one_precision_option = options_of("core.serve", "one_precision", type=SinglePrecision())
speculative_option = options_of("core.serve", "speculative", type=Speculative())
degree_options = stack(
    *(
        field_option(spec, DEPLOYMENT)
        for spec in DEPLOYMENT_FIELDS
        if spec.name not in (*TOGETHER, *IN_POOLS, "workers")
    ),
)
"""Degrees of a worker, and limits of its engine."""
deployment_options = stack(
    engines_option,
    device_limit_option,
    field_option(DEPLOYMENT_FIELD_BY_NAME["workers"], DEPLOYMENT),
    degree_options,
    precision_option,
    speculative_option,
)
"""One option per field of a deployment, each a list of values."""

pool_options = stack(
    options_of("core.serve", "disaggregate"),
    options_of("core.serve", "prefill", type=Pool()),
    options_of("core.serve", "decode", type=Pool()),
)


phase_options = stack(
    options_of("core.serve", "phase", type=click.Choice(PHASES)),
    options_of("core.serve", "batch"),
)


exact_option = options_of("core.serve", "exact")
replay_option = options_of("core.serve", "replay")
explain_option = options_of("core.serve", "explain")
timeline_option = options_of("core.serve", "timeline")


def deployment_axes(given: Mapping[str, Any], *, pools: bool = True) -> list[dict[str, Any]]:
    """Return the axes of deployments that options name, one mapping per pair of formats.

    Parameters
    ----------
    given : mapping of str to value
        Parameters of `deployment_options` and, with `pools`, of `pool_options`.

    Raises
    ------
    click.UsageError
        Options that exclude each other.
    """
    axes = {
        spec.name: given[spec.name]
        for spec in DEPLOYMENT_FIELDS
        if given.get(spec.name) is not None
    }
    if pools:
        axes |= _pools(given, axes)
    drafts: Drafts | None = given.get("speculative")
    if drafts is not None:
        axes |= drafts._asdict()
    names = ("weight_precision", "activation_precision")
    pairs = given.get("precision")
    if not pairs:
        return [axes]
    return [axes | dict(zip(names, pair, strict=True)) for pair in pairs]


def _pools(given: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes of both pools; nothing where there is one."""
    prefill, decode = given.get("prefill"), given.get("decode")
    if not (given.get("disaggregate") or prefill or decode):
        return {}
    found: dict[str, Any] = {"prefill_workers": [1]}
    for name, values in (prefill or {}).items():
        found[f"prefill_{name}"] = values
    for name, values in (decode or {}).items():
        if name in axes:
            short = next(spec.option for spec in DEPLOYMENT_FIELDS if spec.name == name)
            raise click.UsageError(f"--decode and --{short} both name {name}; drop one of the two")
        found[name] = values
    return found


def load_axes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes of loads that options name."""
    return {spec.name: given[spec.name] for spec in LOAD_FIELDS if given.get(spec.name) is not None}


def collected(function: Function) -> Function:
    """Hand all options of deployments and loads to a command as one mapping, ``given``."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in GIVEN if name in kwargs}
        return function(*args, given=given, **kwargs)

    return run  # type: ignore[return-value]


GIVEN = (
    *(spec.name for spec in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)),
    *("precision", "speculative", "disaggregate", "prefill", "decode"),
)
