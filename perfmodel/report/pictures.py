"""The pipeline of one step as a picture: what is drawn of the time of a strategy's stages."""

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
KINDS = (
    *("forward", "backward", "backward for the input", "backward for the weights"),
    *("send", "data parallel", "optimizer", "offload", "host"),
)
"""What is drawn, as `report.timelines.step.pipeline_picture` calls it; bubbles stay free."""


def pipeline_picture(table: Table, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the page draws of one strategy's pipeline.

    Parameters
    ----------
    table : Table
        Results of training steps, with their provenance.
    row : mapping
        One of them, as `perfmodel.store.results.rows` gives it.

    Returns
    -------
    dict or None
        ``stages``, ``makespan`` (the step time) [s], ``schedule``, ``kinds``, and of everything
        drawn ``stage``, ``chunk``, ``micro_batch`` (0 of what is no pass), ``kind`` (place in
        ``kinds``), ``start`` and ``end`` (packed; shares of the makespan in 65,535 steps);
        ``work``, ``communication`` and ``waiting`` of every stage [s]; or ``without``, why there is
        none. None where the results do not say what was swept.
    """
    from perfmodel.report.timelines import step as timeline
    from perfmodel.store.recalled import recalled_strategy

    stages = int(row["pipeline_parallel"])
    batches = int(row["global_batch_size"]) // int(row["data_parallel"] * row["micro_batch_size"])
    passes = 2 * stages * int(row["virtual_pipeline"]) * batches
    if passes > MOST_PASSES:
        most = f"{MOST_PASSES:,}"
        return {"without": f"about {passes:,} passes; pictures are made of {most} at most"}
    try:
        model, grid, hardware, framework = recalled_strategy(table.attrs, row)
        step = timeline.step_timeline(model, grid, hardware, framework=framework)
    except PerfModelError:
        return None
    found = timeline.pipeline_picture(step)
    places = {name: at for at, name in enumerate(KINDS)}
    kind = np.array([places.get(name, -1) for name in found["kind"]])
    drawn = np.flatnonzero(kind >= 0)
    chunk, micro_batch = (np.maximum(found[it][drawn], 0) for it in ("chunk", "micro_batch"))
    steps = 65535 / found["end"]
    start, duration = found["start"][drawn], found["duration"][drawn]
    totals = [step.totals(stage) for stage in range(stages)]
    schedule = str(row["pipeline_schedule"])
    return {
        "stages": stages,
        "makespan": found["end"],
        "schedule": f"{schedule}: {SCHEDULE_FACTS[schedule].title}",
        "chunks": int(chunk.max()) + 1,
        "micro_batches": int(micro_batch.max()) + 1,
        "kinds": list(KINDS),
        "work": [sum(it[name] for name in timeline.COMPUTE_TIMES) for it in totals],
        "communication": [
            sum(time for name, time in it.items() if name.endswith("_exposed")) for it in totals
        ],
        "waiting": [it["pipeline_bubble"] + it["host_time"] for it in totals],
        "stage": packed(codes(found["stage"][drawn])),
        "chunk": packed(codes(chunk)),
        "micro_batch": packed(codes(micro_batch)),
        "kind": packed(codes(kind[drawn])),
        "start": packed(np.rint(start * steps).astype(np.uint16)),
        "end": packed(np.rint((start + duration) * steps).astype(np.uint16)),
    }
