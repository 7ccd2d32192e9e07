"""Options that several commands share, made from the tables that they describe."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from perfmodel.cli.group import Option
from perfmodel.cli.group import verbosity_options as verbosity_options
from perfmodel.cli.shared.config import read_config_file
from perfmodel.cli.shared.inputs import DEFAULT_FRAMEWORK
from perfmodel.cli.shared.parsing import SOFTWARE, parse_setting, parse_swept
from perfmodel.cli.shared.types import Axis, Counts, ListType, One, Paths, Words
from perfmodel.software.framework import framework_names
from perfmodel.strategy.fields import FIELDS, StrategyField

Function = TypeVar("Function", bound=Callable[..., Any])
PROBLEM, AXES, HARDWARE, OUTPUT = "Problem", "Strategy", "Hardware and software", "Output"
MESH_COMMANDS = ("show", "wafer")  # that take meshes of cores
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


def option(*names: str, section: str, **kwargs: Any) -> Callable[[Function], Function]:
    """Return a click option in a section of the help page; one of a list may be repeated."""
    kind = ListOption if isinstance(kwargs.get("type"), ListType) else Option
    return click.option(*names, cls=kind, section=section, **kwargs)


def stack(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Apply decorators so that the help page lists them in the written order."""

    def apply(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


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


def complete_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a preset's name or its name on the Hub; a path is left to the shell."""
    from perfmodel.model.presets import hub_names, preset_names

    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    found = _completed(incomplete, {name: None for name in preset_names()})
    return found or _completed(incomplete, hub_names())


def complete_hardware(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a profile's name or one of its aliases."""
    from perfmodel.hwprofiles import list_aliases, list_hardware, list_meshes

    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    names = list_hardware()
    if ctx.command.name in MESH_COMMANDS:
        names += list_meshes()
    found = _completed(incomplete, {name: None for name in names})
    return found or _completed(incomplete, list_aliases())


def _completed(incomplete: str, names: Mapping[str, str | None]) -> list[CompletionItem]:
    """Complete the last name of a comma-separated list; names have a help text, or none."""
    done, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(done + comma + name, help=text)
        for name, text in names.items()
        if name.lower().startswith(last.lower())
    ]


def complete_paths(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the dotted path of a value of the chosen profile."""
    from perfmodel.hwprofiles import known_paths, load_hardware, load_mesh, mesh_paths
    from perfmodel.hwprofiles.mesh_loader import names_mesh
    from perfmodel.software.engine import IDENTITY, Engine
    from perfmodel.software.facts import facts_of
    from perfmodel.software.framework import IDENTITY as RELEASE
    from perfmodel.software.framework import OF_MEASURED_RUNS, Framework

    if incomplete.startswith(SOFTWARE):
        serves = "concurrency" in {parameter.name for parameter in ctx.command.params}
        facts = facts_of(Engine) if serves else facts_of(Framework)
        return [
            CompletionItem(f"{SOFTWARE}{key}=", help=fact.meaning)
            for key, fact in facts.items()
            if key not in (IDENTITY if serves else (*RELEASE, *OF_MEASURED_RUNS))
            and key.startswith(incomplete.removeprefix(SOFTWARE))
        ]
    chosen = ctx.params.get("hardware") or ctx.params.get("name") or "dgx-h100"
    name = chosen if isinstance(chosen, str) else chosen[0]
    if names_mesh(name):
        paths = mesh_paths(load_mesh(name))
    else:
        paths = known_paths(load_hardware(name))
    return [
        CompletionItem(f"{path}=", help=field.meaning)
        for path, field in paths.items()
        if path.startswith(incomplete)
    ]


def complete_frameworks(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a framework preset, or of software whose newest release is meant."""
    from perfmodel.software.framework import TITLES, find_framework, framework_names

    newest = {name: TITLES[find_framework(name)] for name in framework_names()}
    return _completed(incomplete, {**newest, **TITLES})


def complete_engines(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a serving engine, or of one of its releases."""
    from perfmodel.software.engine import TITLES

    return _completed(incomplete, TITLES)


def complete_software(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a framework or of an engine."""
    return complete_frameworks(ctx, param, incomplete) + complete_engines(ctx, param, incomplete)


def complete_variables(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the last name of a comma-separated list of variables."""
    from perfmodel.kernels.serving import variables as serving_variables
    from perfmodel.kernels.variables import COSTS, VARIABLES
    from perfmodel.serving.fields import DEPLOYMENT_FIELDS, LOAD_FIELDS

    known = {**serving_variables.VARIABLES, **serving_variables.COSTS, **VARIABLES, **COSTS}
    names = {name: variable.long_name for name, variable in known.items()}
    fields = (*FIELDS, *DEPLOYMENT_FIELDS, *LOAD_FIELDS)
    return _completed(incomplete, names | {spec.name: spec.description for spec in fields})


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
        from perfmodel.strategy.schedule_file import read_schedule

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


json_option = option(
    "--json",
    "as_json",
    section=OUTPUT,
    is_flag=True,
    help="Print JSON with SI units and a schema_version instead of text.",
)
safe_option = option(
    "--safe",
    section=OUTPUT,
    is_flag=True,
    help="A strategy fits where the 90th percentile of its memory (memory_high) does.",
)
config_option = option(
    "--config",
    section=PROBLEM,
    metavar="FILE.toml",
    is_eager=True,
    expose_value=False,
    callback=read_config_file,
    type=click.Path(),
    help="Take options from a TOML file, named as here without the dashes; those on the "
    "command line win.",
)
MODEL_HELP = "Preset ('perfmodel model list'), or a Hugging Face config.json or its folder"
HARDWARE_HELP = "Hardware profile ('perfmodel hardware list'), alias, or TOML file"
devices_option = option(
    "--devices",
    section=PROBLEM,
    required=True,
    type=One(Counts()),
    metavar="N",
    help="Devices of the run.",
)
device_counts_option = option(
    "--devices",
    section=PROBLEM,
    required=True,
    type=Counts(),
    help="Devices of the run; several (256,512,1024 or 64:1024:x2) show how it scales.",
)
scaling_option = option(
    "--scaling",
    section=PROBLEM,
    type=click.Choice(["strong", "weak"]),
    default="strong",
    show_default=True,
    help="Of several --devices: strong keeps --global-batch, weak lets it grow with the devices "
    "from the smallest number on.",
)


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
set_option = option(
    "--set",
    "settings",
    section=HARDWARE,
    multiple=True,
    metavar="PATH=VALUE",
    callback=read_settings,
    shell_complete=complete_paths,
    help="Replace one value of the profile, in SI units, as in device.memory.bandwidth=4.8e12 "
    "(B/s), or of the software, as in software.gradient_bytes=2 ('perfmodel hardware "
    "show' and 'perfmodel software show' list them). May be repeated.",
)
stage_layers_option = option(
    "--stage-layers",
    section=AXES,
    metavar="LAYOUT",
    is_eager=True,
    expose_value=False,
    callback=read_stage_layers,
    help="Layers of every pipeline stage (5,8,8,7; with --vpp of every stage, or of every chunk as "
    "layers run), of the first and the last one (first=5,last=7; the others share the rest), a "
    "layout of Megatron-Core (Et*5|(t*8|)*2t*7L; E embedding, t layer, m further token, L output), "
    "or best: as fast as can be.  [default: as the framework lays them out]",
)
schedule_file_option = option(
    "--schedule-file",
    section=AXES,
    metavar="FILE",
    type=click.Path(),
    expose_value=False,
    callback=read_schedule_file,
    help="Schedule of the pipeline as a table: CSV as torch.distributed.pipelining dumps it (a "
    "line per stage, cells such as 0F0, 3I2, 1W0), or JSON; it decides --pp, --vpp and --schedule.",
)
sweep_option = option(
    "--sweep",
    "swept",
    section=HARDWARE,
    multiple=True,
    metavar="PATH=RANGE",
    callback=read_swept,
    shell_complete=complete_paths,
    help="Try several values of the profile or, in a sweep, of the software: START:STOP:COUNT "
    "(evenly spaced), START:STOP:COUNT:log, or A,B,…; SI units. May be repeated: all combinations.",
)
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
