"""The passes of a step over the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.figures import BLUE, GREEN, ORANGE, PALE, SKY
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE
from perfmodel.report.plots.axes import category_axis, inner_size, number_axis, text_size
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Bars, Panel, Paper
from perfmodel.report.plots.names import picked

MOST = 20_000
"""Passes of a figure: those of more would be narrower than anything that prints."""
EDGED = 1.6
"""Width from which passes have an edge [pt]."""
KINDS = (("forward", SKY), ("backward", BLUE), ("input gradient", BLUE), ("weight gradient", GREEN))
"""By kind of `perfmodel.kernels.pipeline.actions`."""
RECOMPUTED = ("recompute", ORANGE)


def pipeline_plot(
    table: Table,
    *,
    pick: int = 1,
    by: str = RATE,
    where: str | None = None,
    everything: bool = False,
    paper: Paper,
) -> Plot:
    """Describe the figure; options as of `perfmodel.plot`."""
    from perfmodel.kernels.pipeline.actions import BACKWARD, INPUT
    from perfmodel.training.project import framework_of_run
    from perfmodel.training.stages import pipeline_timeline

    row, problem, said = picked(table, pick, by, where, everything)
    model, grid, hardware, framework = problem
    found = pipeline_timeline(
        model, grid, hardware, framework_of_run(framework, model, hardware, grid)
    )
    order, timeline = found.pipeline.order, found.timeline
    if order.kind.size > MOST:
        raise DataError(
            f"{order.kind.size:,} passes could not be read; at most {MOST:,}: "
            "choose a strategy with fewer micro-batches (--where, --pick)"
        )
    stages = len(found.stages)
    rank = np.repeat(np.arange(stages), np.diff(order.first))
    again = np.where(np.isin(order.kind, (BACKWARD, INPUT)), found.recompute[order.stage], 0.0)
    begin, end = timeline.start + again, timeline.end
    axis = number_axis("time", "s", [0.0, found.makespan], zero=True, margin=0.01)
    height = round(0.62 + 0.13 + stages * min(max(1.6 / stages, 0.16), 0.3), 3)
    wide, high = inner_size(paper.width, height)
    point = found.makespan / wide  # [s] of 1/72 in
    chunked = int(row["virtual_pipeline"]) > 1
    marks: list[Any] = [
        Bars(
            list(range(stages)), [0.0] * stages, [found.makespan] * stages, PALE,
            "bubble and sends", height=0.86, edge=False,
        )
    ]  # fmt: skip
    for kind, (label, colour) in enumerate(KINDS):
        own = np.flatnonzero(order.kind == kind)
        if not own.size:
            continue
        length = end[own] - begin[own]
        edge = bool(np.median(length) > EDGED * point)
        texts = _numbers(order.micro_batch[own], length / point, 0.86 * high / stages)
        marks.append(
            Bars(
                rank[own].tolist(), begin[own].tolist(), length.tolist(), colour, label,
                height=0.86, edge=edge, texts=texts,
            )
        )  # fmt: skip
        redo = own[again[own] > 0.0]
        if redo.size:
            marks.append(
                Bars(
                    rank[redo].tolist(), timeline.start[redo].tolist(), again[redo].tolist(),
                    RECOMPUTED[1], RECOMPUTED[0], height=0.86, edge=edge,
                )
            )  # fmt: skip
    names = [str(stage) for stage in range(stages)]
    every = -(-stages // 16)
    names = [name if at % every == 0 else "" for at, name in enumerate(names)]
    panel = Panel(axis, category_axis("stage", names, label="stage"), tuple(marks))
    title = SCHEDULE_FACTS[str(row["pipeline_schedule"])].title
    idle = sum(it.waiting for it in found.stages) / stages / found.makespan
    notes = [said, f"{title}; {idle:.1%} of the time stages wait"]
    if any(text for mark in marks for text in mark.texts):
        notes.append("numbers: micro-batches" + (", of all chunks" if chunked else ""))
    facts = {"makespan": found.makespan, "passes": int(order.kind.size), "waiting_share": idle}
    return Plot("pipeline", (panel,), paper.width, height, notes=tuple(notes), facts=facts)


def _numbers(micro_batches: Any, widths: Any, high: float) -> list[str]:
    """Return the numbers that stand in passes; none where the widest has no room for them."""
    texts = [str(int(it) + 1) for it in micro_batches]
    if not texts or text_size(max(texts, key=len))[0] > widths.min() or high < text_size("1")[1]:
        return []
    return texts
