"""Reading what ``perfmodel compare … -o rows.csv`` wrote."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import read_text, shortened, user_path
from perfmodel.measured.compare import Comparison
from perfmodel.measured.rows import ComparedRow, Outcome

VALUES = ("measured", "projected")
NEEDED = ("line", *VALUES, "skip_reason")
LARGEST = 2**28  # B
USUAL = ("hardware", "model", "kind", "dtype", "precision")
"""What rows are grouped by where nobody says, the first that differs."""


def read_compared(path: str | Path) -> Comparison:
    """Return a written comparison, grouped by the first of `USUAL` that tells rows apart.

    Raises
    ------
    DataError
        The file is missing, no such table, or has a broken row (named by its line).
    """
    source = user_path(path)
    if not source.is_file():
        raise DataError(f"'{source}' does not exist; 'perfmodel compare … -o FILE.csv' writes one")
    try:
        text = read_text(source, "what 'perfmodel compare -o' writes", LARGEST)
        header, *lines = list(csv.reader(io.StringIO(text))) or [[]]
    except (FormatError, csv.Error) as error:
        raise DataError(f"'{source}' is no table of compared runs: {error}") from None
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise DataError(
            f"'{source}' is no table of compared runs: no column {', '.join(missing)}; "
            "'perfmodel compare … -o FILE.csv' writes one"
        )
    rows = []
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise DataError(f"{source}:{number}: {len(line)} cells; the header has {len(header)}")
        cells = dict(zip(header, line, strict=True))
        measured, projected = (_number(cells, name, f"{source}:{number}") for name in VALUES)
        outcome = Outcome(measured, projected, skip_reason=cells["skip_reason"])
        rows.append(ComparedRow(cells, number, outcome))
    said = rows[0].cells if rows else {}
    by = next((it for it in USUAL if len({row.cells.get(it) for row in rows}) > 1), None)
    return Comparison(
        said.get("kind", ""),
        said.get("quantity") or "time",
        str(source),
        None,
        (by,) if by else (),
        tuple(header),
        tuple(rows),
        said.get("quantity_unit", "s"),
    )


def _number(cells: Mapping[str, str], name: str, where: str) -> float | None:
    """Return a positive number; None where the cell is empty."""
    text = cells[name]
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise DataError(f"{where}: {name} '{shortened(text)}' is not a positive number")
    return value
