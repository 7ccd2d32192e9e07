"""``perfmodel workload show``: what a workload file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from perfmodel.base.units import format_si, format_time
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.launch_file import typed_options
from perfmodel.cli.shared.printing import activity, heading, print_json, table
from perfmodel.cli.workloads.workload.convert import input_options

SCHEMA_VERSION = "1"


@click.command("show", cls=Command, short_help="Describe a workload file.")
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@input_options
@options.json_option
@options.verbosity_options
def show_command(workload: str, as_json: bool, **given: Any) -> None:
    """Say what a workload holds: nodes or rows, operations, bytes by collective.

    \b
    Examples:
      perfmodel workload show traces/llama
      perfmodel workload show workload.txt --json
    """
    from perfmodel.workloads.convert.opening import check_input_options
    from perfmodel.workloads.convert.recognise import MEANINGS, workload_kind
    from perfmodel.workloads.convert.summary import workload_summary

    kind = given["kind"] or workload_kind(workload)
    check_input_options(workload, kind, typed_options())
    with activity(f"reading {workload}") as tell:
        found = workload_summary(workload, **{**given, "kind": kind}, progress=tell)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": workload,
        "format": kind,
        **found,
    }
    if as_json:
        print_json(document)
        return
    click.echo(heading(f"{workload}: {MEANINGS.get(kind, kind)}"))
    for key, value in document.items():
        if key in (
            "schema_version",
            "workload",
            "format",
            "collectives",
            "first_rank",
            "times",
            "remarks",
        ):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {_cell(name, item)}" for name, item in value.items())
        click.echo(f"{key.replace('_', ' '):<22}{_cell(key, value)}")
    _print_collectives(document.get("collectives") or {})
    for line in document.get("remarks", ()):
        click.echo(f"note: {line}")
    if document.get("times"):
        click.echo()
        rows = [[name, format_time(time)] for name, time in document["times"].items()]
        click.echo(table(["section", "time"], rows))


def _print_collectives(collectives: Mapping[str, Mapping[str, int]]) -> None:
    """Print a table of collectives."""
    if not collectives:
        return
    click.echo()
    rows = [
        [name, f"{row['count']:,}", format_si(row["bytes"], "B", even=True)]
        for name, row in sorted(collectives.items())
    ]
    click.echo(table(["collective", "count", "bytes"], rows))


def _cell(name: str, value: Any) -> str:
    """Return a figure as text, in the unit that its name says."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if name == "bytes" or name.endswith("_bytes") or name == "tensor_size":
        return format_si(value, "B", even=True)
    if isinstance(value, float):
        return format_time(value)
    if name == "num_ops":
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
