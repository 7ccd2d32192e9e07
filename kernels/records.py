"""Records of kernels: which fields a row of a table has, in ``records.csv`` beside the kernels."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

KINDS: Mapping[str, Any] = {"float": np.float64, "int": np.int64, "flag": np.bool_}


def record_types(module: str) -> Mapping[str, np.dtype]:
    """Return the record types of ``records.csv`` in the folder of a module (``__file__``).

    A row is a field ``of`` a record: its ``name``, its ``kind`` (one of `KINDS`, or a record that
    stands above), its ``shape`` if it has one (sides with spaces between), its SI ``unit`` and what
    it is in ``words``. Without a name it stands for all fields of the record that is its kind.
    """
    found: dict[str, list[Any]] = {}
    text = Path(module).with_name("records.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        fields, kind = found.setdefault(row["of"], []), row["kind"]
        if not row["name"]:
            fields += found[kind]
            continue
        one = KINDS[kind] if kind in KINDS else np.dtype(found[kind], align=True)
        shape = tuple(map(int, row["shape"].split()))
        fields.append((row["name"], one, shape) if shape else (row["name"], one))
    return {of: np.dtype(fields, align=True) for of, fields in found.items()}
