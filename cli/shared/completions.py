"""What the shell proposes for the values of options and arguments."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from perfmodel.base.strategy_fields import FIELDS
from perfmodel.cli.shared.types import SOFTWARE

MESH_COMMANDS = ("show", "wafer")  # that take meshes of cores


def complete_models(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a preset's name or its name on the Hub; a path is left to the shell."""
    from perfmodel.model.presets import hub_names, preset_names

    return names_or_file(incomplete, dict.fromkeys(preset_names()), hub_names())


def complete_hardware(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a profile's name or one of its aliases."""
    from perfmodel.hwprofiles import list_aliases, list_hardware, list_meshes

    names = list_hardware()
    if ctx.command.name in MESH_COMMANDS:
        names += list_meshes()
    return names_or_file(incomplete, dict.fromkeys(names), list_aliases())


def names_or_file(incomplete: str, *lists: Mapping[str, str | None]) -> list[CompletionItem]:
    """Complete names of the first list that has any; a path is left to the shell."""
    if incomplete.startswith((".", "/", "~")):
        return [CompletionItem(incomplete, type="file")]
    return next(filter(None, (_completed(incomplete, names) for names in lists)), [])


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
    from perfmodel.base.fields import facts_of
    from perfmodel.hwprofiles import known_paths, load_hardware, load_mesh, mesh_paths
    from perfmodel.hwprofiles.mesh_loader import names_mesh
    from perfmodel.software.engine import IDENTITY, Engine
    from perfmodel.software.framework import IDENTITY as RELEASE
    from perfmodel.software.framework import OF_MEASURED_RUNS, Framework

    if incomplete.startswith(SOFTWARE):
        serves = "concurrency" in {parameter.name for parameter in ctx.command.params}
        facts = facts_of(Engine) if serves else facts_of(Framework)
        return [
            CompletionItem(f"{SOFTWARE}{key}=", help=fact.description)
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
        CompletionItem(f"{path}=", help=field.description)
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
    from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, LOAD_FIELDS
    from perfmodel.kernels.serving import variables as serving_variables
    from perfmodel.kernels.variables import COSTS, VARIABLES

    known = {**serving_variables.VARIABLES, **serving_variables.COSTS, **VARIABLES, **COSTS}
    names = {name: variable.long_name for name, variable in known.items()}
    fields = (*FIELDS, *DEPLOYMENT_FIELDS, *LOAD_FIELDS)
    return _completed(incomplete, names | {spec.name: spec.description for spec in fields})
