"""Names of profiles as users write them."""

from __future__ import annotations

import os
import re


def normalise(name: str) -> str:
    """Return a name in lower case with ``-`` for every run of spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_\-]+", "-", name.strip().lower()).strip("-")


def is_path(name: str | os.PathLike[str]) -> bool:
    """Return whether a profile is named by its file: it ends in ``.toml`` or has a separator."""
    if not isinstance(name, str):
        return True
    return name.endswith(".toml") or "/" in name or os.sep in name
