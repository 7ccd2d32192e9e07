"""Options that several commands share, made from the tables that they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from perfmodel.cli.group import verbosity_options as verbosity_options
from perfmodel.cli.shared.completions import (
    complete_frameworks,
    complete_hardware,
)
from perfmodel.cli.shared.config import read_config_file
from perfmodel.cli.shared.fields import Function as Function
from perfmodel.cli.shared.fields import option as option
from perfmodel.cli.shared.fields import options_of as options_of
from perfmodel.cli.shared.fields import stack as stack
from perfmodel.cli.shared.inputs import DEFAULT_FRAMEWORK
from perfmodel.cli.shared.parsing import SOFTWARE, parse_setting, parse_swept
from perfmodel.cli.shared.types import Axis, One, Paths, Words
from perfmodel.software.framework import framework_names
from perfmodel.strategy.fields import FIELDS, StrategyField

PROBLEM, AXES, HARDWARE, OUTPUT = "Problem", "Strategy", "Hardware and software", "Output"
SCHEDULE_FILE = "perfmodel.schedule_file"
STAGE_SPLIT = f"{SOFTWARE}stage_split"
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
    "sequence_parallel": "true where --tp exceeds 1",
    "pipeline_schedule": "interleaved where --vpp exceeds 1, else 1f1b",
}


def output_option(
    metavar: str, text: str, *, required: bool = False, stdout: bool = False
) -> Callable[[Function], Function]:
    """Return the option that names what is written; with `stdout` it may be -."""
    return option(
        "-o",
        "--output",
        section=OUTPUT,
        required=required,
        metavar=metavar,
        type=click.Path(allow_dash=stdout),
        help=text,
    )


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


def _axis_option(spec: StrategyField, single: bool, section: str) -> Callable[[Function], Function]:
    text = spec.description[0].upper() + spec.description[1:]
    if spec.choices:
        text += f": {spec.form or ', '.join(spec.choices)}"
        if not single:
            text += "; 'all' takes them all"
    if spec.name not in REQUIRED_FIELDS:
        text += f"  [default: {_default(spec, single)}]"
    names = dict.fromkeys((f"--{spec.option}", f"--{spec.name.replace('_', '-')}"))
    flag = {"is_flag": False, "flag_value": "true"} if spec.kind == "bool" else {}
    return option(
        *names,
        spec.name,
        section=section,
        type=One(Axis(spec)) if single else Axis(spec),
        required=spec.name in REQUIRED_FIELDS,  # never with a default: None is a value to click
        help=text,
        **flag,
    )


def _default(spec: StrategyField, single: bool) -> str:
    if spec.name in DERIVED:
        return DERIVED[spec.name]
    if not single and spec.name in SWEPT_FIELDS:
        return "every sensible value"
    return str(spec.default)


def read_settings(
    ctx: click.Context, param: click.Parameter, value: tuple[Any, ...]
) -> dict[str, Any]:
    settings = _pairs([parse_setting(item) for item in value], "set")
    if layers := ctx.meta.get(STAGE_SPLIT):
        settings[STAGE_SPLIT] = layers
    return settings


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
MODEL_HELP = "Preset ('perfmodel model list'), or a Hugging Face config.json or its folder"
HARDWARE_HELP = "Hardware profile ('perfmodel hardware list'), alias, or TOML file"
devices_option = options_of("shared.common", "devices")
device_counts_option = options_of("shared.common", "device_counts")
scaling_option = options_of("shared.common", "scaling")


def one_hardware_option(
    *, section: str = PROBLEM, required: bool = False, text: str = f"{HARDWARE_HELP}."
) -> Callable[[Function], Function]:
    """Return the option that names one hardware profile."""
    return option(
        "--hardware",
        section=section,
        required=required,
        type=One(Paths()),
        metavar="NAME|PATH",
        shell_complete=complete_hardware,
        help=text,
    )


def several_hardware_option(
    *, section: str = PROBLEM, required: bool = True
) -> Callable[[Function], Function]:
    """Return the option that names hardware profiles."""
    return option(
        "--hardware",
        section=section,
        required=required,
        type=Paths(),
        shell_complete=complete_hardware,
        help=f"{HARDWARE_HELP}; several to compare.",
    )


hardware_option = one_hardware_option(required=True)
hardware_options = several_hardware_option()
set_option = options_of("shared.common", "set", callback=read_settings)
stage_layers_option = options_of(
    "shared.common", "stage_layers", is_eager=True, expose_value=False, callback=read_stage_layers
)
schedule_file_option = options_of(
    "shared.common", "schedule_file", expose_value=False, callback=read_schedule_file
)
sweep_option = options_of("shared.common", "sweep", callback=read_swept)
FRAMEWORK_HELP = (
    "Training software, which decides what overlaps, what is fused, and in how many bytes "
    f"states are kept and sent: {', '.join(framework_names())}. NAME@RELEASE is a release, by "
    "number, month or year: megatron-bridge@0.4, nemo@24.07, plain@2023. 'perfmodel software list' "
    "says what they are"
)
framework_option = option(
    "--framework",
    section=HARDWARE,
    type=One(Words()),
    shell_complete=complete_frameworks,
    help=f"{FRAMEWORK_HELP}.  [default: {DEFAULT_FRAMEWORK}]",
)
frameworks_option = option(
    "--framework",
    section=HARDWARE,
    type=Words(),
    shell_complete=complete_frameworks,
    help=f"{FRAMEWORK_HELP}; several to compare.  [default: {DEFAULT_FRAMEWORK}]",
)
