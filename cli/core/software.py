"""``perfmodel software``: training frameworks and serving engines, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from perfmodel.cli.group import Command, CommandGroup
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.inputs import load_one_engine, load_software
from perfmodel.cli.shared.printing import heading, print_json, table

if TYPE_CHECKING:
    from perfmodel.base.fields import Field
    from perfmodel.software.engine import Engine
    from perfmodel.software.facts import When
    from perfmodel.software.framework import Framework


@click.group("software", cls=CommandGroup, short_help="List and show frameworks and engines.")
def software_group() -> None:
    """List the presets of --framework and --engine and show what each decides, with sources.

    A preset declares what the software overlaps, fuses, keeps and sends, how it schedules and
    what its host takes, as its documentation, source code or measured runs say. Any value can be
    changed: --set software.gradient_bytes=2.

    \b
    Examples:
      perfmodel software list
      perfmodel software show megatron-deepep
      perfmodel software show vllm
    """


@software_group.command("list", cls=Command, short_help="Name the presets.")
@options.json_option
@options.verbosity_options
def list_command(as_json: bool) -> None:
    """Name the presets of --framework and the engines of --engine, and what each is.

    \b
    Examples:
      perfmodel software list
    """
    from perfmodel.kernels.variables import SCHEMA_VERSION
    from perfmodel.software import engine, framework

    if as_json:
        software = [{"name": name, "title": text} for name, text in framework.TITLES.items()]
        engines = [
            {"name": name, "engine": engine.ENGINES[name].engine}
            | {"since": engine.ENGINES[name].since, "title": text}
            for name, text in engine.TITLES.items()
        ]
        found = {"schema_version": SCHEMA_VERSION, "software": software, "engines": engines}
        print_json(found)
        return
    presets = [list(item) for item in framework.TITLES.items()]
    click.echo(table(["preset", "what it is"], presets, left=(0, 1)))
    click.echo()
    rows = [[name, engine.ENGINES[name].since, text] for name, text in engine.TITLES.items()]
    click.echo(table(["engine", "since", "what it is"], rows, left=(0, 1, 2)))


@software_group.command("show", cls=Command, short_help="Show one preset.")
@click.argument("name", metavar="NAME", shell_complete=completions.complete_software)
@options.set_option
@options.json_option
@options.verbosity_options
def show_command(name: str, settings: Mapping[str, Any], as_json: bool) -> None:
    """Show every value of a preset or an engine by the path that --set takes.

    \b
    Examples:
      perfmodel software show megatron
      perfmodel software show megatron --set software.optimizer_bytes=8 --json
      perfmodel software show vllm-0.12

    An engine's or framework's name with a release (vllm-0.12, megatron-bridge@0.4) shows what
    holds for that release; what depends on the run stands below. Values below 'of
    published runs' say what a measured run means that does not state it ('perfmodel compare
    training'); a projection is told by options such as --zero.
    """
    from perfmodel.kernels.variables import SCHEMA_VERSION

    shown = _found(name, settings)
    if as_json:
        values = {
            key: {
                "value": getattr(shown.software, key),
                "units": fact.unit or "1",
                "meaning": fact.description,
                "choices": fact.choices,
                "settable": key not in shown.told,
                "source": shown.source.get(key, ""),
            }
            for key, fact in shown.facts.items()
        }
        document = {"schema_version": SCHEMA_VERSION, "name": shown.software.name}
        when = [
            {"conditions": it.conditions, "values": it.values, "source": it.source}
            for it in shown.when
        ]
        print_json(document | {"title": shown.title, "values": values, "when": when})
        return
    click.echo(heading(f"{shown.software.name}: {shown.title}"))
    for title, told in (("", False), (shown.told_title, True)):
        rows = [
            [
                key if told else f"software.{key}",
                _value(getattr(shown.software, key)),
                fact.unit,
                fact.description,
                shown.source.get(key, ""),
            ]
            for key, fact in shown.facts.items()
            if (key in shown.told) == told
        ]
        click.echo()
        headers = [title or "path", "value", "unit", "meaning", "source"]
        click.echo(table(headers, rows, left=(0, 2, 3, 4)))
    if shown.when:
        rows = [[_pairs(it.conditions), _pairs(it.values), it.source] for it in shown.when]
        click.echo()
        click.echo(table(["runs with", "do", "source"], rows, left=(0, 1, 2)))


class Shown(NamedTuple):
    """Software and what is known of it: `told` are facts that cannot be set, with their title."""

    software: Framework | Engine
    title: str
    facts: Mapping[str, Field]
    source: Mapping[str, str]
    told: tuple[str, ...]
    told_title: str
    when: tuple[When, ...] = ()


def _found(name: str, settings: Mapping[str, Any]) -> Shown:
    """Return a framework, or an engine, by name."""
    from perfmodel.base.errors import StrategyError, did_you_mean
    from perfmodel.base.fields import facts_of
    from perfmodel.software import engine, framework

    engines = {item.engine for item in engine.ENGINES.values()}
    if name.partition("-")[0] in engines:
        found = load_one_engine(name, settings)
        preset = found.name.partition("[")[0]
        facts, source = facts_of(engine.Engine), engine.SOURCES[preset]
        return Shown(found, engine.TITLES[preset], facts, source, engine.IDENTITY, "which it is")
    known = [*framework.framework_names(), *framework.FRAMEWORKS]
    if "@" not in name and name not in known:
        hint = did_you_mean(name, [*known, *engine.ENGINES])
        raise StrategyError(f"unknown framework or engine '{name}'{hint}")
    software = load_software(name, settings)
    preset = software.name.partition("[")[0]
    facts, source = facts_of(framework.Framework), framework.SOURCES[preset]
    told = (*framework.IDENTITY, *framework.OF_MEASURED_RUNS)
    title, when = framework.TITLES[preset], framework.WHEN[preset]
    return Shown(software, title, facts, source, told, "of published runs", when)


def _pairs(values: Mapping[str, Any]) -> str:
    """Write keys and values in a line."""

    def text(value: Any) -> str:
        return ", ".join(value) if isinstance(value, list) else _value(value)

    return "; ".join(f"{key} {text(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
