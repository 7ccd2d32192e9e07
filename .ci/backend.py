"""The build backend (PEP 517): setuptools, whose source distributions here depend on files alone.

With ``SOURCE_DATE_EPOCH`` set, setuptools makes the same wheel twice, but not the same source
distribution: its archive keeps when and by whom each file was written, and when it was packed.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Build the source distribution; return its name."""
    name = build_meta.build_sdist(sdist_directory, config_settings)
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        settle(Path(sdist_directory) / name, int(epoch))
    return name


def settle(path: Path, epoch: int) -> None:
    """Write a ``.tar.gz`` again: sorted by name, of one time, of nobody, with plain modes."""
    packed = io.BytesIO()
    with tarfile.open(path) as before, tarfile.open(fileobj=packed, mode="w") as after:
        for member in sorted(before.getmembers(), key=lambda it: it.name):
            runs = member.isdir() or member.mode & 0o100
            member.mode = 0o755 if runs else 0o644
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))
