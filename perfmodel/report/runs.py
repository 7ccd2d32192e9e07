"""Compared runs and simulations as rows of a page."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.files import read_text
from perfmodel.base.table import Table
from perfmodel.report.kinds import COMPARISON, LAYERS, RANKS, Kind
from perfmodel.report.population import MOST_LABELS, Choices, Figures, Population, coded
from perfmodel.report.results import add_whole

COMPARED = ("line", "measured", "projected", "error", "skip_reason")
"""Columns by which a table that `perfmodel compare --output` wrote is known."""
CHOSEN = (
    *("hardware", "system", "model", "precision", "dtype", "framework", "engine", "family"),
    *("task", "n_gpus", "devices", "tp", "pp", "cp", "ep", "dp", "mbs", "gbs", "seq"),
    *("recompute", "phase", "collective", "algorithm", "group_size"),
)
"""Columns of measured tables that runs are told apart by."""
LARGEST = 2**28  # B
FEW = 0.5
"""Of the rows: a column with more different values tells nothing of groups."""


def is_comparison(path: Path) -> bool:
    """Tell whether a file is a table that `perfmodel compare --output` wrote."""
    if path.suffix.lower() != ".csv":
        return False
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(2**16)
    except (OSError, UnicodeDecodeError):
        return False
    return set(COMPARED) <= set(next(csv.reader([head]), []))


def comparison_of(path: Path, where: str | None = None) -> Population:
    """Return the scored rows of a comparison with measured runs.

    Raises
    ------
    DataError
        A row is cut off, a number is none, or the filter is malformed.
    FormatError
        The file cannot be read.
    """
    lines = list(csv.reader(read_text(path, "a table of compared runs", LARGEST).splitlines()))
    head, body = lines[0], lines[1:]
    for number, row in enumerate(body, 2):
        if len(row) != len(head):
            raise DataError(f"{path}:{number}: {len(row)} cells where the header has {len(head)}")
    columns = dict(zip(head, np.array(body, str).T if body else [[]] * len(head), strict=True))
    scored = np.array([text != "" for text in columns["projected"]], bool)
    reasons = Counter(
        reason or "not projected"
        for reason, good in zip(columns["skip_reason"], scored, strict=True)
        if not good
    )
    own = {name: np.asarray(it)[scored] for name, it in columns.items()}
    found = Population(COMPARISON, total=len(body), left_out=reasons)
    numbers = {name: _numbers(it) for name, it in own.items()}
    # A comparison of memory is of bytes; all others are of seconds.
    unit = "B" if "projected_memory_high" in own and "projected_step_time_low" not in own else "s"
    measured, projected, error = _scored(numbers, path)
    found.figures["measured"] = Figures(measured, unit, "measured")
    found.figures["projected"] = Figures(projected, unit, "projected")
    found.figures["error"] = Figures(error, "1", "projected over measured, less 1")
    found.figures["absolute_error"] = Figures(np.abs(error), "1", "error without its sign")
    for name, values in numbers.items():
        part = name.startswith("projected_")
        if part and values is not None and name.endswith(("_time", "_exposed", "_low", "_high")):
            found.figures[name] = Figures(values, "s", name.replace("_", " "))
        elif part and values is not None and name.startswith("projected_memory_"):
            found.figures[name] = Figures(values, "B", name.replace("_", " "))
        elif part and values is not None and name == "projected_pipeline_bubble":
            found.figures[name] = Figures(values, "s", name.replace("_", " "))
    for name in (it for it in CHOSEN if it in own):
        stated = numbers[name]
        values = own[name] if stated is None else stated
        found.choices[name] = _named(values, name, f"column {name} of the table")
    label = "id" if "id" in own else "line"
    found.choices[label] = _named(own[label], label, "which row of the table")
    return _filtered(found, where)


def _scored(
    numbers: Mapping[str, NDArray[np.float64] | None], path: Path
) -> list[NDArray[np.float64]]:
    found = []
    for name in ("measured", "projected", "error"):
        values = numbers[name]
        if values is None:
            raise DataError(f"{path}: column '{name}' holds something else than numbers")
        found.append(values)
    return found


def _named(values: NDArray[Any], name: str, text: str) -> Choices:
    if values.dtype.kind == "f" and np.array_equal(values, np.rint(values)):
        values = values.astype(np.int64)
    found = coded(values, short=name.replace("_", " "), text=text)
    found.labels = [label or "–" for label in found.labels]
    return found


def _numbers(texts: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return texts as numbers, empty ones as NaN; None where some are no numbers, or all empty."""
    try:
        values = np.array([float(text) if text else np.nan for text in texts.tolist()])
    except ValueError:
        return None
    return None if np.isnan(values).all() and values.size else values


def simulation_of(table: Table, where: str | None = None) -> Population:
    """Return the ranks, or the layers by pass, of a simulated workload.

    Raises
    ------
    DataError
        A malformed filter.
    """
    rows = {"rank", "layer", "row"} & set(table.sizes)
    dim = next(iter(sorted(rows)))
    kind: Kind = RANKS if dim == "rank" else LAYERS
    dims = tuple(it for it in ("phase", dim) if it in table.sizes)
    shape = tuple(table.sizes[it] for it in dims)
    at = dict(zip(dims, np.unravel_index(np.arange(np.prod(shape)), shape), strict=True))
    found = Population(kind, total=int(np.prod(shape)))
    for name, column in table.variables.items():
        if not column.dims or not set(column.dims) <= set(dims):
            continue
        values = column.labelled()[tuple(at[it] for it in column.dims)]
        text = str(column.attrs.get("long_name", ""))
        if name in table.coords or values.dtype.kind in "OU" or name == "representative":
            text_values = values.astype(str) if values.dtype.kind in "OU" else values
            if np.unique(text_values).size <= MOST_LABELS:
                found.choices[name] = coded(text_values, short=name.replace("_", " "), text=text)
        elif np.isfinite(values.astype(float)).any():
            found.figures[name] = Figures(values, str(column.attrs.get("units", "1")), text)
    for waterfall in kind.waterfalls:
        add_whole(found, waterfall)
    if not found.figures:
        raise DataError("this simulation has no figures by rank or layer")
    return _filtered(found, where)


def _filtered(found: Population, where: str | None) -> Population:
    if not where:
        return found

    def column(name: str) -> NDArray[Any]:
        if name in found.figures:
            return found.figures[name].values
        choice = found.choices[name]
        known = choice.labels if choice.numbers is None else choice.numbers
        return np.array(known)[choice.codes]

    names = [*found.figures, *found.choices]
    mask = evaluate_mask(where, column, names, found.count)
    return found.take(np.flatnonzero(mask))
