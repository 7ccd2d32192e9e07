"""What a result says of the programs that made it, and of how far its constants are trusted."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfmodel.base.version import __version__

LEVELS = ("calibrated", "transferred", "prior")
"""Ways to come by a constant, the most trusted first. Results store the position."""


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of perfmodel, Python and some installed packages."""
    found = {"perfmodel": __version__, "python": platform.python_version()}
    return found | {name: _installed(name) for name in packages}


@functools.cache
def source_digest() -> str:
    """Return a digest of perfmodel's own files but for the command line's.

    It differs where somebody edited them, as in a checkout, though the version is the same.
    """
    package, suffixes = Path(__file__).resolve().parents[1], (".py", ".toml", ".json")
    digest = hashlib.sha256()
    for top in sorted(package.iterdir()):  # some of which a checkout links to
        inner = sorted(top.resolve().rglob("*")) if top.is_dir() and top.name != "cli" else [top]
        for source in inner:
            if source.suffix in suffixes and source.is_file():
                digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def _installed(package: str) -> str:
    """Return a package's version: from the installation, no package is imported to ask it."""
    if package in sys.modules:
        return str(sys.modules[package].__version__)
    spec = find_spec(package)
    if spec is not None and spec.origin:
        # Beside its folder, as `importlib.metadata` finds it after importing a mail reader.
        beside = list(Path(spec.origin).parent.parent.glob(f"{package}-*.dist-info"))
        if len(beside) == 1:
            return beside[0].stem.partition("-")[2]
    from importlib import metadata

    return metadata.version(package)


def record_of(provenance: Mapping[str, Any], kind: str, name: str | None = None) -> dict[str, Any]:
    """Return what is kept of a model or a framework.

    Parameters
    ----------
    provenance : mapping
        Of a sweep.
    kind : {"model", "framework"}
    name : str, optional
        Its label in the column of that name, which tables of several have.

    Raises
    ------
    KeyError
        There is no record of it.
    """
    found = dict(provenance[kind])
    if isinstance(found.get("name"), str):
        return found
    labels = {str(key).replace(" ", "_"): dict(record) for key, record in found.items()}
    return labels[str(name)]
