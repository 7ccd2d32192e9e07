"""Sweeps, grids of served models and mappings of meshes as rows of a page."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.table import Column, Table
from perfmodel.base.variables import TIME_COMPONENTS
from perfmodel.report.kinds import SERVING, SHORT, TRAINING, WAFER, Kind, Waterfall
from perfmodel.report.population import Choices, Figures, Population, coded
from perfmodel.serving import rules as serving_rules
from perfmodel.store import results, subject
from perfmodel.strategy import rules as training_rules
from perfmodel.strategy.fields import FIELDS, StrategyField
from perfmodel.sweeps.trust import TRUST
from perfmodel.wafer.result_subject import SUBJECT as WAFER_SUBJECT

KINDS: dict[int, Kind] = {
    id(subject.TRAINING): TRAINING,
    id(subject.SERVING): SERVING,
    id(WAFER_SUBJECT): WAFER,
}
REASONS = {
    training_rules.STATUS_NAMES[code]: text for code, text in training_rules.STATUS_REASONS.items()
} | {serving_rules.STATUS_NAMES[code]: text for code, text in serving_rules.STATUS_REASONS.items()}
OF_ALL = {
    "model": StrategyField("model", "model", "choice", "", "model"),
    "framework": StrategyField("framework", "framework", "choice", "megatron", "software"),
    "devices": StrategyField("devices", "devices", "int", 0, "devices of the run"),
    "hardware": StrategyField("hardware", "hardware", "choice", "", "hardware profile"),
    "engine": StrategyField("engine", "engine", "choice", "", "serving engine"),
}
FIXED = {"fits", "status", "memory_capacity", TRUST, "kernel_class", "strategy", "deployment"}
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
    kind = KINDS[id(about)]
    shape = results.shape_of(table)
    flat = results.select(table, where, fitting=False)
    at = dict(zip(about.dims, np.unravel_index(flat, shape), strict=True))

    def gathered(column: Column) -> NDArray[Any]:
        index = tuple(at[dim] for dim in column.dims)
        return column.values[index] if index else np.broadcast_to(column.values, flat.shape)

    found = Population(kind, total=int(np.prod(shape)), left_out=_left_out(table), flat=flat)
    options = {spec.name: spec for spec in FIELDS} if kind is TRAINING else _fields(kind)
    for name, column in table.variables.items():
        known = set(column.dims) <= set(about.dims)
        if not known or name in FIXED or name in about.numbered:
            continue
        if name in table.coords or column.labels is not None:
            spec = options.get(name) or OF_ALL.get(name)
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
    fits = gathered(table["fits"]).astype(np.intp)
    about_fit = "memory is within the capacity of the device"
    found.choices["fits"] = Choices(["no", "yes"], fits, None, "fits", about_fit)
    _add_shares(found)
    _add_wholes(found)
    if "memory_capacity" in table and "memory_total" in found.figures:
        names, sizes = table["hardware"].values.tolist(), table["memory_capacity"].values.tolist()
        found.limits["memory_total"] = dict(zip(map(str, names), sizes, strict=True))
    return found


def _fields(kind: Kind) -> dict[str, StrategyField]:
    from perfmodel.serving.fields import DEPLOYMENT_FIELD_BY_NAME, LOAD_FIELD_BY_NAME
    from perfmodel.wafer.fields import FIELD_BY_NAME

    if kind is WAFER:
        return dict(FIELD_BY_NAME)
    return {**DEPLOYMENT_FIELD_BY_NAME, **LOAD_FIELD_BY_NAME}


def _choices(
    column: Column, values: NDArray[Any], spec: StrategyField | None, name: str
) -> Choices:
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


def _default(spec: StrategyField) -> str:
    """Return a field's default as the label of a choice."""
    if isinstance(spec.default, bool):
        return "yes" if spec.default else "no"
    if isinstance(spec.default, int):
        return f"{spec.default:,}"
    return f"{spec.default:g}" if isinstance(spec.default, float) else spec.default


def _left_out(table: Table) -> Counter[str]:
    """Count rows without an answer by the reason."""
    column = table["status"]
    labels = column.labels
    if labels is None:
        return Counter()
    counts = np.bincount(column.values.reshape(-1), minlength=len(labels))
    return Counter(
        {
            REASONS.get(name, name.replace("_", " ")): int(count)
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
