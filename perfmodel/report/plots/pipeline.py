"""The passes of a pipeline over its stages: those of a whole step on a page, alone as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.figures import BLUE, GREEN, ORANGE, PALE, SKY
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.base.table import Table
from perfmodel.kernels.variables import RATE
from perfmodel.report.packing import codes, packed
from perfmodel.report.plots.axes import category_axis, inner_size, number_axis, text_size
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.marks import Bars, Panel, Paper, described_axis
from perfmodel.report.plots.names import picked
from perfmodel.training.stages import PASSES
from perfmodel.training.step.timeline import (
    BUBBLE,
    COMPUTE_TIMES,
    DATA,
    HOST,
    OFFLOAD,
    OPTIMIZER,
    PIPELINE,
    StepTimeline,
    step_timeline,
)

NO_PASS = -1
"""Micro-batch and chunk of what is no pass."""
MOST_PASSES = 6000
"""Of one picture: more would be narrower than a pixel."""
STEPS = 65535
"""Of the step time, in which begins and lengths on a page are told."""
COLOURS = {
    "forward": "--compute",
    "backward": "--second",
    "backward for the input": "--second",
    "backward for the weights": "--third",
    "send": "--group-2",
    "data parallel": "--group-4",
    "optimizer": "--group-5",
    "offload": "--group-6",
    "host": "--soft",
}
"""What pages draw, in the colours of their theme; bubbles stay free."""
PALER = 0.55
"""By how much the last of many chunks is paler than the first."""


def pipeline_picture(step: StepTimeline) -> dict[str, Any]:
    """Return the passes of a step and what is between them as plain columns, for a picture.

    Parameters
    ----------
    step : StepTimeline
        Of any depth.

    Returns
    -------
    dict
        ``stage``, ``micro_batch``, ``chunk`` (of what is no pass -1), ``start`` and ``duration``
        [s] are arrays of one length, ``kind`` a list of as many texts: "forward", "backward",
        "backward for the input", "backward for the weights", "bubble", "send", "data parallel",
        "optimizer", "offload" or "host". ``end`` is the step time [s], ``stages`` how many stages
        the pipeline has, ``slowest`` the slowest.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("stage", "start", "duration", "kind", "micro_batch", "chunk")
    }
    between = {BUBBLE: "bubble", PIPELINE: "send", DATA: "data parallel", HOST: "host"}
    between |= {OPTIMIZER: "optimizer", OFFLOAD: "offload"}
    for one in step.stages:
        passes, shown = one.passes, one.shown
        inside = np.searchsorted(passes.start, shown.start + 0.5 * shown.duration, "right") - 1
        ends = passes.start + passes.duration
        alone = (inside < 0) | (shown.start + 0.5 * shown.duration >= ends[inside])
        rest = np.flatnonzero(alone & np.isin(shown.component, list(between)))
        size = passes.start.size + rest.size
        columns["stage"].append(np.full(size, one.stage))
        columns["start"].append(np.concatenate((passes.start, shown.start[rest])))
        columns["duration"].append(np.concatenate((passes.duration, shown.duration[rest])))
        columns["kind"] += [PASSES[kind] for kind in passes.kind.tolist()]
        columns["kind"] += [between[kind] for kind in shown.component[rest].tolist()]
        nothing = np.full(rest.size, NO_PASS)
        columns["micro_batch"].append(np.concatenate((passes.micro_batch, nothing)))
        columns["chunk"].append(np.concatenate((passes.chunk, nothing)))
    found: dict[str, Any] = {
        name: column if name == "kind" else np.concatenate(column)
        for name, column in columns.items()
    }
    step_time = step.results["step_time"]
    return {**found, "end": step_time, "stages": step.count, "slowest": step.critical}


def drawn_pipeline(table: Table, row: Mapping[str, Any]) -> dict[str, Any] | None:
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
        ``panel``, a described one (`perfmodel.report.plots.figure.described_panel`) with bars for
        each kind and chunk, their columns packed, begins and lengths in 65,535 steps;
        ``schedule``, ``chunks``, ``micro_batches``; ``work``, ``communication`` and ``waiting`` of
        every stage [s]; or ``without``, why there is none. None where the results do not say what
        was swept.
    """
    from perfmodel.analysis.recalled import recalled_strategy

    stages = int(row["pipeline_parallel"])
    batches = int(row["global_batch_size"]) // int(row["data_parallel"] * row["micro_batch_size"])
    passes = 2 * stages * int(row["virtual_pipeline"]) * batches
    if passes > MOST_PASSES:
        most = f"{MOST_PASSES:,}"
        return {"without": f"about {passes:,} passes; pictures are made of {most} at most"}
    try:
        model, grid, hardware, framework = recalled_strategy(table.attrs, row)
        step = step_timeline(model, grid, hardware, framework=framework)
    except PerfModelError:
        return None
    found = pipeline_picture(step)
    totals = [step.totals(stage) for stage in range(stages)]
    schedule = str(row["pipeline_schedule"])
    stage_axis = category_axis("stage", [f"stage {stage}" for stage in range(stages)])
    time_axis = {"scale": "linear", "factor": 1.0, "low": 0.0, "high": found["end"], "ticks": []}
    return {
        "panel": {"x": time_axis, "y": described_axis(stage_axis), "marks": _bars(found)},
        "schedule": f"{schedule}: {SCHEDULE_FACTS[schedule].title}",
        "chunks": int(found["chunk"].max()) + 1,
        "micro_batches": int(found["micro_batch"].max()) + 1,
        "work": [sum(it[name] for name in COMPUTE_TIMES) for it in totals],
        "communication": [
            sum(time for name, time in it.items() if name.endswith("_exposed")) for it in totals
        ],
        "waiting": [it["pipeline_bubble"] + it["host_time"] for it in totals],
    }


def _bars(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bars of every kind and chunk."""
    steps, kinds = STEPS / found["end"], np.array(found["kind"])
    start = np.rint(found["start"] * steps).astype(np.uint16)
    end = np.rint((found["start"] + found["duration"]) * steps).astype(np.uint16)
    chunks = int(found["chunk"].max()) + 1
    unit = {"unit": found["end"] / STEPS}
    marks = []
    for kind, colour in COLOURS.items():
        for chunk in np.unique(found["chunk"][kinds == kind]).tolist():
            own = np.flatnonzero((kinds == kind) & (found["chunk"] == chunk))
            mark = {
                "mark": "bars",
                "label": kind,
                "colour": colour,
                "height": 0.86,
                "chunk": chunk,
                "at": packed(codes(found["stage"][own])),
                "start": packed(start[own]) | unit,
                "length": packed(end[own] - start[own]) | unit,
            }
            if chunk != NO_PASS:
                mark["alpha"] = 1.0 - PALER * chunk / chunks
                mark["texts"] = packed(codes(found["micro_batch"][own] + 1))
            marks.append(mark)
    return marks


MOST_DRAWN = 20_000
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
    if order.kind.size > MOST_DRAWN:
        raise DataError(
            f"{order.kind.size:,} passes could not be read; at most {MOST_DRAWN:,}: "
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
