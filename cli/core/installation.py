"""What is about the installation: ``perfmodel completion``, ``doctor`` and ``samples``."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.files import atomic_path, check_writable
from perfmodel.cli.group import EXIT_FAILURE
from perfmodel.cli.shared import options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, print_json, remark, styled, wrapped

if TYPE_CHECKING:
    from perfmodel.analysis.doctor import Finding

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", **page("core", "completion", "Print a shell completion script."))
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, models, profiles and variables."""
    kind = get_completion_class(shell)
    if kind is None:
        raise PerfModelError(f"no completion for '{shell}'; there is one for {', '.join(SHELLS)}")
    root = ctx.find_root().command
    # The text is a template of the class; `source()` would also run the shell to check
    # its version.
    completion = kind(root, {}, "perfmodel", "_PERFMODEL_COMPLETE")
    click.echo(completion.source_template % completion.source_vars())


COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
WIDTH = 15  # of the names


@click.command("doctor", **page("core", "doctor", "Check this installation."))
@options.json_option
@options.verbosity_options
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Say which versions, extras, caches, cores and memory there are, and check that it works."""
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


@click.command("samples", **page("core", "samples", "Copy the documentation's sample files."))
@click.argument("folder", metavar="[FOLDER]", required=False)
@options.verbosity_options
def samples_command(folder: str | None) -> None:
    """Name the sample files that the pages' commands read, or copy them into a FOLDER."""
    found = dict(_files(resources.files("perfmodel.samples")))
    if folder is None:
        click.echo("\n".join(found))
        return
    target = Path(folder)
    if target.is_file():
        raise DataError(f"'{folder}' is a file; name a folder")
    for name in found:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        check_writable(target / name)
    for name, source in found.items():
        with atomic_path(target / name) as temporary:
            temporary.write_bytes(source.read_bytes())
    remark(f"copied {len(found)} files to {folder}")


def _files(folder: Traversable, before: str = "") -> list[tuple[str, Traversable]]:
    """Return all files of a folder by name, those of folders in it too."""
    found = []
    for item in sorted(folder.iterdir(), key=lambda it: it.name):
        if item.is_dir():
            found += _files(item, f"{before}{item.name}/")
        else:
            found.append((before + item.name, item))
    return found
