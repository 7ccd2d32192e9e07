"""The stages of a pipeline, printed and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.shared.printing import heading, say, share, table

if TYPE_CHECKING:
    from perfmodel.training.timeline import PipelineTimeline


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
    lines = []
    for cells, stages in groupby(found.stages, lambda item: item[1:]):
        numbers = [item.stage for item in stages]
        layers, forward, backward, busy, sending, waiting, in_flight, kept = cells
        lines.append(
            [
                f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}",
                " + ".join(map(str, layers)) if len(layers) <= 4 else f"{sum(layers)}",
                format_time(forward),
                format_time(backward),
                format_time(busy),
                format_time(sending),
                format_time(waiting),
                share(waiting, found.makespan),
                f"{in_flight:.3g}",
                format_gib(kept),
            ]
        )
    click.echo(table(headers, lines, left=(0, 1)))
    say("forward and backward of one micro-batch; in flight: micro-batches kept at most")
