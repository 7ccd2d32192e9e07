"""A run or a deployment from a file: one that launches it (``--from``), or stored results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from perfmodel.base.errors import FormatError, PerfModelError
from perfmodel.base.files import user_path
from perfmodel.base.strategy_fields import FIELD_BY_NAME
from perfmodel.cli.group import EXIT_NOTHING_FITS, Option
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import LORA, adapter_defaults
from perfmodel.cli.shared.printing import remark

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.launch.describe import Launch
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.framework import Framework

READ = "perfmodel.cli.shared.launch_file"
TYPED = READ + ".typed"


class FromOption(Option):
    """``--from``, which is read first, and still has to know what is typed beside it."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Keep what stands beside it, and read the file."""
        ctx.meta[TYPED] = opts
        return super().handle_parse_result(ctx, opts, args)


def read_launch_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make what a launch file says the defaults of the command that runs.

    Raises
    ------
    FormatError
        It is no launch file, or one of its keys is wrong.
    """
    if value is None:
        return
    if ctx.default_map:
        raise click.UsageError("--from and --config exclude each other", ctx)

    from perfmodel.launch.software import read_launch

    typed = _typed(ctx)
    name, launch = read_launch(user_path(value), typed=typed)
    ctx.meta[READ] = (name, launch)
    defaults: dict[str, Any] = {
        field: str(setting).lower() if isinstance(setting, bool) else str(setting)
        for field, setting in launch.strategy.items()
    }
    defaults["framework"] = launch.framework.name.partition("[")[0]
    if launch.model is not None:
        defaults["model"] = launch.model.name
        defaults["mtp"] = "stated" if launch.model.mtp_layers else "none"
    if launch.devices:
        defaults["devices"] = str(launch.devices)
    if launch.adapters is not None:
        if all(option.name != LORA[0] for option in ctx.command.params):
            raise click.UsageError(f"{value}: adapters (peft) are for 'perfmodel project'", ctx)
        defaults |= adapter_defaults(launch.adapters)
    ctx.default_map = defaults
    for text in launch.remarks:
        remark(f"{value}: {text}")


def _typed(ctx: click.Context) -> dict[str, Any]:
    """Return the devices and the fields of a strategy that were typed; wrong ones are left out.

    Those are refused when their own options are read.
    """
    found = {}
    for option in ctx.command.params:
        name = str(option.name)
        value = ctx.meta[TYPED].get(name)
        if value is None or not (name == "devices" or name in FIELD_BY_NAME):
            continue
        with suppress(click.UsageError, PerfModelError):
            read = option.type_cast_value(ctx, value)
            if isinstance(read, bool | int | float | str):
                found[name] = read
    return found


def stated_launch() -> Launch | None:
    """Return what the file of ``--from`` says; None without one."""
    found = click.get_current_context().meta.get(READ)
    return None if found is None else found[1]


def stated_model(name: str, reading: Mapping[str, Any]) -> ModelSpec:
    """Return the model of a name, or that of the launch file where the name is its own.

    Parameters
    ----------
    name : str
    reading : mapping
        How it is read: what `load_model` takes.
    """
    from perfmodel.model.presets import load_model

    launch = stated_launch()
    if launch is not None and launch.model is not None and _from_file("model"):
        stated = reading["mtp"] == "stated"
        model = launch.model if stated else launch.model.without_mtp()
        return model.with_adapters(reading.get("adapters"))
    return load_model(name, **reading)


def stated_framework(name: str | None) -> str | Framework | None:
    """Return a framework's name, or the framework as the launch file sets it.

    A name that was typed counts; a remark says which facts of the file it replaces.
    """
    from perfmodel.base.facts import text_of
    from perfmodel.software.framework import load_framework

    launch = stated_launch()
    if launch is None or name is None:
        return name
    if _from_file("framework"):
        return launch.framework
    typed = load_framework(name)
    facts = ((key, getattr(launch.framework, key), getattr(typed, key)) for key in launch.facts)
    replaced = [f"{key} {text_of(old)} → {text_of(new)}" for key, old, new in facts if old != new]
    if replaced:
        remark(f"--framework {name} replaces what the file says: {', '.join(replaced)}")
    return name


def software_defaults_of(framework: Framework) -> Framework | None:
    """Return whose defaults hold where no option names a field; a launch file has its own."""
    return None if stated_launch() is not None else framework


def _from_file(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.DEFAULT_MAP


from_option = options.options_of(
    "shared.launch_file",
    "from",
    cls=FromOption,
    is_eager=True,
    expose_value=False,
    callback=read_launch_file,
)

SERVERS = ("vllm", "sglang", "tensorrt-llm")
"""Engines that a launch command can be written for."""


def read_server_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make what a server's command says the defaults of the command that runs.

    Raises
    ------
    FormatError
        It starts no server, or one of its options is wrong.
    """
    if value is None:
        return
    if ctx.default_map:
        raise click.UsageError("--from and --config exclude each other", ctx)

    from perfmodel.launch.served import read_served
    from perfmodel.model.presets import find_preset

    workers = read_served(user_path(value))
    known = {name: param for param in ctx.command.params if (name := param.name)}
    stated: dict[str, Any] = {"engine": workers.engine, **workers.fields}
    if "precision" in known and workers["weight_precision"]:
        stated["precision"] = workers["weight_precision"]
    if length := workers["draft_length"]:
        remark(f"{value}: drafts of {length} tokens; --speculative says how many are taken")
    if workers.part:
        raise FormatError(
            f"{value}: a {workers.part} worker of two pools; one pool is needed, "
            "or --prefill and --decode in place of the file"
        )
    if workers.model and find_preset(workers.model) is not None:
        stated["model"] = workers.model
    elif workers.model:
        remark(f"{value}: no preset of {workers.model}; --model says which model it is")
    facts = stated.pop("software", {})
    if "settings" in known and facts:
        settings = [f"software.{name}={str(value).lower()}" for name, value in facts.items()]
    elif facts:
        remark(f"{value}: facts of the engine left out: {', '.join(facts)}")
    ctx.default_map = {
        name: [str(value)] if getattr(known[name], "multiple", False) else str(value)
        for name, value in stated.items()
        if name in known
    }
    if "settings" in known and facts:
        ctx.default_map = {**ctx.default_map, "settings": settings}
    for text in workers.remarks:
        remark(f"{value}: {text}")


from_server_option = options.options_of(
    "shared.served_launch", "from", is_eager=True, expose_value=False, callback=read_server_file
)


def typed_options() -> dict[str, Any]:
    """Return the options that were typed, by their names in Python, with their values."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


SWEPT = ("pick", "by", "where", "everything")
"""Options that need a results file."""
pick_options = options.options_of("shared.picked", "pick", "by", "where", "all")


def given_options() -> set[str]:
    """Return the names of the options that were typed, --from among them."""
    return {*typed_options(), *(["from"] if stated_launch() is not None else [])}


def picked_row(
    ctx: click.Context, file: str, pick: int, by: str, where: str | None, everything: bool
) -> tuple[Table, dict[str, Any]]:
    """Return the results of a file, and the row that is the `pick`-th best.

    Ends the program with code 3 where there are not so many.
    """
    from perfmodel.store import results

    table = results.open_table(file)
    found = results.best(table, pick, by=by, where=where, fitting=not everything)
    if len(found) < pick:
        passes = " and pass the filter" if where else ""
        verb = "are possible" if everything else "fit in memory"
        what = "operating points" if "deployment" in table.sizes else "strategies"
        click.echo(f"perfmodel: {len(found):,} {what} {verb}{passes}, not {pick:,}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)
    return table, found[pick - 1]
