"""``perfmodel samples``: the files that the documentation names, wherever it is installed."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path, check_writable
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.printing import remark


@click.command("samples", cls=Command, short_help="Copy the documentation's sample files.")
@click.argument("folder", metavar="[FOLDER]", required=False)
@options.verbosity_options
def samples_command(folder: str | None) -> None:
    """Name the sample files that the pages' commands read, or copy them into a FOLDER.

    Files of the same name are replaced. README.md among them says what each is.

    \b
    Examples:
      perfmodel samples
      perfmodel samples here && cd here && perfmodel compare gemm gemm.csv
    """
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
