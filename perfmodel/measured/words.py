"""Words of measured tables: expressions over free text, as data beside the code that reads it.

A file ``words/<subject>.toml`` has tables of patterns and what they mean. Texts are searched in
small letters, and of a table the first pattern that is found counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel.base.files import read_toml

FOLDER = Path(__file__).parent / "words"


@lru_cache(maxsize=8)
def words(subject: str) -> Mapping[str, Any]:
    """Return the tables of a subject, such as ``training``."""
    return read_toml(FOLDER / f"{subject}.toml")


def meaning(table: Mapping[str, Any], text: str, default: Any = "") -> Any:
    """Return what the first pattern of a table means that is found in a text.

    Examples
    --------
    >>> meaning({"mx-?fp8": "mxfp8", "fp8": "fp8"}, "FP8 (tensorwise)".lower())
    'fp8'
    """
    return next((value for pattern, value in table.items() if re.search(pattern, text)), default)
