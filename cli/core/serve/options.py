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
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import DEFAULT_ENGINE
from perfmodel.cli.shared.options import Function, option, stack
from perfmodel.cli.shared.types import Counts, One, Words
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
    shell_complete=options.complete_engines,
    help="Serving software, which decides how requests are scheduled, what kernels run and what "
    f"the host takes: {', '.join(dict.fromkeys(it.engine for it in ENGINES.values()))}, with its "
    f"release if that matters, as in vllm-0.12; several to compare.  [default: {DEFAULT_ENGINE}]",
)
device_limit_option = option(
    "--devices",
    section=DEPLOYMENT,
    type=Counts(),
    help="Devices of a deployment at most; they are filled with workers.  [default: one worker]",
)
precision_option = option(
    "--precision",
    section=DEPLOYMENT,
    type=Precisions(),
    help="Formats of weights and of products, as in fp8 or int4:bf16; what products take is "
    "derived where only weights are named.  [default: as the model states them, else bf16]",
)
one_precision_option = option(
    "--precision",
    section=DEPLOYMENT,
    type=SinglePrecision(),
    metavar="W[:A]",
    help="Formats of weights and of products, as in fp8 or int4:bf16.  [default: as the model "
    "states them, else bf16]",
)
speculative_option = option(
    "--speculative",
    section=DEPLOYMENT,
    type=Speculative(),
    metavar="mtp:N:SHARE",
    help="Tokens that the model's own modules draft ahead of every pass, and the chance that one "
    "is taken, as in mtp:2:0.8; mtp:0,1,2,3:0.8 compares.  [default: no drafts]",
)
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
    option(
        "--disaggregate",
        section=POOLS,
        is_flag=True,
        help="Prompts and answers run on workers of their own.",
    ),
    option(
        "--prefill",
        section=POOLS,
        type=Pool(),
        help="Degrees and number of workers that run prompts, as in tp=4,workers=1:8:8: a pool "
        "that names a degree has 1 of the others, else those of the workers that run answers.  "
        "[default: workers=1]",
    ),
    option(
        "--decode",
        section=POOLS,
        type=Pool(),
        help="Degrees and number of workers that run answers, as in ep=32,dp-attention=32; the "
        "same as --ep and the others.",
    ),
)


phase_options = stack(
    option(
        "--phase",
        section=PHASE,
        type=click.Choice(PHASES),
        help="Only one phase, of a batch that stays as it is: all its prompts, or one token of "
        "each sequence halfway through its answer.",
    ),
    option(
        "--batch",
        section=PHASE,
        type=Counts(),
        help="Requests of the batch, over all workers; with --phase only.",
    ),
)


exact_option = option(
    "--exact",
    section=LOAD,
    is_flag=True,
    help="Go through the load pass by pass instead of in closed form: a hundred times slower, "
    "with the distributions that come out.",
)
replay_option = option(
    "--replay",
    section=LOAD,
    type=click.Path(),
    metavar="TRACE",
    help="Replay a trace of requests instead, pass by pass: Mooncake's JSON lines, or CSV with "
    "arrival [s], input and output tokens. With --concurrency its requests are sent as others "
    "end, not when they came.",
)
explain_option = option(
    "--explain",
    section=options.OUTPUT,
    is_flag=True,
    help="Of one point: say where a decode pass and a prefill pass go, operation by operation.",
)
timeline_option = option(
    "--timeline",
    section=options.OUTPUT,
    type=click.Path(),
    metavar="FILE",
    help="Of one point of a closed loop (--concurrency) or a trace (--replay): write its passes, "
    "one by one, for ui.perfetto.dev (.json, .json.gz).",
)


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
