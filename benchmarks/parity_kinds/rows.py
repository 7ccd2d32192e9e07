"""What comparisons with reference tables share: rows, their errors, and tables of groups."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked

Row = dict[str, str]


def read_rows(path: Path, columns: Sequence[str] = ()) -> list[tuple[str, Row]]:
    """Return each row of a CSV file, perhaps packed, with the words for where it stands.

    Raises
    ------
    FormatError
        The file cannot be read or has no rows; it lacks one of the columns, or a row does.
    """
    try:
        text = read_unpacked(path).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise FormatError(f"{path}:1: column '{missing[0]}' is missing")
        rows = [(f"{path}:{reader.line_num}", cells) for cells in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"'{path}' is not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise FormatError(f"'{path}' has no rows")
    for where, cells in rows:
        if any(cells[name] is None for name in columns):
            raise FormatError(f"{where}: the row is shorter than the header")
    return rows


def worst_and_median(errors: Sequence[float]) -> dict[str, float | None]:
    """Return the worst and the median relative error; None where nothing was compared."""
    return {
        "worst_relative_error": max(errors, default=None),
        "median_relative_error": statistics.median(errors) if errors else None,
    }


def error_statistics(errors: Iterable[float]) -> dict[str, Any]:
    """Return how many errors there are and how many are 0, the worst and the median."""
    values = list(errors)
    return {"count": len(values), "exact": values.count(0.0), **worst_and_median(values)}


def grouped(
    outcomes: Iterable[Any], columns: Iterable[str], summary: Callable[[list[Any]], dict[str, Any]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return column to value to the summary of the outcomes whose `cells` have that value."""
    outcomes = list(outcomes)
    groups = {}
    for column in columns:
        members: dict[str, list[Any]] = {}
        for outcome in outcomes:
            members.setdefault(outcome.cells[column], []).append(outcome)
        groups[column] = {value: summary(rows) for value, rows in sorted(members.items())}
    return groups


def group_table(title: str, groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table with one line per group, and an empty one."""
    width = max(len(name) for name in [*groups, title])
    return [
        f"{title:{width}}  rows  compared  exact     worst    median",
        *(f"{name:{width}}  {_figures(group)}" for name, group in groups.items()),
        "",
    ]


def _figures(group: Mapping[str, Any]) -> str:
    """Return one line's figures."""
    errors = "         -         -"
    if group["worst_relative_error"] is not None:
        errors = f"{group['worst_relative_error']:9.2%} {group['median_relative_error']:9.2%}"
    return f"{group['rows']:4d}  {group['count']:8d}  {group['exact']:5d} {errors}"
