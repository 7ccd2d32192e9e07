"""Copies of the source tree: followed by the how-to pages, or without some of its folders.

A block of a page whose info string is ``python title="perfmodel/base/pipelines.py" after="LINE"``
is put behind the first line that equals LINE, both stripped; ``before="LINE"`` ahead of it;
without either it is appended to the file, or makes it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from tests.data import DOCS, ROOT

LINKED = ("kernels", "cli", "hwprofiles")
"""Folders at top level that links in ``perfmodel`` stand for."""
_BLOCK = re.compile(
    r'^```\w+ title="(?P<path>[^"]+)"(?: (?P<where>after|before)="(?P<line>[^`\n]+)")?\n'
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
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def copy_sources(tree: Path, *left_out: str) -> Path:
    """Copy the sources to a folder, links and all but the folders of some names; return it."""
    ignored = shutil.ignore_patterns("__pycache__", *left_out)
    for name in ("perfmodel", *LINKED):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    assert all((tree / "perfmodel" / name).is_symlink() for name in LINKED)
    return tree


def follow(page: str, tree: Path) -> list[str]:
    """Do to a copy of the sources what a page says; return the source files that it touches.

    Raises
    ------
    AssertionError
        The page names a line that its file does not have.
    """
    blocks = blocks_of(DOCS / "how-to" / page)
    for block in blocks:
        path = tree / block.path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        at = len(lines)
        if block.where:
            stripped = [line.strip() for line in lines]
            assert block.line.strip() in stripped, f"{block.path} has no line '{block.line}'"
            at = stripped.index(block.line.strip()) + (block.where == "after")
        lines[at:at] = block.text.splitlines()
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return sorted({block.path for block in blocks})


def run_python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on a copy and the libraries, uncompiled.

    `-S` leaves out what is installed for editing, which would stand in for folders left out.
    """
    libraries = {sysconfig.get_path(one) for one in ("purelib", "platlib")}
    paths = os.pathsep.join([str(tree), *libraries])
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths, "PERFMODEL_JIT": "never"},
        capture_output=True,
        text=True,
        check=False,
    )


def run_perfmodel(tree: Path, *arguments: str) -> str:
    """Run the command of a copy, which must end well, and return what it prints."""
    done = run_python(tree, "-m", "perfmodel", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
