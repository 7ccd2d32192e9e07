"""``perfmodel timeline``: a step or a served model in time: printed, as JSON, and as a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.fields import refuse_unused
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.cli.core.diff_sides import file_of
from perfmodel.cli.core.project import projected, strategy_options, warn_if_too_large
from perfmodel.cli.shared import options
from perfmodel.cli.shared.launch_file import (
    SWEPT,
    given_options,
    pick_options,
    picked_row,
)
from perfmodel.cli.shared.models import READING
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, percent, print_json, remark, say, share, table
from perfmodel.kernels.serving.variables import TIME_COMPONENTS as PASS_COMPONENTS
from perfmodel.kernels.serving.variables import VARIABLES as SERVED
from perfmodel.kernels.variables import RATE, TIME_COMPONENTS

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.timeline import ServingTimeline
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid
    from perfmodel.training.step.timeline import StepTimeline

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
    from perfmodel.kernels.variables import SCHEMA_VERSION

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
    from perfmodel.kernels.serving.variables import SCHEMA_VERSION

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


TOLD = {"none": "passes", "layers": "layers", "all": "operations"}
"""Values of --operations, and depths of `perfmodel.training.step.timeline.step_timeline`."""
NEEDED = ("model", "hardware", "devices", "global_batch_size", "sequence_length")
STATED = (*READING, *NEEDED, "settings", "framework", *(spec.name for spec in FIELDS))
OF_STEP = ("stages", "operations", "pipeline")
MOST_DIGITS = 9  # of the number of a stage
STORED = 1e-6  # how far a step may be from that of a stored sweep, which has single precision


@click.command("timeline", **page("report", "timeline", "Write a step or a served model in time."))
@click.argument("file", metavar="[FILE[#N]]", required=False, type=click.Path())
@pick_options
@strategy_options
@options.config_option
@options.options_of("report.timeline", "stages")
@options.options_of("report.timeline", "operations", type=click.Choice(list(TOLD)))
@options.options_of("report.timeline", "pipeline", "passes")
@options.output_option(
    "FILE", "Write the timeline for ui.perfetto.dev: .json, or .json.gz, completely or not at all."
)
@options.json_option
@options.verbosity_options
@click.pass_context
def timeline_command(
    ctx: click.Context,
    file: str | None,
    pick: int | None,
    by: str | None,
    where: str | None,
    everything: bool,
    stages: str | None,
    operations: str | None,
    pipeline: bool,
    passes: int | None,
    output: str | None,
    as_json: bool,
    **problem: Any,
) -> None:
    """Show one training step, a pipeline, or the passes of a served model, in time."""
    from perfmodel.base.files import check_writable

    if output is not None:
        output = str(check_writable(output))
    step = (stages, TOLD[operations or "none"], pipeline)
    given = given_options()
    if file is None:
        purposes = {"a results file": SWEPT, "a served model": ("passes",)}
        refuse_unused(given, (), purposes, "name one, or leave the option out")
        for param in ctx.command.params:
            if param.name in NEEDED and problem[param.name] is None:
                raise click.MissingParameter(ctx=ctx, param=param)
        found = projected(problem)
        _show_step(ctx, found[:4], found.row, step, output, as_json)
        return
    from perfmodel.analysis.recalled import recalled_strategy
    from perfmodel.store.subject import SERVING, TRAINING, subject_of

    said = f"this comes from '{file}'"
    purposes = {"a strategy without a results file": STATED, "a run without one": ("from",)}
    refuse_unused(given, (), purposes, said)
    file, number = file_of(file)
    if number is not None and pick is not None:
        raise click.UsageError(f"--pick has no effect: '{file}#{number}' says which")
    table, row = picked_row(ctx, file, pick or number or 1, by or RATE, where, everything)
    subject = subject_of(table)
    if subject is SERVING:
        refuse_unused(given, (), {"a training step": OF_STEP}, f"'{file}' holds served models")
        served = _recalled_passes(table.attrs, row, file)
        show_served(served, row, passes, output, as_json)
        return
    if subject is not TRAINING:
        raise DataError(
            f"'{file}' holds results of 'perfmodel {subject.verb}'; a timeline is of a training "
            "step or of a served model"
        )
    refuse_unused(given, (), {"a served model": ("passes",)}, f"'{file}' holds training steps")
    _show_step(ctx, recalled_strategy(table.attrs, row, file), row, step, output, as_json)


for _param in timeline_command.params:
    if _param.name in NEEDED:  # FILE, or --from, may state all of these
        _param.required = False


def _stages(text: str | None, count: int) -> list[int] | None:
    """Return the stages of a list; None for all."""
    if text is None or text.strip() == "all":
        return None
    found = []
    for word in text.split(","):
        name = word.strip()
        if name in ("first", "last"):
            found.append(0 if name == "first" else count - 1)
        elif name.isdecimal() and len(name) <= MOST_DIGITS:
            found.append(int(name))
        else:
            raise StrategyError(
                f"--stages: '{name}' is no stage; numbers from 0, first, last, or all"
            )
    return found


def _show_step(
    ctx: click.Context,
    problem: tuple[ModelSpec, StrategyGrid, Hardware, Framework],
    row: Mapping[str, Any],
    step: tuple[str | None, str, bool],
    output: str | None,
    as_json: bool,
) -> None:
    """Show one training step, or its pipeline."""
    from perfmodel.training.step.timeline import step_timeline

    model, grid, device, software = problem
    stages, depth, pipeline = step
    if pipeline:
        _show_pipeline(problem, row, step, output, as_json)
        warn_if_too_large(ctx, row, device)
        return
    chosen = _stages(stages, int(grid["pipeline_parallel"][0]))
    found = step_timeline(model, grid, device, framework=software, stages=chosen, depth=depth)
    if found.depth != depth:
        remark(f"note: told by {found.depth}, not {depth}: that would be too many events")
    away = abs(found.results["step_time"] - row["step_time"])
    if away > STORED * row["step_time"]:
        remark(
            f"note: the results say {row['step_time']:.6g} s, this version of perfmodel "
            f"{found.results['step_time']:.6g} s"
        )
    written = write_tracks(output, found.write)
    if as_json:
        print_json(step_document(found) | written)
    else:
        print_step(found)
    warn_if_too_large(ctx, row, device)


def _show_pipeline(
    problem: tuple[ModelSpec, StrategyGrid, Hardware, Framework],
    row: Mapping[str, Any],
    step: tuple[str | None, str, bool],
    output: str | None,
    as_json: bool,
) -> None:
    """Show the passes of a pipeline alone."""
    from perfmodel.analysis.explain import pipeline_of
    from perfmodel.cli.shared.tables import print_pipeline
    from perfmodel.kernels.variables import SCHEMA_VERSION
    from perfmodel.training.step.timeline import check_passes

    if step[0] is not None or step[1] != TOLD["none"]:
        raise click.UsageError("--pipeline shows the passes of all stages: drop the other options")
    check_passes(problem[1])
    found = pipeline_of(*problem)
    written = write_tracks(output, found.write)
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, **found.to_json_dict(), **written})
    else:
        print_pipeline(found.stages, found.makespan, row)


def _recalled_passes(
    attributes: Mapping[str, Any], row: Mapping[str, Any], file: str
) -> ServingTimeline:
    """Run an operating point of stored results pass by pass."""
    from perfmodel.analysis.recalled import recalled_point
    from perfmodel.serving.timeline import serving_timeline

    point = recalled_point(attributes, row, file)
    if point.method not in ("auto", "closed", "recursion"):
        instead = {"replay": "'perfmodel serve --replay … --timeline' runs it again"}.get(
            point.method, "it has no sequence of passes"
        )
        raise DataError(f"'{file}' holds a {point.method}: {instead}")
    return serving_timeline(point.grid, point.loads, point.hardware, routing=point.routing)


def show_served(
    found: ServingTimeline,
    row: Mapping[str, Any],
    passes: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Show the passes of a served model.

    Parameters
    ----------
    found : ServingTimeline
    row : mapping
        Its projection.
    passes : int or None
        Entries of each batch that are written at most.
    output : str or None
    as_json : bool
    """
    written = write_tracks(output, lambda path: found.write(path, passes))
    if as_json:
        print_json(served_document(found) | written)
    else:
        print_served(found)
