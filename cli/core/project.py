"""``perfmodel project``: one strategy on one hardware profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from perfmodel.base.strategy_fields import FIELDS
from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import cost_options, print_cost
from perfmodel.cli.shared.inputs import (
    assumed,
    assumed_text,
    check_acts,
    load_rows,
    load_software,
    of_hardware,
)
from perfmodel.cli.shared.launch_file import (
    from_option,
    software_defaults_of,
    stated_framework,
    stated_model,
)
from perfmodel.cli.shared.models import reading_document, say_remarks, tuned_model_option
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import (
    detail,
    heading,
    percent,
    print_json,
    remark,
    say,
    strategy_label,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid


strategy_options = options.stack(
    from_option,
    tuned_model_option,
    options.hardware_option,
    options.devices_option,
    options.axis_options(single=True),
    options.stage_layers_option,
    options.schedule_file_option,
    options.set_option,
    options.framework_option,
)
"""The options that name one strategy on one profile; `load_problem` takes their values."""


@click.command("project", **page("core", "project", "Project one strategy."))
@strategy_options
@cost_options
@options.config_option
@options.safe_option
@options.json_option
@options.verbosity_options
@click.pass_context
def project_command(
    ctx: click.Context, costs: Mapping[str, Any], safe: bool, as_json: bool, **stated: Any
) -> None:
    """Project the training step of one strategy: time, throughput, MFU and memory."""
    found = projected(stated, costs)
    row = found.row
    if safe:
        row["fits"], row["tight"] = row["fits"] and not row["tight"], False
    if as_json:
        print_json(projection_header(found) | row | placement_rows(found.grid, found.hardware))
    else:
        print_projection(found)
    suggest_interleaving(found.model, found.grid, row)
    warn_if_too_large(ctx, row, found.hardware)


class Projected(NamedTuple):
    """One strategy on one profile, its results in SI units, and the options that were assumed."""

    model: ModelSpec
    grid: StrategyGrid
    hardware: Hardware
    framework: Framework
    row: dict[str, Any]
    assumed: dict[str, Any]


def load_problem(
    stated: Mapping[str, Any], costs: Mapping[str, Any] | None = None
) -> tuple[ModelSpec, StrategyGrid, Hardware, Framework]:
    """Load and check what the values of `strategy_options` name, cheapest first."""
    from perfmodel.analysis.single import one_strategy
    from perfmodel.base.units import format_si

    spec = stated_model(stated["model"], stated["reading"])
    say_remarks([spec])
    parameters = format_si(float(spec.parameter_count()))
    detail(f"model {spec.name}: {parameters} parameters in {spec.num_layers:,} layers")
    settings = stated["settings"]
    (device,), _ = load_rows([stated["hardware"]], of_hardware(settings), {})
    software = load_software(stated_framework(stated["framework"]), settings)
    device.device.peak(stated["precision"] or "bf16")  # refuses one that the device lacks
    table = click.get_current_context().meta.get(options.SCHEDULE_FILE)
    axes = {spec.name: stated[spec.name] for spec in FIELDS}
    grid = one_strategy(
        spec, stated["devices"], axes, software_defaults_of(software), table, device
    )
    check_acting(spec, software, grid, stated, costs)
    return spec, grid, device, software


def check_acting(
    model: ModelSpec,
    software: Framework,
    grid: StrategyGrid,
    stated: Mapping[str, Any],
    costs: Mapping[str, Any] | None,
) -> None:
    """Refuse a number of the hardware that cannot change the projection of some strategies."""
    from perfmodel.analysis.acting import training_results
    from perfmodel.sweeps.sweep import Problem

    if of_hardware(stated["settings"]):
        results = training_results([Problem(model, software, grid)], costs or None)
        check_acts([stated["hardware"]], stated["settings"], {}, results, costed=bool(costs))


def projected(stated: Mapping[str, Any], costs: Mapping[str, Any] | None = None) -> Projected:
    """Project what the values of `strategy_options` name, with its costs where asked for."""
    from perfmodel.analysis.projection import project_strategy

    problem = load_problem(stated, costs)
    row = project_strategy(*problem, costs)
    return Projected(*problem, row, assumed(stated["framework"], problem[1], stated))


def projection_header(found: Projected) -> dict[str, Any]:
    """Return what the JSON of one projection begins with."""
    from perfmodel.kernels.variables import COSTS, SCHEMA_VERSION, VARIABLES

    units = {name: it.units for name, it in {**VARIABLES, **COSTS}.items() if name in found.row}
    return {
        "schema_version": SCHEMA_VERSION,
        "model": found.model.name,
        "framework": found.framework.name,
        **reading_document([found.model]),
        "assumed": found.assumed,
        "devices": found.grid.devices,
        "units": units,
    }


def placement_rows(grid: StrategyGrid, hardware: Hardware) -> dict[str, Any]:
    """Return where the groups of every axis lie, and how far constants are trusted, for JSON."""
    import dataclasses

    from perfmodel.strategy.mapping import placement
    from perfmodel.sweeps.trust import trust_document

    groups = [dataclasses.asdict(group) for group in placement(grid, hardware)]
    return {"placement": groups, "constants_trust": trust_document(hardware)}


def print_projection(found: Projected) -> None:
    """Print one projection."""
    from perfmodel.base.units import format_si
    from perfmodel.cli.shared.tables import print_memory, print_placement, print_time
    from perfmodel.hwprofiles.rows import novelties
    from perfmodel.software.framework import product
    from perfmodel.strategy.mapping import placement

    print_title(found)
    row, hardware = found.row, found.hardware
    causal, full = row["model_flops_utilization"], row["model_flops_utilization_non_causal"]
    peak = format_si(hardware.device.peak(row["precision"]), "FLOP/s", 4)
    click.echo(f"tokens per second and device  {row['tokens_per_second_per_device']:,.1f}")
    say(
        f"model FLOPs utilization       {percent(causal)} of {peak} ({row['precision']}); "
        f"{percent(full)} counting full-square attention",
        30,
    )
    click.echo(f"hardware FLOPs utilization    {percent(row['hardware_flops_utilization'])}")
    click.echo()
    print_time(row)
    if new := novelties(hardware, product(found.framework)):
        width = percent(row["step_time_high"] / row["step_time"] - 1.0)
        say(f"{' and '.join(new)}: ±{width}", 0)
    click.echo()
    print_memory(row)
    print_cost(row)
    print_placement(
        placement(found.grid, hardware), [level.name for level in hardware.system.network]
    )


def print_title(found: Projected) -> None:
    """Print what is projected."""
    from perfmodel.base.provenance import LEVELS
    from perfmodel.base.units import counted
    from perfmodel.hwprofiles.trust import KERNELS
    from perfmodel.sweeps.trust import trust_words

    row, hardware = found.row, found.hardware
    devices = f"{found.grid.devices:,} × {hardware.device.name}"
    click.echo(heading(f"{found.model.name} on {devices} ({row['hardware']})"))
    click.echo(
        f"{counted(row['global_batch_size'], 'sequence')} of "
        f"{counted(row['sequence_length'], 'token')} per step, "
        f"{row['precision']}, {found.framework.name}"
    )
    click.echo(strategy_label(dict(row)))
    if found.assumed:
        say(assumed_text(found.assumed), 9)
    if any(hardware.trust(name) != LEVELS[0] for name in KERNELS):
        say(f"constants {trust_words(hardware)}", 10)
    click.echo()


BUBBLE = 0.15
"""Share of the step from which a pipeline's bubble is worth a word."""


def suggest_interleaving(model: ModelSpec, grid: StrategyGrid, row: Mapping[str, Any]) -> None:
    """Say how a large bubble of the pipeline would shrink."""
    from perfmodel.strategy.nearby import virtual_degrees

    share = row["pipeline_bubble"] / row["step_time"]
    if not share >= BUBBLE:
        return
    more = "more micro-batches per step (--global-batch) shrink it"
    finer = [degree for degree in virtual_degrees(model, grid) if degree > row["virtual_pipeline"]]
    if finer:
        degrees = ", ".join(map(str, finer))
        more = f"interleaved stages (--vpp {degrees}) or {more}"
    remark(f"note: {100 * share:.0f} % of the step is the pipeline's bubble; {more}")


def warn_if_too_large(ctx: click.Context, row: Mapping[str, Any], device: Hardware) -> None:
    """Warn and leave with code 3 where the strategy does not fit in memory."""
    from perfmodel.base.units import format_gib
    from perfmodel.kernels.variables import HOST_MEMORY

    if row["fits"]:
        return
    needed = f"{format_gib(row['memory_total'])} needed, {format_gib(row['memory_capacity'])} there"
    for name, capacity in HOST_MEMORY.items():
        there = getattr(device.system.host, capacity)
        if row["memory_total"] <= row["memory_capacity"] and row[name] > there:
            what = capacity.replace("_", " ")
            needed = f"{format_gib(row[name])} of the host's {what} needed per device, "
            needed += f"{format_gib(there)} there (system.host.{capacity})"
    click.echo(
        f"perfmodel: warning: does not fit: {needed}; the times are what it would take if it did",
        err=True,
    )
    ctx.exit(EXIT_NOTHING_FITS)
