"""``tiling.json`` of the wafer workload generator: sizes of tiles by kind and by layer.

An object ``layers`` (pattern of operations, ``*`` for any text -> sides of a tile) and one
``defaults`` (kind of operation -> sides). A side of ``null`` is the whole dimension. The
generator looks up the four attention kinds only; it finds tiles of products by itself.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``configs/tiling.json``,
``src/generate_traces.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import json_object, key_line, read_text, shortened

LARGEST = 2**20  # B
BLOCKS = ("layers", "defaults")
SIDES: Mapping[str, int] = {
    "Linear": 3,
    "GroupedLinear": 4,
    "MLAQ": 4,
    "MLAKV": 3,
    "MHAQ": 4,
    "MHAKV": 4,
}
"""Kind of operation -> sides of its tile."""

Tile = tuple[int | None, ...]
"""Elements along each dimension; None for all of them."""


@dataclass(frozen=True)
class Tiling:
    """Sizes of tiles.

    Attributes
    ----------
    layers : mapping of str to Tile
        By pattern of an operation's name, the first that fits counts.
    defaults : mapping of str to Tile
        By kind of operation.
    """

    layers: Mapping[str, Tile]
    defaults: Mapping[str, Tile]

    def tile(self, kind: str, operation: str = "") -> Tile:
        """Return the tile of an operation.

        Raises
        ------
        FormatError
            There is none for its kind.
        """
        for pattern, sides in self.layers.items():
            if operation and fnmatchcase(operation, pattern):
                return sides
        if kind not in self.defaults:
            raise FormatError(f"tiling: no default for '{kind}'{did_you_mean(kind, self.defaults)}")
        return self.defaults[kind]


def read_tiling(path: str | os.PathLike[str]) -> Tiling:
    """Read sizes of tiles.

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; names file, line and key.
    """
    return parse_tiling(read_text(path, "a tiling.json", LARGEST), str(path))


def parse_tiling(text: str, file: str = "tiling.json") -> Tiling:
    """Read sizes of tiles from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_tiling`.
    """
    document = json_object(file, text, "'layers' and 'defaults'")
    for key in document:
        if key not in BLOCKS:
            raise FormatError(
                f"{file}:{key_line(text, key)}: unknown block '{shortened(key)}'"
                f"{did_you_mean(key, BLOCKS)}"
            )
    found: dict[str, dict[str, Tile]] = {}
    for block in BLOCKS:
        entries = document.get(block, {})
        if not isinstance(entries, dict):
            raise FormatError(f"{file}:{key_line(text, block)}: '{block}' should be an object")
        found[block] = {}
        for name, sides in entries.items():
            place = f"{file}:{key_line(text, name)}: key '{shortened(name)}'"
            if block == "defaults" and name not in SIDES:
                raise FormatError(f"{place}: unknown kind{did_you_mean(name, SIDES)}")
            found[block][name] = _tile(sides, SIDES[name] if block == "defaults" else 0, place)
    return Tiling(found["layers"], found["defaults"])


def _tile(sides: Any, count: int, place: str) -> Tile:
    right = isinstance(sides, list) and all(
        side is None or (type(side) is int and 0 < side < 2**31) for side in sides
    )
    if not right or not sides or (count and len(sides) != count):
        wanted = f"{count} whole numbers" if count else "whole numbers"
        raise FormatError(f"{place}: should be a list of {wanted} above 0, or null for all")
    return tuple(sides)
