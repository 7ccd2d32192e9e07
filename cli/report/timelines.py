"""Timelines on a terminal, as JSON, and as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.serving_variables import TIME_COMPONENTS as PASS_COMPONENTS
from perfmodel.base.serving_variables import VARIABLES as SERVED
from perfmodel.base.variables import TIME_COMPONENTS
from perfmodel.cli.shared.printing import heading, percent, remark, say, share, table

if TYPE_CHECKING:
    from perfmodel.report.timelines.serving import ServingTimeline
    from perfmodel.report.timelines.step import StepTimeline

VIEWER = "https://ui.perfetto.dev"
COMPUTE = ("forward_time", "backward_time", "recompute_time")
COMMUNICATION = tuple(name for name in TIME_COMPONENTS if name.endswith("_exposed"))


def write_tracks(output: str | None, write: Callable[[str], int]) -> dict[str, Any]:
    """Write a timeline where a file is named; return what JSON says of it."""
    if output is None:
        return {}
    from perfmodel.cli.shared.printing import activity

    with activity(f"writing {output}"):
        events = write(output)
    size = Path(output).stat().st_size
    remark(f"wrote {output}: {events:,} events, {size / 1e6:.1f} MB; open it at {VIEWER}")
    return {"output": output, "events": events, "bytes": size}


def step_document(step: StepTimeline) -> dict[str, Any]:
    """Return a step's timeline in numbers, for JSON."""
    from perfmodel.base.variables import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "title": step.title,
        "step_time": step.results["step_time"],
        "end": step.end,
        "pipeline_stages": step.count,
        "slowest_stage": step.critical,
        "depth": step.depth,
        "drawn_sends": step.drawn_sends,
        "drawn_work": step.drawn_work,
        "stages": [
            {
                "stage": one.stage,
                "passes": int(one.passes.start.size),
                "components": step.totals(one.stage),
                "hidden": step.hidden(one.stage),
                "memory_peak": float(one.memory.total.max()),
            }
            for one in step.stages
        ],
    }


def print_step(step: StepTimeline) -> None:
    """Print what the stages of a step do; those that do the same share a line."""
    from itertools import groupby

    from perfmodel.base.units import format_gib, format_time

    click.echo(heading(f"Timeline of a training step: {step.title}"))
    say(f"ends after {format_time(step.end)}; the slowest stage is {step.critical}")
    click.echo()
    headers = ["stage", "passes", "compute", "communication", "bubble", "", "hidden", "memory"]
    cells = []
    for one in step.stages:
        totals, hidden = step.totals(one.stage), step.hidden(one.stage)
        bubble = totals["pipeline_bubble"]
        cells.append(
            [
                f"{one.passes.start.size:,}",
                format_time(sum(totals[name] for name in COMPUTE)),
                format_time(sum(totals[name] for name in COMMUNICATION)),
                format_time(bubble),
                share(bubble, step.end),
                format_time(sum(hidden.values())),
                format_gib(float(one.memory.total.max())),
            ]
        )
    lines, at = [], 0
    for line, alike in groupby(cells):
        first, at = at, at + len(list(alike))
        numbers = [one.stage for one in step.stages[first:at]]
        together = numbers[-1] - numbers[0] == len(numbers) - 1
        text = f"{numbers[0]}–{numbers[-1]}" if together else ", ".join(map(str, numbers))
        lines.append([text if len(numbers) > 1 else str(numbers[0]), *line])
    click.echo(table(headers, lines, left=(0,)))
    say("of a whole step; communication that shows, and what hides beside other work")
    for what, drawn in (
        ("sends", f"{100 * step.drawn_sends:.0f} %" if step.drawn_sends < 1.0 else ""),
        ("passes", percent(step.drawn_work) if step.drawn_work < 1.0 else ""),
    ):
        if drawn:
            remark(
                f"note: {what} of stages but the slowest are drawn with {drawn} of their time, so "
                "that they delay the step by no more than the projection says"
            )


def served_document(found: ServingTimeline) -> dict[str, Any]:
    """Return the timeline of a served model in numbers, for JSON."""
    from perfmodel.base.serving_variables import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "title": found.title,
        "end": found.end,
        "batches": [
            {"name": one.name, "alike": one.alike, "passes": float(one.count.sum())}
            for one in found.batches
        ],
        "note": found.note,
        **found.totals(),
    }


def print_served(found: ServingTimeline) -> None:
    """Print what the passes of a served model come to."""
    from perfmodel.base.units import format_time

    click.echo(heading(f"Timeline of a served model: {found.title}"))
    totals = found.totals()
    say(
        f"{found.passes:,} passes in {format_time(found.end)}, busy for "
        f"{percent(totals['utilization'])} of the time"
    )
    for one in found.batches:
        say(f"{one.name}: {float(one.count.sum()):,.0f} passes", 2)
    click.echo()
    whole, lines = totals["pass_time"], []
    for name in PASS_COMPONENTS:
        if totals[name]:
            text = SERVED[name].long_name.removesuffix(" in a mean pass")
            lines.append([text, format_time(totals[name]), share(totals[name], whole)])
    lines.append(["all of it", format_time(whole), "100.0 %"])
    click.echo(table(["mean pass", "", "share"], lines, left=(0,)))
    if found.note:
        remark(f"note: {found.note}")
