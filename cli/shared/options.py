"""Options of commands, made from tables of fields (``cli/WING/options.toml``); those of several.

Options may also stand in a TOML file (``--config``)::

    model = "llama-3.1-70b"
    hardware = ["dgx-h100", "dgx-b200"]
    devices = 1024
    seq-len = 8192
    global-batch = 2048
    tp = [1, 2, 4, 8]

    [set]
    device.memory.bandwidth = 4.8e12

    [sweep]
    "system.network.1.bandwidth" = "25e9:400e9:16"
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import click

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.fields import Field, field_of
from perfmodel.base.files import read_toml, user_path
from perfmodel.base.strategy_fields import FIELDS, SOFTWARE_DEFAULTS
from perfmodel.cli.group import Command, Option
from perfmodel.cli.group import verbosity_options as verbosity_options
from perfmodel.cli.shared import completions
from perfmodel.cli.shared.inputs import DEFAULT_FRAMEWORK
from perfmodel.cli.shared.types import (
    SOFTWARE,
    Axis,
    Clock,
    Counts,
    FiniteRange,
    ListType,
    Names,
    One,
    Paths,
    Size,
    Sizes,
    WholeRange,
    Words,
    parse_setting,
    parse_swept,
)
from perfmodel.software.framework import framework_names


def read_config_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make the file's values the defaults of the command that runs.

    Raises
    ------
    FormatError
        The file is missing, is not TOML, or names an option that the command lacks.
    """
    if value is None:
        return
    if ctx.default_map:
        raise click.UsageError("--from and --config exclude each other", ctx)
    options = {
        name.lstrip("-").replace("-", "_"): other
        for other in ctx.command.params
        if isinstance(other, click.Option) and other.name != param.name
        for name in (*other.opts, *other.secondary_opts)
        if name.startswith("--")
    }
    ctx.default_map = {}
    for key, content in read_toml(user_path(value)).items():
        name = key.replace("-", "_")
        if name not in options:
            known = [key.replace("_", "-") for key in options]
            raise FormatError(
                f"{value}: '{ctx.command_path}' has no option '{key}'{did_you_mean(key, known)}"
            )
        target = options[name]
        if target.name in ctx.default_map:
            raise FormatError(f"{value}: '{key}' is there twice, under two names")
        ctx.default_map[target.name or ""] = _written(target, content, f"{value}: '{key}'")


def _written(target: click.Option, content: Any, where: str) -> Any:
    """Return a value as the command line would write it."""
    if isinstance(content, Mapping):
        if target.name not in ("settings", "swept"):
            raise FormatError(f"{where} should be a value or a list, not a table")
        return [f"{path}={_text(item, where)}" for path, item in _leaves(content, "")]
    if target.multiple:
        return [
            _text(item, where) for item in (content if isinstance(content, list) else [content])
        ]
    if target.is_flag:
        if not isinstance(content, bool):
            raise FormatError(f"{where} should be true or false")
        return content
    return _text(content, where)


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, item in table.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(item, Mapping):
            yield from _leaves(item, path)
        else:
            yield path, item


def _text(content: Any, where: str) -> str:
    if isinstance(content, list):
        return ",".join(_text(item, where) for item in content)
    if isinstance(content, bool):
        return str(content).lower()
    if isinstance(content, int | float | str) and "\0" not in str(content):
        return str(content)
    raise FormatError(f"{where} should be text, a number, true or false, or a list of them")


Function = TypeVar("Function", bound=Callable[..., Any])
FOLDER = Path(__file__).parents[1]
FILE = "options.toml"


class ListOption(Option):
    """An option of a `ListType`: ``A,B`` or the option repeated; None where it is not given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if isinstance(kwargs.get("default"), str):
            kwargs["default"] = (kwargs["default"],)
        super().__init__(*args, multiple=True, callback=_list_or_none, **kwargs)

    def type_cast_value(self, ctx: click.Context, value: Any) -> tuple[Any, ...]:
        """Join the lists, each value once."""
        lists = super().type_cast_value(ctx, value)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(lists)))


def _list_or_none(ctx: click.Context, param: click.Parameter, value: Any) -> list[Any] | None:
    return list(value) if value else None


def _limits(field: Field) -> dict[str, Any]:
    """Return the limits of a number as click has them."""
    return {
        "min": None if field.minimum == -math.inf else field.minimum,
        "max": None if field.maximum == math.inf else field.maximum,
        "min_open": field.above,
        "max_open": field.below,
    }


TYPES: Mapping[str, Callable[[Field], Any]] = {
    "text": lambda field: None,
    "flag": lambda field: None,
    "int": lambda field: WholeRange(**_limits(field)),
    "float": lambda field: FiniteRange(**_limits(field)),
    "choice": lambda field: click.Choice(field.choices),
    "path": lambda field: click.Path(),
    "size": lambda field: Size(),
    "clock": lambda field: Clock(),
    "clock_mhz": lambda field: Clock("MHz"),
    "sizes": lambda field: Sizes(),
    "count": lambda field: One(Counts()),
    "counts": lambda field: Counts(0 if field.minimum == 0 else 1),
    "name": lambda field: One(Words()),
    "names": lambda field: Names(field.choices) if field.choices else Words(),
    "path_name": lambda field: One(Paths()),
    "paths": lambda field: Paths(),
}
"""Kind of a field -> the type of its option."""


def option(*names: str, section: str, **kwargs: Any) -> Callable[[Function], Function]:
    """Return a click option in a section of the help page; one of a list may be repeated."""
    kwargs.setdefault("cls", ListOption if isinstance(kwargs.get("type"), ListType) else Option)
    return click.option(*names, section=section, **kwargs)


def stack(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Apply decorators so that the help page lists them in the written order."""

    def apply(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


@cache
def fields_of(table: str) -> Mapping[str, Field]:
    """Return a table of fields.

    Parameters
    ----------
    table : str
        ``WING.TABLE``: a table of the wing's file; "shared" for what several wings share.
    """
    wing, _, name = table.partition(".")
    return {key: field_of(key, row) for key, row in _document(wing)[name].items()}


@cache
def _pages(wing: str) -> dict[str, str]:
    return read_toml(FOLDER / wing / "pages.toml")


def page(wing: str, name: str, line: str, kind: type[click.Command] = Command) -> dict[str, Any]:
    """Return what a command's help is made of: its page (``cli/WING/pages.toml``), and one line."""
    return {"cls": kind, "short_help": line, "help": _pages(wing)[name]}


@cache
def _document(wing: str) -> dict[str, Any]:
    return read_toml(FOLDER / wing / FILE)


def options_of(
    table: str, *names: str, words: Mapping[str, str] | None = None, **given: Any
) -> Callable[[Function], Function]:
    """Return the options of some fields of a table.

    Parameters
    ----------
    table : str
        As of `fields_of`.
    *names : str
        Keys of the table, in the order of the help page.
    words : mapping of str to str, optional
        What stands for ``{name}`` in their descriptions.
    **given
        What only Python knows of them: what `click.option` takes, and the section, in place of what
        the table says.
    """
    fields = [fields_of(table)[name] for name in names]
    if words:
        fields = [replace(it, description=it.description.format(**words)) for it in fields]
    return stack(*(field_option(it, **given) for it in fields))


def field_option(field: Field, **given: Any) -> Callable[[Function], Function]:
    """Return the option of a field; `given` as of `options_of`."""
    kwargs: dict[str, Any] = {"help": field.description, "required": field.required}
    kwargs["section"] = field.section
    if field.kind == "flag":
        kwargs["is_flag"] = True
    if field.default is not None:
        kwargs["default"] = field.default
    if field.repeated:
        kwargs["multiple"] = True
    if field.metavar:
        kwargs["metavar"] = field.metavar
    if field.complete:
        kwargs["shell_complete"] = getattr(completions, f"complete_{field.complete}")
    if "type" not in given:
        kwargs["type"] = TYPES[field.kind](field)
    kwargs |= given
    if kwargs.get("default") is not None and field.kind != "flag" and field.shown:
        kwargs["show_default"] = True
    spellings = field.spellings or (f"--{field.option}",)
    return option(*spellings, field.name, **kwargs)


PROBLEM, AXES, HARDWARE, OUTPUT = "Problem", "Strategy", "Hardware and software", "Output"
SCHEDULE_FILE = "perfmodel.schedule_file"
STAGE_SPLIT = f"{SOFTWARE}stage_split"
CLOCK, CLOCK_OPTIONS = "device.boost_clock", ("gpu_clock", "gpu_clock_mhz")
REQUIRED_FIELDS = ("global_batch_size", "sequence_length")
# Axes of which a sweep tries every sensible value; the others keep one unless a list is given.
SWEPT_FIELDS = (
    "tensor_parallel",
    "context_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "zero_stage",
    "expert_parallel",
    "micro_batch_size",
    "recompute",
)
DERIVED = {
    "data_parallel": "what the other degrees leave of --devices",
    "sequence_parallel": "as --framework has it where --tp exceeds 1",
    "context_parallel_kind": "as --framework has it",
    "pipeline_schedule": "interleaved where --vpp exceeds 1, else 1f1b",
}


def output_option(
    metavar: str, text: str, *, required: bool = False, stdout: bool = False
) -> Callable[[Function], Function]:
    """Return the option that names what is written; with `stdout` it may be -."""
    kind = click.Path(allow_dash=stdout)
    given: dict[str, Any] = {"metavar": metavar, "required": required, "type": kind, "help": text}
    return options_of("shared.common", "output", **given)


def results_option(text: str) -> Callable[[Function], Function]:
    """Return the option for a file of results, whose kind its name's ending says."""
    kinds = "netCDF (.nc), .csv, .parquet, .zarr, .md or .json, by its name's ending"
    return output_option("FILE", f"{text}, completely or not at all: {kinds}.")


def axis_options(*, single: bool) -> Callable[[Function], Function]:
    """Return one option per strategy field: one value each, or lists of values."""
    required = [spec for spec in FIELDS if spec.name in REQUIRED_FIELDS]
    others = [spec for spec in FIELDS if spec.name not in REQUIRED_FIELDS]
    return stack(
        *(_axis_option(spec, single, PROBLEM) for spec in reversed(required)),
        *(_axis_option(spec, single, AXES) for spec in others),
    )


def _axis_option(spec: Field, single: bool, section: str) -> Callable[[Function], Function]:
    text = spec.description[0].upper() + spec.description[1:]
    if spec.choices:
        text += f": {spec.form or ', '.join(spec.choices)}"
        if not single:
            text += "; 'all' takes them all"
    if spec.name not in REQUIRED_FIELDS:
        text += f"  [default: {_default(spec, single)}]"
    flag = {"is_flag": False, "flag_value": "true"} if spec.kind == "bool" else {}
    kind = One(Axis(spec)) if single else Axis(spec)
    required = spec.name in REQUIRED_FIELDS
    return both_names(spec, section=section, type=kind, required=required, help=text, **flag)


def both_names(spec: Field, **given: Any) -> Callable[[Function], Function]:
    """Return the option of a field of a strategy or a deployment, by its short and its long name.

    What is not given is None: a field's default is looked for later.
    """
    names = dict.fromkeys((f"--{spec.option}", f"--{spec.name.replace('_', '-')}"))
    return field_option(replace(spec, spellings=tuple(names), default=None), **given)


def _default(spec: Field, single: bool) -> str:
    if spec.name in DERIVED:
        return DERIVED[spec.name]
    if not single and spec.name in SWEPT_FIELDS:
        return "every sensible value"
    if spec.name in SOFTWARE_DEFAULTS:
        return "as --framework has it"
    return str(spec.default)


def read_settings(
    ctx: click.Context, param: click.Parameter, value: tuple[Any, ...]
) -> dict[str, Any]:
    settings = _pairs([parse_setting(item) for item in value], "set")
    if layers := ctx.meta.get(STAGE_SPLIT):
        settings[STAGE_SPLIT] = layers
    for clock in (ctx.meta.get(name) for name in CLOCK_OPTIONS):
        if clock and CLOCK in settings:
            raise click.BadParameter(f"'{CLOCK}' is set twice")
        settings |= {CLOCK: clock} if clock else {}
    return settings


def read_clock(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    # Eager, so that `read_settings` finds it; a context shares what its siblings put here.
    ctx.meta[param.name or ""] = value


def read_stage_layers(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    # Eager, so that `read_settings` finds it: a layout is a fact of the software that cuts stages.
    ctx.meta[STAGE_SPLIT] = value


def read_schedule_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        from perfmodel.strategy.pipelines import read_schedule

        ctx.meta[SCHEDULE_FILE] = read_schedule(value)


def read_swept(
    ctx: click.Context, param: click.Parameter, value: tuple[Any, ...]
) -> dict[str, Any]:
    return _pairs([parse_swept(item) for item in value], "swept")


def _pairs(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in pairs:
        if path in found:
            raise click.BadParameter(f"'{path}' is {what} twice")
        found[path] = value
    return found


json_option = options_of("shared.common", "json")
safe_option = options_of("shared.common", "safe")
config_option = options_of(
    "shared.common", "config", is_eager=True, expose_value=False, callback=read_config_file
)
MODEL_HELP, HARDWARE_HELP = (
    fields_of(table)[name].description.removesuffix(".")
    for table, name in (("shared.models", "model"), ("shared.common", "hardware"))
)
devices_option = options_of("shared.common", "devices")
device_counts_option = options_of("shared.common", "device_counts")
scaling_option = options_of("shared.common", "scaling")


def one_hardware_option(
    *, section: str = PROBLEM, required: bool = False, text: str = f"{HARDWARE_HELP}."
) -> Callable[[Function], Function]:
    """Return the option that names one hardware profile."""
    given: dict[str, Any] = {"section": section, "required": required, "help": text}
    return options_of("shared.common", "hardware", **given)


hardware_option = one_hardware_option(required=True)
hardware_options = options_of("shared.common", "several_hardware", required=True)
software_set_option = options_of("shared.common", "set", callback=read_settings)
_clocks: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": read_clock}
set_option = stack(options_of("shared.common", *CLOCK_OPTIONS, **_clocks), software_set_option)
stage_layers_option = options_of(
    "shared.common", "stage_layers", is_eager=True, expose_value=False, callback=read_stage_layers
)
schedule_file_option = options_of(
    "shared.common", "schedule_file", expose_value=False, callback=read_schedule_file
)
sweep_option = options_of("shared.common", "sweep", callback=read_swept)
_FRAMEWORKS = {"names": ", ".join(framework_names()), "default": DEFAULT_FRAMEWORK}
framework_option = options_of("shared.common", "framework", words=_FRAMEWORKS)
frameworks_option = options_of("shared.common", "frameworks", words=_FRAMEWORKS)
