"""Options of served models: kinds of their values, loads, deployments, pools; what they ask."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from perfmodel.base.errors import did_you_mean
from perfmodel.base.fields import Field
from perfmodel.base.precisions import ACTIVATION_FORMATS, AS_STATED, WEIGHT_FORMATS
from perfmodel.base.served_fields import (
    DEGREES,
    DEPLOYMENT_FIELD_BY_NAME,
    DEPLOYMENT_FIELDS,
    ENGINE_LIMITS,
    LOAD_FIELDS,
)
from perfmodel.cli.shared.inputs import DEFAULT_ENGINE
from perfmodel.cli.shared.options import Function, both_names, options_of, stack
from perfmodel.cli.shared.types import (
    MOST,
    Context,
    Counts,
    ListType,
    Names,
    One,
    Parameter,
    parse_range,
)
from perfmodel.software.engine import ENGINES

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.serving.requests import RequestTrace

POOL_FIELDS = {DEPLOYMENT_FIELD_BY_NAME[name].option: name for name in (*DEGREES, "workers")}
"""What a pool says, by its spelling -> field."""
DRAFTERS = ("mtp",)
"""What drafts tokens: the modules that a model states."""


class Numbers(Counts):
    """Numbers: ``0.5,2``, ``1:10:19``, ``1:512:10:log`` or ``1:512:x2``."""

    name = "X,…"

    def __init__(self, minimum: float, maximum: float = MOST) -> None:
        self.minimum, self.maximum = minimum, maximum  # type: ignore[assignment]

    def listed(self, value: Any, param: Parameter, ctx: Context) -> list[Any]:
        """Return the numbers as they were written."""
        found = super().listed(value, param, ctx)
        for number in found:
            if number > self.maximum:
                self.fail(f"{number:g} is above {self.maximum:g}", param, ctx)
        return found

    def items(self, text: str, param: Parameter, ctx: Context) -> list[Any]:
        """Return a number, or those of a range."""
        _, colon, rest = text.partition(":")
        if colon and "x" in rest.lower():
            return super().items(text, param, ctx)
        if colon:
            return list(parse_range(text, text))
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(
                f"'{text}' should be numbers as in 0.5,2 or a range as in 1:10:19 or 1:512:x2",
                param,
                ctx,
            )
        return [number]


def field_type(spec: Field) -> ListType:
    """Return the type of the values of a field, one or several."""
    if spec.kind == "choice":
        return Names(spec.choices)
    if spec.kind == "float":
        return Numbers(spec.minimum, spec.maximum)
    return Counts(int(spec.minimum))


class Pool(click.ParamType):
    """Degrees and workers of one of two pools: ``tp=4,workers=1:8:8`` or ``tp=2,4,workers=2``."""

    name = "KEY=N,…"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> dict[str, list[int]]:
        """Return field -> values."""
        if isinstance(value, dict):
            return value
        parts: dict[str, list[str]] = {}
        key = ""
        for item in str(value).split(","):
            name, equals, number = (part.strip() for part in item.rpartition("="))
            if equals:
                key = name.replace("_", "-")
                field = POOL_FIELDS.get(key, name.replace("-", "_"))
                if field not in POOL_FIELDS.values():
                    hint = did_you_mean(name, POOL_FIELDS)
                    known = hint or f"; there are {', '.join(POOL_FIELDS)}"
                    self.fail(f"a pool has no '{name}'{known}", param, ctx)
                if field in parts:
                    self.fail(f"'{name}' is there twice", param, ctx)
                key, parts[field] = field, []
            if not key or not number:
                self.fail(f"'{value}' should be KEY=N,… as in tp=4,workers=1:8:8", param, ctx)
            parts[key].append(number)
        return {
            field: Counts(1).convert(",".join(numbers), param, ctx)
            for field, numbers in parts.items()
        }

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete a key."""
        done, comma, last = incomplete.rpartition(",")
        keys = [f"{key}=" for key in POOL_FIELDS if key.startswith(last)]
        return [CompletionItem(done + comma + key) for key in keys]


class Drafts(NamedTuple):
    """Drafted tokens per pass, and the chance that one is taken."""

    draft_length: list[int]
    acceptance: list[float]


class Speculative(click.ParamType):
    """``mtp:2:0.8``: what drafts, how many tokens, and the chance that one is taken."""

    name = "mtp:N,…:SHARE"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Drafts:
        """Return the drafts."""
        if isinstance(value, Drafts):
            return value
        drafter, *rest = (part.strip() for part in str(value).split(":"))
        if drafter not in DRAFTERS or len(rest) != 2:
            self.fail(
                f"'{value}' should be mtp:LENGTH:ACCEPTANCE, as in mtp:2:0.8: the model's own "
                "modules draft 2 tokens, each of which is taken with a chance of 0.8",
                param,
                ctx,
            )
        length, acceptance = rest
        return Drafts(
            Counts(0).convert(length, param, ctx),
            Numbers(0.0, 1.0).convert(acceptance, param, ctx),
        )

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete what drafts."""
        return [CompletionItem(f"{it}:") for it in DRAFTERS if it.startswith(incomplete)]


class Precisions(ListType):
    """Formats of weights and of products: ``fp8``, ``bf16,fp8:bf16``."""

    name = "W[:A],…"

    def proposals(self) -> Sequence[str]:
        """Return the formats of weights."""
        return WEIGHT_FORMATS

    def items(self, text: str, param: Parameter, ctx: Context) -> list[tuple[str, str]]:
        """Return one pair."""
        weights, colon, products = text.partition(":")
        (weights,) = Names(WEIGHT_FORMATS).items(weights, param, ctx)
        if not colon:
            return [(weights, AS_STATED)]
        (products,) = Names(ACTIVATION_FORMATS).items(products, param, ctx)
        return [(weights, products)]


class SinglePrecision(Precisions):
    """One pair of formats."""

    name = "W[:A]"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[Any]:
        """Return a list of one pair."""
        found = super().convert(value, param, ctx)
        if len(found) != 1:
            self.fail(f"'{value}' should be one format, or one pair as in int4:bf16", param, ctx)
        return found


LOAD, DEPLOYMENT, POOLS, PHASE = "Load", "Deployment", "Two pools", "One phase"
PHASES = ("prefill", "decode")
TOGETHER = ("weight_precision", "activation_precision", "draft_length", "acceptance")
"""Fields that one option names together with another."""
IN_POOLS = tuple(f"prefill_{name}" for name in (*DEGREES, "workers"))
ASSUMED = ("input_length", "output_length")
"""Fields of loads on which answers depend so much that a default is said."""


def field_option(
    spec: Field, section: str, *, single: bool = False
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
    return both_names(spec, section=section, type=kind, help=text)


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


load_options = stack(*(field_option(spec, LOAD) for spec in LOAD_FIELDS))
"""One option per field of a load, each a list of values."""

engines_option = options_of(
    "core.serve",
    "engine",
    words={
        "names": ", ".join(dict.fromkeys(it.engine for it in ENGINES.values())),
        "default": DEFAULT_ENGINE,
    },
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


@dataclass(frozen=True)
class Question:
    """What is projected.

    Attributes
    ----------
    model_name : str
        As it was typed.
    model : ModelSpec
    hardware : list of str
        As they were typed.
    rows : list of Hardware
    values : dict of str to list of float
        Swept values of each row.
    every, grid : DeploymentGrid
        All deployments that were asked for, and the possible ones.
    loads : LoadGrid
    method : str
        How points are closed.
    assumed : dict of str to value
        Options that nobody gave, with what was taken.
    settings, reading : mapping
        Values of ``--set``, and how the model was read.
    trace : RequestTrace or None
        What is replayed.
    clients : sequence of float
        Requests of the trace that are kept under way; empty where they come by themselves.
    """

    model_name: str
    model: ModelSpec
    hardware: list[str]
    rows: list[Hardware]
    values: dict[str, list[float]]
    every: DeploymentGrid
    grid: DeploymentGrid
    loads: LoadGrid
    method: str
    assumed: dict[str, Any]
    settings: Mapping[str, Any]
    reading: Mapping[str, Any]
    trace: RequestTrace | None
    clients: Sequence[float]

    @property
    def count(self) -> int:
        """Operating points."""
        return len(self.grid) * len(self.rows) * len(self.loads)

    @property
    def is_one(self) -> bool:
        """Whether one point was asked for."""
        return self.count == 1 and len(self.every) == 1

    @property
    def is_phase(self) -> bool:
        """Whether one phase was asked for, of a static batch."""
        return self.method in ("prefill", "decode")
