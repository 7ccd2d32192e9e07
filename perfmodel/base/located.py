"""Keys of a text file with their values and lines, each of them once."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened


class Entry(NamedTuple):
    """A value and its line, 0 where lines are not known."""

    value: Any
    line: int = 0


class Located(dict[str, Entry]):
    """What a file states, key by key.

    Parameters
    ----------
    path : str or path
        What errors call the file.

    Examples
    --------
    >>> keys = Located("run.yaml")
    >>> keys.put("model.layers", 32, 7)
    >>> keys["model.layers"].value, keys.where("model.layers")
    (32, 'run.yaml:7')
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = path

    def where(self, key: str) -> str:
        """Return the file, and the line on which a key stands."""
        line = self[key].line if key in self else 0
        return f"{self.path}:{line}" if line else str(self.path)

    def put(self, key: str, value: Any, line: int, advice: str = "; it should stand once") -> None:
        """Add a key.

        Raises
        ------
        FormatError
            It is given twice; names both lines.
        """
        if key in self:
            raise FormatError(
                f"{self.path}:{line}: key '{shortened(key)}' is given twice (first on line "
                f"{self[key].line}){advice}"
            )
        self[key] = Entry(value, line)
