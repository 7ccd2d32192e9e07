"""Files with the loads of real experts."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from perfmodel.base.errors import DataError
from perfmodel.base.files import not_read


def read_counts(path: str | os.PathLike[str]) -> tuple[tuple[float, ...], ...]:
    """Read counts per expert, for one or more layers.

    Parameters
    ----------
    path : str or path
        JSON: a list of counts, a list of such lists, or an object of such lists by
        layer. CSV: columns ``expert`` (0, 1, …), ``count``, and optionally ``layer``.

    Raises
    ------
    DataError
        The file cannot be read or holds something else.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        layers = _csv_layers(text) if file.suffix.lower() == ".csv" else _json_layers(text)
    except OSError as error:
        raise DataError(not_read(path, error)) from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise DataError(
            f"{path}: not counts per expert; wanted JSON lists of numbers, or CSV with columns "
            "expert and count"
        ) from None
    if not layers or not all(layers):
        raise DataError(f"{path}: no counts")
    return layers


def _json_layers(text: str) -> tuple[tuple[float, ...], ...]:
    data: Any = json.loads(text)
    rows = list(data.values()) if isinstance(data, dict) else data
    if rows and not isinstance(rows[0], list):
        rows = [rows]
    return tuple(tuple(float(count) for count in row) for row in rows)


def _csv_layers(text: str) -> tuple[tuple[float, ...], ...]:
    layers: dict[str, dict[int, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        layers.setdefault(row.get("layer") or "", {})[int(row["expert"])] = float(row["count"])
    for layer in layers.values():
        if sorted(layer) != list(range(len(layer))):
            raise ValueError("experts are not 0, 1, 2, …")
    return tuple(tuple(layer[e] for e in range(len(layer))) for layer in layers.values())
