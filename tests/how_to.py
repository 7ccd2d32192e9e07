"""Follow a how-to page: its marked code blocks, put into a copy of the source tree.

A block whose info string is ``python title="perfmodel/base/pipelines.py" after="LINE"`` is put
behind the first line that equals LINE, both stripped; ``before="LINE"`` ahead of it; without
either it is appended to the file, or makes it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("perfmodel", "kernels", "cli", "hwprofiles")
_BLOCK = re.compile(
    r'^```\w+ title="(?P<path>[^"]+)"(?: (?P<where>after|before)="(?P<line>[^`]+)")?\n'
    r"(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """Lines of a page that go into a file."""

    path: str
    where: str
    line: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Return the marked blocks of a page."""
    return [
        Block(*(part or "" for part in found.groups()))
        for found in _BLOCK.finditer(page.read_text())
    ]


def follow(page: str, tree: Path) -> list[str]:
    """Copy the sources to `tree`, do what a page says, and return the source files it touches.

    Raises
    ------
    AssertionError
        The page names a line that its file does not have.
    """
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    blocks = blocks_of(ROOT / "docs" / "how-to" / page)
    for block in blocks:
        path = tree / block.path
        lines = path.read_text().splitlines() if path.exists() else []
        at = len(lines)
        if block.where:
            stripped = [line.strip() for line in lines]
            assert block.line.strip() in stripped, f"{block.path} has no line '{block.line}'"
            at = stripped.index(block.line.strip()) + (block.where == "after")
        lines[at:at] = block.text.splitlines()
        path.write_text("\n".join(lines) + "\n")
    return sorted({block.path for block in blocks})


def run_perfmodel(tree: Path, *arguments: str) -> str:
    """Run the command of such a tree, uncompiled, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PERFMODEL_JIT": "never"}
    environment["PYTHONSAFEPATH"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
