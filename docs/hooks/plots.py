"""Plots of committed tables, drawn when the site is built: they show what is computed now.

A page asks for one where it should stand, in words that GitHub does not show::

    <!-- plot: perfmodel compare KIND TABLE …: what is seen -->
"""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from click.testing import CliRunner
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from perfmodel.cli.main import cli

PLOT = re.compile(r"^<!-- plot: perfmodel (?P<command>.*?): (?P<alt>.*?) -->$", re.M)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    root = Path(config.config_file_path).parent
    place = PurePosixPath(page.file.src_uri)

    def picture(found: re.Match[str]) -> str:
        name = f"{place.stem}-{markdown.count('<!-- plot:', 0, found.start()) + 1}.svg"
        drawing = drawn(root, found["command"])
        files.append(File.generated(config, str(place.with_name(name)), content=drawing))
        return (
            f"![{found['alt']}]({name})\n\n*{found['alt']}, drawn when this site was built by* "
            f"`perfmodel {found['command']} --plot FILE`"
        )

    return PLOT.sub(picture, markdown)


def drawn(root: Path, command: str) -> str:
    """Return what a command draws of tables of the repository."""
    words = [str(root / word) if word.endswith(".csv") else word for word in shlex.split(command)]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "plot.svg")
        result = CliRunner().invoke(cli, [*words, "--plot", str(target)])
        if result.exit_code:
            raise PluginError(f"perfmodel {command}: {result.stderr}")
        return target.read_text(encoding="utf-8")
