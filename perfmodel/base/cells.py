"""Cells of CSV files that spreadsheets would take for formulas, as texts that they do not run.

A text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return gets an apostrophe
in front, the mark of a text; what is a number stays one. Texts that begin with apostrophes before
such a sign get one more, so that reading takes away what writing added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_RUN = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")


def written(cells: Iterable[Any]) -> list[Any]:
    """Return cells as they are written."""
    return [f"'{cell}" if _runs(cell) else cell for cell in cells]


def read(cells: Iterable[str]) -> list[str]:
    """Return cells as they were before `written`."""
    return [cell[1:] if cell[:1] == "'" and _ESCAPED.match(cell) else cell for cell in cells]


def _runs(cell: Any) -> bool:
    if not isinstance(cell, str) or not _RUN.match(cell):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False
