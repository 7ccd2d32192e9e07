"""What a result says of the programs that made it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from perfmodel._version import __version__


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of perfmodel, Python and some installed packages."""
    found = {"perfmodel": __version__, "python": platform.python_version()}
    # From the installation, so that no package is imported only to ask it.
    return found | {name: metadata.version(name) for name in packages}


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
