"""The stages of a pipeline, printed and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.shared.printing import heading, say, share, table

if TYPE_CHECKING:
    from perfmodel.training.stages import PipelineTimeline


def pipeline_document(found: PipelineTimeline) -> dict[str, Any]:
    """Return the stages of a pipeline and how what they keep changes, for JSON."""
    order, timeline = found.pipeline.order, found.timeline
    first = order.first.tolist()
    curves = [
        {"time": found.kept_from[a:b].tolist(), "bytes": found.kept[a:b].tolist()}
        for a, b in pairwise(first)
    ]
    stages = [
        {**item._asdict(), "layers": list(item.layers), "kept_over_time": curve}
        for item, curve in zip(found.stages, curves, strict=True)
    ]
    return {
        "makespan": found.makespan,
        "passes": int(timeline.start.size),
        "stages": stages,
    }


def print_pipeline(found: PipelineTimeline, row: Mapping[str, Any]) -> None:
    """Print what each stage does in a step; stages that do the same share a line."""
    from perfmodel.base.pipelines import SCHEDULE_FACTS
    from perfmodel.base.units import format_gib, format_time

    name = str(row["pipeline_schedule"])
    click.echo(heading(f"Stages of the pipeline: {name}, {SCHEDULE_FACTS[name].title}"))
    say(f"from the first pass to the last {format_time(found.makespan)}; times of a whole step")
    headers = ["stage", "layers", "forward", "backward", "works", "sends", "waits", "", "in flight"]
    headers += ["keeps"]
    cells = [
        [
            " + ".join(map(str, it.layers)) if len(it.layers) <= 4 else f"{sum(it.layers)}",
            *map(format_time, (it.forward, it.backward, it.busy, it.sending, it.waiting)),
            share(it.waiting, found.makespan),
            f"{it.in_flight:.3g}",
            format_gib(it.kept),
        ]
        for it in found.stages
    ]
    lines, first = [], 0
    for line, alike in groupby(cells):
        last = first + len(list(alike)) - 1
        lines.append([f"{first}" if first == last else f"{first}–{last}", *line])
        first = last + 1
    click.echo(table(headers, lines, left=(0, 1)))
    say("forward and backward of one micro-batch; in flight: micro-batches kept at most")
