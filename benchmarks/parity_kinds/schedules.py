"""Compare pipeline schedules with tables of PyTorch's.

``compare(file)`` reads JSON, perhaps gzipped: ``{"tables": [...]}``, each with ``schedule`` (a name
of `SCHEDULES`), ``ranks``, ``chunks`` (stages of a rank), ``microbatches``, ``stage_to_rank``,
``order`` (a list of ``<stage><F|B|I|W><micro-batch>`` per rank; a list in it is a pair that runs
together) and perhaps ``sim``: ``makespan``, ``ideal`` (of the rank that works longest), ``bubble``
(the rest over that), ``peak`` and ``peak_until_weight`` (live stages of every rank, until the
gradients of their input and of their weights are there), where F, I and W take 1, B takes 2,
sends take nothing, and pairs run one after the other.

A table is exact where the order of every rank is the same action by action, and so is all of
``sim``. Its relative error is the largest of ``sim``, or 1 where the order differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from parity_kinds.rows import error_statistics, group_table

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.files import json_object, read_unpacked, shortened
from perfmodel.kernels.work import kernel_work
from perfmodel.launch.torchtitan import NAMES
from perfmodel.strategy.pipelines import Pipeline, named_pipeline, schedule_rows

SCHEDULES = {theirs: ours for ours, theirs in NAMES.items()}
"""PyTorch's names, and ours."""

ROUNDED = 1e-12  # figures of a file may have been written with so many digits


def compare(path: Path) -> dict[str, Any]:
    """Compare all tables of a file.

    Returns
    -------
    dict
        ``kind``, ``count``, ``exact``, ``worst_relative_error`` and ``median_relative_error`` of
        tables, ``orders`` that are equal, ``uncovered`` {reason: count}, and ``groups`` {schedule:
        the same figures}.

    Raises
    ------
    FormatError
        The file has no such tables.
    """
    text = read_unpacked(path).decode("utf-8-sig", errors="replace")
    tables = json_object(path, text, "tables").get("tables")
    if not isinstance(tables, list) or not tables:
        raise FormatError(f"{path}: no tables; 'tables' should be a list of them")
    errors: dict[str, list[float]] = {}
    uncovered: dict[str, int] = {}
    orders = 0
    for number, table in enumerate(tables):
        where = f"{path}: table {number}"
        name = _entry(table, "schedule", str, where)
        try:
            ours = _pipeline(table, name, where)
        except StrategyError as error:
            uncovered[str(error)] = uncovered.get(str(error), 0) + 1
            continue
        same = _same_order(ours, table)
        orders += same
        worst = max(_sim_errors(ours, table.get("sim") or {}, where), default=0.0)
        errors.setdefault(name, []).append(worst if same else max(1.0, worst))
    return {
        "kind": "schedules",
        **error_statistics(error for group in errors.values() for error in group),
        "orders": orders,
        "uncovered": uncovered,
        "groups": {
            name: {"rows": len(group), **error_statistics(group)} for name, group in errors.items()
        },
    }


def _entry(table: Any, key: str, kind: type, where: str) -> Any:
    value = table.get(key) if isinstance(table, dict) else None
    if not isinstance(value, kind):
        raise FormatError(f"{where}: '{key}' should be there, of type {kind.__name__}")
    return value


def _pipeline(table: dict[str, Any], name: str, where: str) -> Pipeline:
    """Return our pipeline of a table."""
    ranks, chunks, micro_batches = (
        _entry(table, key, int, where) for key in ("ranks", "chunks", "microbatches")
    )
    if name not in SCHEDULES:
        raise StrategyError(f"no schedule '{shortened(name)}'")
    return named_pipeline(SCHEDULES[name], ranks, micro_batches, chunks)


def _same_order(ours: Pipeline, table: dict[str, Any]) -> bool:
    """Whether every rank does the same, action by action, on the same stages."""
    placed = table.get("stage_to_rank", ours.order.rank_of.tolist())
    return schedule_rows(ours.order) == table.get("order") and ours.order.rank_of.tolist() == placed


def _sim_errors(ours: Pipeline, theirs: dict[str, Any], where: str) -> list[float]:
    """Return the relative error of every figure of a table."""
    found = figures(ours)
    errors = []
    for key, value in found.items():
        if key not in theirs:
            continue
        try:
            wanted = np.asarray(theirs[key], float)
        except (TypeError, ValueError):
            raise FormatError(f"{where}: 'sim' has no number as '{key}'") from None
        if wanted.shape != value.shape:
            errors.append(1.0)
            continue
        apart = np.abs(value - wanted)
        apart = np.where(apart <= ROUNDED * np.maximum(1.0, np.abs(wanted)), 0.0, apart)
        errors.append(float(np.max(apart / np.where(wanted == 0, 1.0, np.abs(wanted)))))
    return errors


def figures(pipeline: Pipeline) -> dict[str, np.ndarray]:
    """Return the figures of ``sim``."""
    order = pipeline.order
    one, none = np.ones(order.rank_of.size), np.zeros(order.rank_of.size)
    with kernel_work(scheduled_actions=5 * order.kind.size):
        from perfmodel.kernels.pipeline.events import plain_durations, run_order
        from perfmodel.kernels.pipeline.held import peaks

        timeline = run_order(order, pipeline.program, plain_durations(one, one, one))
        peak, until_weight = peaks(order, one, none), peaks(order, none, one)
    makespan, ideal = np.float64(timeline.makespan), timeline.busy.max()
    return {
        "makespan": np.asarray(makespan),
        "ideal": np.asarray(ideal),
        "bubble": np.asarray(makespan / ideal - 1.0),
        "peak": peak,
        "peak_until_weight": until_weight,
    }


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of a table by schedule."""
    lines = group_table("schedule", document["groups"])
    return [*lines, f"{document['orders']} orders equal, action by action"]
