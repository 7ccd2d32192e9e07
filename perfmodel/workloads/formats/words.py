"""Words of other tools' workload files: the tables of ``words.toml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.files import read_toml

FILE = Path(__file__).with_name("words.toml")


@cache
def words_of(module: str) -> dict[str, Any]:
    """Return the words of a module, lists as tuples.

    Examples
    --------
    >>> words_of("aicb_tables")["parts"]
    ('attention', 'mlp', 'moe')
    """
    found: dict[str, Any] = _fixed(_document()[module])
    return found


@cache
def _document() -> dict[str, Any]:
    return read_toml(FILE)


def _fixed(value: Any) -> Any:
    """Return a value of the file with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: _fixed(item) for key, item in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
