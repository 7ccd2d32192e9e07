"""``perfmodel explain``: where time and memory of one strategy go, operation by operation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.core.project import (
    Projected,
    placement_rows,
    print_title,
    projected,
    projection_header,
    strategy_options,
    suggest_interleaving,
    warn_if_too_large,
)
from perfmodel.cli.shared import options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, print_json, say, share, table
from perfmodel.kernels.variables import MEMORY_COMPONENTS, TIME_COMPONENTS, VARIABLES

if TYPE_CHECKING:
    from perfmodel.analysis.explain import OperationCost
    from perfmodel.hwprofiles import Hardware

PHASES = ("forward", "backward_input", "backward_weight", "recompute")


@click.command("explain", **page("core", "explain", "Say where time and memory go, op by op."))
@strategy_options
@options.config_option
@options.options_of("core.explain", "top")
@options.options_of("core.explain", "phase", type=click.Choice(PHASES))
@options.options_of("core.explain", "pipeline", "memory")
@options.json_option
@options.verbosity_options
@click.pass_context
def explain_command(
    ctx: click.Context,
    top: int,
    phase: str | None,
    stages: bool,
    memory: bool,
    as_json: bool,
    **stated: Any,
) -> None:
    """Say where the time and the memory of one strategy go, and what bounds each operation."""
    from perfmodel.analysis.explain import operation_costs
    from perfmodel.cli.shared.tables import print_placement
    from perfmodel.strategy.mapping import placement

    found = projected(stated)
    spec, grid, device, software, row, _ = found
    if stages or memory:
        (_show_pipeline if stages else _explain_memory)(found, as_json)
        warn_if_too_large(ctx, row, device)
        return
    costs = operation_costs(spec, grid, device, framework=software)
    if phase is not None:
        costs = [cost for cost in costs if cost.phase == phase]
    costs.sort(key=lambda cost: -cost.exposed)
    if as_json:
        operations = [_operation(cost, device, row) for cost in costs]
        document = projection_header(found) | row | placement_rows(grid, device)
        print_json(document | {"operations": operations})
    else:
        print_title(found)
        _print_operations(costs, top, device, row, whole=phase is None)
        if phase is None:
            print_placement(
                placement(grid, device), [level.name for level in device.system.network]
            )
    suggest_interleaving(spec, grid, row)
    warn_if_too_large(ctx, row, device)


def _show_pipeline(found: Projected, as_json: bool) -> None:
    from perfmodel.analysis.explain import pipeline_of
    from perfmodel.cli.shared.tables import print_pipeline

    pipeline = pipeline_of(*found[:4])
    if as_json:
        print_json({**projection_header(found), **found.row, "pipeline": pipeline.to_json_dict()})
        return
    print_title(found)
    print_pipeline(pipeline.stages, pipeline.makespan, found.row)


def _explain_memory(found: Projected, as_json: bool) -> None:
    """Print what every stage holds at every moment, and its components at the peak."""
    from perfmodel.analysis.explain import memory_moments
    from perfmodel.base.units import format_gib
    from perfmodel.cli.shared.tables import print_memory

    row = found.row
    moments, stages = memory_moments(*found[:4])
    if as_json:
        held_by = [
            {
                "first_stage": stage.first,
                "stages": stage.stages,
                "moments": [
                    {"moment": moment, **dict(zip(MEMORY_COMPONENTS, held.tolist(), strict=True))}
                    for moment, held in zip(moments, stage.held, strict=True)
                ],
            }
            for stage in stages
        ]
        print_json({**projection_header(found), **row, "memory": held_by})
        return
    print_title(found)
    click.echo(heading("Memory of every stage at the moments of a step"))
    names = [f"stage {stage.first}" for stage in stages]
    names = [
        name if stage.stages == 1 else f"{name} and {stage.stages - 1} like it"
        for name, stage in zip(names, stages, strict=True)
    ]
    lines = []
    for number, moment in enumerate(moments):
        cells = [
            format_gib(stage.totals[number]) + (" *" if number == stage.totals.argmax() else "")
            for stage in stages
        ]
        lines.append([moment, *cells])
    click.echo(table(["moment", *names], lines))
    say("* the peak of that stage")
    click.echo()
    lines = []
    for name in MEMORY_COMPONENTS:
        cells = [format_gib(stage.at_peak()[name]) for stage in stages]
        lines.append([VARIABLES[name].long_name, *cells])
    click.echo(table(["at its peak", *names], lines))
    click.echo()
    print_memory(row)


def _operation(cost: OperationCost, hardware: Hardware, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one operation for JSON, with what its call achieves."""
    from perfmodel.analysis.explain import component

    return dataclasses.asdict(cost) | {
        "component": component(cost),
        "share": cost.exposed / row["step_time"],
        "flops_per_second": cost.flops / cost.time if cost.time else 0.0,
        "bytes_per_second": cost.traffic / cost.time if cost.time else 0.0,
    }


def _print_operations(
    costs: Sequence[OperationCost],
    top: int,
    hardware: Hardware,
    row: Mapping[str, Any],
    *,
    whole: bool,
) -> None:
    from perfmodel.base.units import counted, format_si, format_time
    from perfmodel.cli.shared.tables import print_memory, step_range
    from perfmodel.kernels.variables import OPERATION_COMPONENTS

    step = row["step_time"]
    headers = ["operation", "phase", "shape", "calls", "a call", "adds", "share", "bound", "rate"]
    lines = [
        [
            f"{cost.part} {cost.name}",
            cost.phase,
            cost.shape,
            f"{cost.calls:,.0f}",
            format_time(cost.time),
            format_time(cost.exposed),
            share(cost.exposed, step),
            cost.bound,
            _rate(cost, hardware, row["precision"]),
        ]
        for cost in costs[:top]
    ]
    rest = costs[top:]
    if rest:
        left = sum(cost.exposed for cost in rest)
        text = counted(len(rest), "more operation")
        lines.append([text, "", "", "", "", format_time(left), share(left, step), "", ""])
    peak = format_si(hardware.device.peak(row["precision"]), "FLOP/s", 4)
    click.echo(heading("Operations of the slowest stage"))
    say(f"rates in % of the {row['precision']} peak, {peak}")
    click.echo(table(headers, lines, left=(0, 1, 2, 7), spare=(4, 8, 2)))
    if not whole:
        return
    total = sum(cost.exposed for cost in costs)
    below = [["all operations", format_time(total), share(total, step), ""]]
    for name in TIME_COMPONENTS:
        if name not in OPERATION_COMPONENTS and row[name]:
            text = VARIABLES[name].long_name
            below.append([text, format_time(row[name]), share(row[name], step), ""])
    band = step_range(row, "10–90 %: {}")
    below.append([VARIABLES["step_time"].long_name, format_time(step), "100.0 %", band])
    click.echo()
    click.echo(table(["whole step", "adds", "share", ""], below, left=(0, 3)))
    click.echo()
    print_memory(row)


def _rate(cost: OperationCost, hardware: Hardware, precision: str) -> str:
    """Return what one call achieves: FLOP/s with its share of the peak, or bytes/s."""
    from perfmodel.base.units import format_si

    if not cost.time:
        return ""
    if not cost.flops:
        return format_si(cost.traffic / cost.time, "B/s", even=True)
    rate = cost.flops / cost.time
    peak = hardware.device.peak(precision)
    return f"{format_si(rate, 'FLOP/s', even=True)} ({100 * rate / peak:.0f} %)"
