"""The pipeline of one step as a picture: what is drawn of the passes of a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.base.table import Table
from perfmodel.report.packing import codes, packed

MOST_PASSES = 6000
"""Of one picture: more would be narrower than a pixel."""


def pipeline_picture(table: Table, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the page draws of one strategy's pipeline.

    Parameters
    ----------
    table : Table
        Results of training steps, with their provenance.
    row : mapping
        One of them, as `perfmodel.sweeps.results.rows` gives it.

    Returns
    -------
    dict or None
        ``stages``, ``makespan`` [s], ``schedule``, and per pass ``stage``, ``chunk``,
        ``micro_batch``, ``kind`` (0 forward, 1 backward, 2 of the input, 3 of the weights),
        ``start`` and ``end`` (packed; shares of the makespan in 65,535 steps); ``waiting`` of every
        stage [s]; or ``without``, why there is none. None where the results do not say what was
        swept.
    """
    from perfmodel.sweeps.recalled import recalled_strategy
    from perfmodel.training.project import framework_of_run
    from perfmodel.training.timeline import pipeline_timeline

    stages = int(row["pipeline_parallel"])
    batches = int(row["global_batch_size"]) // int(row["data_parallel"] * row["micro_batch_size"])
    passes = 2 * stages * int(row["virtual_pipeline"]) * batches
    if passes > MOST_PASSES:
        most = f"{MOST_PASSES:,}"
        return {"without": f"about {passes:,} passes; pictures are made of {most} at most"}
    try:
        model, grid, hardware, stated = recalled_strategy(table.attrs, row)
        framework = framework_of_run(stated, model, hardware, grid)
        found = pipeline_timeline(model, grid, hardware, framework)
    except PerfModelError:
        return None
    order, timeline = found.pipeline.order, found.timeline
    first = np.diff(order.first)
    schedule = str(row["pipeline_schedule"])
    # Stages of the model are numbered in the order of the forward pass; a rank's own are chunks.
    chunk = np.zeros(order.rank_of.size, np.intp)
    for rank in range(stages):
        own = np.flatnonzero(order.rank_of == rank)
        chunk[own] = np.arange(own.size)
    steps = 65535 / found.makespan
    return {
        "stages": stages,
        "makespan": found.makespan,
        "schedule": f"{schedule}: {SCHEDULE_FACTS[schedule].title}",
        "chunks": int(chunk.max()) + 1,
        "micro_batches": int(order.micro_batches),
        "waiting": [float(it.waiting) for it in found.stages],
        "layers": [list(it.layers) for it in found.stages],
        "stage": packed(codes(np.repeat(np.arange(stages), first))),
        "chunk": packed(codes(chunk[order.stage])),
        "micro_batch": packed(codes(order.micro_batch)),
        "kind": packed(codes(order.kind)),
        "start": packed(np.rint(timeline.start * steps).astype(np.uint16)),
        "end": packed(np.rint(timeline.end * steps).astype(np.uint16)),
    }
