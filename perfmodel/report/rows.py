"""Results as rows of a page: of sweeps, served models, meshes, compared runs and simulations."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analysis.recalled import impossible_reasons
from perfmodel.base import cells
from perfmodel.base.errors import DataError
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.fields import Field
from perfmodel.base.files import read_text
from perfmodel.base.table import Column, Table
from perfmodel.kernels.variables import TIME_COMPONENTS
from perfmodel.report.kinds import (
    COMPARISON,
    LAYERS,
    RANKS,
    SERVING,
    SHORT,
    TRAINING,
    WAFER,
    WAFERS,
    Kind,
    Waterfall,
)
from perfmodel.report.population import MOST_LABELS, Choices, Figures, Population, coded
from perfmodel.store import results, subject
from perfmodel.store.results import TRUST

KINDS: dict[str, Kind] = {
    subject.TRAINING.verb: TRAINING,
    subject.SERVING.verb: SERVING,
    WAFERS: WAFER,
}
OF_ALL = {
    "model": Field("model", "model", "choice", "", "model"),
    "framework": Field("framework", "framework", "choice", "megatron", "software"),
    "devices": Field("devices", "devices", "int", 0, "devices of the run"),
    "hardware": Field("hardware", "hardware", "choice", "", "hardware profile"),
    "engine": Field("engine", "engine", "choice", "", "serving engine"),
}
FIXED = {"fits", "tight", "status", "memory_capacity", TRUST}
FIXED |= {"kernel_class", "strategy", "deployment"}
FIXED |= {"load", "mapping_number"}
IMPLIED = {TRAINING.name: {"data_parallel"}, SERVING.name: {"devices"}}
"""Fields that follow from the others in a command."""


def population_of(table: Table, where: str | None = None) -> Population:
    """Return the rows of some results that have an answer and pass a filter.

    Parameters
    ----------
    table : Table
        Of `perfmodel.store.results.open_table`.
    where : str, optional
        As of `perfmodel.best`.

    Raises
    ------
    DataError
        A malformed filter, or a damaged file.
    """
    about = subject.subject_of(table)
    if about.verb not in KINDS:
        raise DataError(f"a report has no page for results of 'perfmodel {about.verb}'")
    kind = KINDS[about.verb]
    shape = results.shape_of(table)
    flat = results.select(table, where, fitting=False)
    at = dict(zip(about.dims, np.unravel_index(flat, shape), strict=True))

    def gathered(column: Column) -> NDArray[Any]:
        index = tuple(at[dim] for dim in column.dims)
        return column.values[index] if index else np.broadcast_to(column.values, flat.shape)

    found = Population(kind, total=int(np.prod(shape)), left_out=_left_out(table), flat=flat)
    for name, column in table.variables.items():
        known = set(column.dims) <= set(about.dims)
        if not known or name in FIXED or name in about.numbered:
            continue
        if name in table.coords or column.labels is not None:
            spec = about.chosen.get(name) or OF_ALL.get(name)
            found.choices[name] = _choices(column, gathered(column), spec, name)
        elif column.values.dtype.kind in "iuf":
            text = str(column.attrs.get("long_name", ""))
            units = str(column.attrs.get("units", "1"))
            found.figures[name] = Figures(gathered(column), units, text)
    for name in IMPLIED.get(kind.name, set()) & set(found.choices):
        found.choices[name].option = ""
    for name in about.of_all:
        value = table.attrs.get(name)
        if name not in found.choices and value is not None and np.ndim(value) == 0:
            numbers = np.full(flat.size, value)
            found.choices[name] = _choices(Column((), value), numbers, OF_ALL.get(name), name)
    fits = 2 * gathered(table["fits"]).astype(np.intp)
    if "tight" in table:
        fits -= gathered(table["tight"])
    about_fit = "memory is within the capacity; tight: by less than the measured error"
    found.choices["fits"] = Choices(["no", "tight", "yes"], fits, None, "fits", about_fit)
    _add_shares(found)
    _add_wholes(found)
    if "memory_capacity" in table and "memory_total" in found.figures:
        names, sizes = table["hardware"].values.tolist(), table["memory_capacity"].values.tolist()
        found.limits["memory_total"] = dict(zip(map(str, names), sizes, strict=True))
    return found


def _choices(column: Column, values: NDArray[Any], spec: Field | None, name: str) -> Choices:
    """Return the values of one column that somebody chose."""
    labels = column.labels
    if labels is None:
        texts = values.dtype.kind in "OU"
        found = coded(values.astype(str) if texts else values)
    elif column.is_flag:
        found = Choices(["no", "yes"], (values == labels.index("true")).astype(np.intp))
    else:
        found = Choices(list(labels), values.astype(np.intp))
    found.short = SHORT.get(name, spec.option if spec is not None else name.replace("_", " "))
    if spec is not None:
        found.text = spec.description
        found.option = spec.option
        found.default = _default(spec)
    return found


def _default(spec: Field) -> str:
    """Return a field's default as the label of a choice."""
    if isinstance(spec.default, bool):
        return "yes" if spec.default else "no"
    if isinstance(spec.default, int):
        return f"{spec.default:,}"
    return f"{spec.default:g}" if isinstance(spec.default, float) else str(spec.default)


def _left_out(table: Table) -> Counter[str]:
    """Count rows without an answer by the reason."""
    column = table["status"]
    labels = column.labels
    if labels is None:
        return Counter()
    counts = np.bincount(column.values.reshape(-1), minlength=len(labels))
    reasons = impossible_reasons()
    return Counter(
        {
            reasons.get(name, name.replace("_", " ")): int(count)
            for name, count in zip(labels, counts, strict=False)
            if count and name != "valid"
        }
    )


def _add_shares(found: Population) -> None:
    """Add what a training step loses to communication and to waiting, as shares."""
    if found.kind is not TRAINING:
        return
    step = found.figures["step_time"].values
    exposed = [name for name in TIME_COMPONENTS if name.endswith("_exposed")]
    for name, parts, text in (
        ("communication_share", exposed, "share of the step that communication delays it"),
        ("bubble_share", ["pipeline_bubble"], "share of the step in which stages wait"),
    ):
        if all(part in found.figures for part in parts):
            values = np.sum([found.figures[part].values for part in parts], axis=0) / step
            found.figures[name] = Figures(values, "1", text)


def _add_wholes(found: Population) -> None:
    """Add the sums of waterfalls that the results have parts of only."""
    for waterfall in found.kind.waterfalls:
        add_whole(found, waterfall)


def add_whole(found: Population, waterfall: Waterfall) -> None:
    """Add the figure that parts add up to, where it is not there and all parts are."""
    parts = [found.figures[name] for name in waterfall.parts if name in found.figures]
    if waterfall.whole not in found.figures and len(parts) == len(waterfall.parts):
        values = np.sum([part.values for part in parts], axis=0)
        text = f"sum of {', '.join(name.replace('_', ' ') for name in waterfall.parts)}"
        found.figures[waterfall.whole] = Figures(values, parts[0].units, text)


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
    text = read_text(path, "a table of compared runs", LARGEST)
    lines = [cells.read(it) for it in csv.reader(text.splitlines())]
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
