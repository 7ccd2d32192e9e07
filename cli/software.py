"""``perfmodel software``: the training frameworks that ship, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from perfmodel.cli.group import Command, CommandGroup
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import load_software
from perfmodel.cli.shared.printing import heading, print_json, table


@click.group("software", cls=CommandGroup, short_help="List and show training software.")
def software_group() -> None:
    """List the presets of --framework and show what each decides, with sources.

    A preset declares what the software overlaps, fuses, keeps and sends, as its documentation or
    source code says. Any value can be changed: --set software.gradient_bytes=2.

    \b
    Examples:
      perfmodel software list
      perfmodel software show megatron-deepep
    """


@software_group.command("list", cls=Command, short_help="Name the presets.")
@options.json_option
@options.verbosity_options
def list_command(as_json: bool) -> None:
    """Name the presets of --framework, and what each is.

    \b
    Examples:
      perfmodel software list
    """
    from perfmodel.base.variables import SCHEMA_VERSION
    from perfmodel.software.framework import TITLES

    if as_json:
        software = [{"name": name, "title": title} for name, title in TITLES.items()]
        print_json({"schema_version": SCHEMA_VERSION, "software": software})
        return
    click.echo(
        table(["preset", "what it is"], [list(item) for item in TITLES.items()], left=(0, 1))
    )


@software_group.command("show", cls=Command, short_help="Show one preset.")
@click.argument("name", metavar="NAME", shell_complete=options.complete_frameworks)
@options.set_option
@options.json_option
@options.verbosity_options
def show_command(name: str, settings: Mapping[str, Any], as_json: bool) -> None:
    """Show every value of a preset by the path that --set takes.

    \b
    Examples:
      perfmodel software show megatron
      perfmodel software show megatron --set software.optimizer_bytes=8 --json

    Values below 'of published runs' say what a measured run means that does not state it
    ('perfmodel compare training'); a projection is told by options such as --zero.
    """
    from perfmodel.base.variables import SCHEMA_VERSION
    from perfmodel.software.facts import facts_of
    from perfmodel.software.framework import OF_MEASURED_RUNS, SOURCES, TITLES, Framework

    software = load_software(name, settings)
    preset = software.name.partition("[")[0]
    facts = facts_of(Framework)
    if as_json:
        values = {
            key: {
                "value": getattr(software, key),
                "units": fact.unit or "1",
                "meaning": fact.meaning,
                "choices": fact.choices,
                "settable": key not in OF_MEASURED_RUNS,
                "source": SOURCES[preset][key],
            }
            for key, fact in facts.items()
        }
        document = {"schema_version": SCHEMA_VERSION, "name": software.name}
        print_json(document | {"title": TITLES[preset], "values": values})
        return
    click.echo(heading(f"{software.name}: {TITLES[preset]}"))
    for title, of_runs in (("", False), ("of published runs", True)):
        rows = [
            [
                key if of_runs else f"software.{key}",
                _value(getattr(software, key)),
                fact.unit,
                fact.meaning,
                SOURCES[preset][key],
            ]
            for key, fact in facts.items()
            if (key in OF_MEASURED_RUNS) == of_runs
        ]
        click.echo()
        headers = [title or "path", "value", "unit", "meaning", "source"]
        click.echo(table(headers, rows, left=(0, 2, 3, 4)))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
