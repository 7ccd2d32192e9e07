"""One strategy of a sweep, chosen and rebuilt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.report.plots.names import full_name
from perfmodel.store.recalled import RecalledStrategy, recalled_strategy
from perfmodel.store.results import best_rows, rows
from perfmodel.store.subject import TRAINING, subject_of

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
