"""What strategies, deployments and groups are called in figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analysis.recalled import RecalledStrategy, recalled_strategy
from perfmodel.base.errors import DataError
from perfmodel.base.figures import GREY, MARKERS, PALETTE
from perfmodel.base.table import Table
from perfmodel.report.kinds import SHOWN
from perfmodel.store.results import best_rows, column, rows
from perfmodel.store.subject import SERVING, TRAINING, Subject, subject_of

SHORT: Mapping[str, str] = SHOWN["fields"]
ALWAYS = ("tensor_parallel", "pipeline_parallel")
SILENT = ("context_parallel", "virtual_pipeline", "expert_parallel", "attention_data_parallel")
"""Degrees that are named where they are not 1."""
DERIVED = (
    *("data_parallel", "sequence_parallel", "expert_tensor_parallel", "micro_batch_group"),
    "pipeline_schedule",
    *("recompute_method", "recompute_num_layers", "strategy", "deployment", "load", "mapping"),
)
"""Fields that follow from others, or tell little: named where nothing else differs."""
FIRST = ("model", "framework", "engine", "hardware", "devices")
GROUPS = ("hardware", "model", "framework", "engine", "phase", "precision")
"""What tells groups apart where nobody says, the first that differs."""
MOST_GROUPS = len(PALETTE)
OTHERS = "others"


def names_of(rows: Sequence[Mapping[str, Any]], subject: Subject, width: int = 26) -> list[str]:
    """Return a name for each of some rows: the fields in which they differ, wrapped."""
    names = [name for name in dict.fromkeys([*FIRST, *subject.fields]) if rows and name in rows[0]]
    differing = [name for name in names if len({str(row[name]) for row in rows}) > 1]
    derived = {*DERIVED, "devices"} if subject is SERVING else DERIVED
    clear = [name for name in differing if name not in derived] or differing
    clear = clear or [name for name in ALWAYS if name in names] or names[:1]
    found = [full_name(row, clear) for row in rows]
    if len(set(found)) < len(found):  # what follows from others tells them apart after all
        found = [full_name(row, differing or clear) for row in rows]
    return [_wrapped(text.split(", "), width) for text in found]


def _wrapped(parts: Sequence[str], width: int) -> str:
    """Return parts in lines of so many letters, whole where they can be."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}, {part}"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines[-1] += ","
            lines.append(part)
    return "\n".join("\n".join(textwrap.wrap(line, width + 1)) for line in lines)


def full_name(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return some fields of a row in one line, without degrees of 1 that nobody misses."""
    here = [name for name in names if name in row]
    telling = [name for name in here if name not in SILENT or row[name] != 1]
    return ", ".join(_said(name, row[name]) for name in telling or here)


def in_common(rows: Sequence[Mapping[str, Any]], subject: Subject) -> str:
    """Return what all rows have in common, as a caption says it."""
    names = [name for name in dict.fromkeys([*FIRST, *subject.fields]) if name not in DERIVED]
    same = [
        name
        for name in names
        if rows and name in rows[0] and len({str(it[name]) for it in rows}) == 1
    ]
    shown = [name for name in same if name in SHORT or name in FIRST]
    return f"all: {full_name(rows[0], shown)}" if shown else ""


def _said(name: str, value: Any) -> str:
    if isinstance(value, float) and value == round(value):
        value = int(value)
    if name == "devices":
        return f"{value:,} devices"
    if name in ("hardware", "model", "framework", "engine", "phase"):
        return str(value)
    text = f"{value:,}" if isinstance(value, int) and value >= 10000 else str(value)
    return f"{SHORT.get(name, name.replace('_', ' ') + ' ')}{text}"


class Groups:
    """Rows of results by what tells them apart, each with its colour and mark.

    Attributes
    ----------
    name : str
        The column; empty where there is one group of all.
    labels : list of str
    of : ndarray of int
        Group of every row.
    """

    def __init__(self, values: NDArray[Any] | None, name: str, size: int) -> None:
        self.name, self.labels, self.of = name, [""], np.zeros(size, np.intp)
        if values is None:
            return
        known, of = np.unique(values, return_inverse=True)
        of = of.reshape(-1)
        self.labels = [_said(name, value) for value in known.tolist()]
        if known.size > MOST_GROUPS:  # the most frequent keep their colours
            often = np.sort(np.argsort(-np.bincount(of), kind="stable")[: MOST_GROUPS - 1])
            place = np.full(known.size, often.size)
            place[often] = np.arange(often.size)
            self.labels = [self.labels[at] for at in often] + [OTHERS]
            of = place[of]
        self.of = of

    def colour(self, number: int) -> str:
        """Return the colour of a group."""
        return GREY if self.labels[number] == OTHERS else PALETTE[number]

    def marker(self, number: int) -> str:
        """Return the mark of a group."""
        return MARKERS[number]


def groups_of(table: Table, chosen: NDArray[np.intp], by: str | None) -> Groups:
    """Return the groups of chosen rows of results.

    Parameters
    ----------
    table : Table
    chosen : ndarray of int
        Flat indices.
    by : str, optional
        A field or variable, or ``none``; the first of `GROUPS` that differs if it is missing.

    Raises
    ------
    DataError
        No such column.
    """
    if by == "none":
        return Groups(None, "", chosen.size)
    if by is not None:
        return Groups(column(table, by)[chosen], subject_of(table).aliases.get(by, by), chosen.size)
    for name in GROUPS:
        try:
            values = column(table, name)[chosen]
        except DataError:
            continue
        if np.unique(values).size > 1:
            return Groups(values, name, chosen.size)
    return Groups(None, "", chosen.size)


SAID = (
    *("hardware", "tensor_parallel", "context_parallel", "pipeline_parallel", "virtual_pipeline"),
    *("pipeline_schedule", "expert_parallel", "data_parallel", "zero_stage", "micro_batch_size"),
    *("global_batch_size", "sequence_length", "recompute", "precision"),
)


def picked(
    table: Table, pick: int, by: str, where: str | None, everything: bool
) -> tuple[Mapping[str, Any], RecalledStrategy, str]:
    """Return the `pick`-th best strategy, what it was projected from, and a line about it.

    Raises
    ------
    DataError
        Results of something else than training, too few strategies, or the results do not say
        what was swept.
    """
    if subject_of(table) is not TRAINING:
        raise DataError("this figure is of a training step; these results are of something else")
    found = best_rows(table, pick, by, where=where, fitting=not everything)
    if found.size < pick:
        verb = "are possible" if everything else "fit in memory"
        passes = " and pass the filter" if where else ""
        raise DataError(f"{found.size:,} strategies {verb}{passes}, not {pick:,}")
    (row,) = rows(table, found[pick - 1 :])
    problem = recalled_strategy(table.attrs, row)
    said = f"{problem.model.name} on {problem.grid.devices:,} × {full_name(row, SAID)}"
    return row, problem, said
