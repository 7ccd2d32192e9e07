"""``perfmodel doctor``: whether this installation can do its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perfmodel.cli.group import EXIT_FAILURE, Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.layout import wrapped
from perfmodel.cli.shared.printing import heading, print_json, styled

if TYPE_CHECKING:
    from perfmodel.analysis.doctor import Finding

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
WIDTH = 15  # of the names


@click.command("doctor", cls=Command, short_help="Check this installation.")
@options.json_option
@options.verbosity_options
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Say which versions, extras, caches, cores and memory there are, and check that it works.

    The check takes a few seconds: a projection against stored numbers, a compiled kernel against
    itself uncompiled, a netCDF file written and read in a temporary folder. Nothing leaves the
    machine. What is wrong says what to do; exit code 1 where anything failed.

    \b
    Examples:
      perfmodel doctor
      perfmodel doctor --json
    """
    from perfmodel.analysis.doctor import FAIL, examine
    from perfmodel.kernels.variables import SCHEMA_VERSION

    found, group = [], ""
    for finding in examine():
        found.append(finding)
        if not as_json:
            if finding.group != group:
                click.echo(("\n" if group else "") + heading(finding.group.capitalize()))
                group = finding.group
            _show(finding)
    failed = sum(finding.state == FAIL for finding in found)
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "healthy": not failed}
        print_json(document | {"findings": [finding._asdict() for finding in found]})
    else:
        click.echo()
        click.echo(f"{failed} of {len(found)} failed" if failed else "all is well")
    if failed:
        ctx.exit(EXIT_FAILURE)


def _show(finding: Finding) -> None:
    """Print one finding, and below it what to do."""
    state = styled(f"{finding.state:4}", fg=COLOURS[finding.state])
    click.echo(wrapped(f"  {state}  {finding.name:{WIDTH}}  {finding.text}", WIDTH + 10))
    if finding.advice:
        click.echo(wrapped(f"{'':{WIDTH + 10}}{finding.advice}", WIDTH + 10))
