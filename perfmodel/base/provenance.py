"""What a result says of the programs that made it."""

from __future__ import annotations

import platform
from importlib import metadata

from perfmodel._version import __version__


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of perfmodel, Python and some installed packages."""
    found = {"perfmodel": __version__, "python": platform.python_version()}
    # From the installation, so that no package is imported only to ask it.
    return found | {name: metadata.version(name) for name in packages}
