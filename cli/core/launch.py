"""``perfmodel launch``: what starts a chosen strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError
from perfmodel.base.fields import refuse_unused
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.base.version import __version__
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import (
    assumed,
    assumed_text,
    check_acts,
    load_rows,
    load_software,
    of_hardware,
)
from perfmodel.cli.shared.launch_file import (
    SERVERS,
    SWEPT,
    from_option,
    given_options,
    pick_options,
    picked_row,
    software_defaults_of,
    stated_framework,
    stated_launch,
    stated_model,
)
from perfmodel.cli.shared.models import READING, model_option, say_remarks
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import print_json, remark
from perfmodel.kernels.variables import RATE
from perfmodel.launch import MODULES

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.launch.describe import Launch

# What is needed of a strategy without a results file.
NEEDED = ("model", "devices", "global_batch_size", "sequence_length")
STATED = (
    *("model", *READING, "hardware", "devices", "settings", "framework"),
    *(spec.name for spec in FIELDS),
)


@click.command("launch", **page("core", "launch", "Write what starts a chosen strategy."))
@click.argument("file", metavar="[FILE]", required=False, type=click.Path())
@options.options_of("core.launch", "for", type=click.Choice([*MODULES, *SERVERS]))
@pick_options
@from_option
@model_option
@options.hardware_option
@options.devices_option
@options.axis_options(single=True)
@options.stage_layers_option
@options.set_option
@options.framework_option
@options.config_option
@options.output_option("FILE", "Write it to a file, completely or not at all.")
@options.json_option
@options.verbosity_options
@click.pass_context
def launch_command(
    ctx: click.Context,
    file: str | None,
    software: str,
    pick: int | None,
    by: str | None,
    where: str | None,
    everything: bool,
    output: str | None,
    as_json: bool,
    **problem: Any,
) -> None:
    """Write the arguments or the configuration file that start a strategy."""
    from perfmodel.base.files import check_writable
    from perfmodel.launch.software import (
        format_launch,
        keys_of,
        not_held,
        prepared,
        software_preset,
        software_title,
    )

    if output is not None:
        output = str(check_writable(output))
    if software in SERVERS:
        picked = (pick or 1, by or RATE, where, everything)
        _launch_servers(ctx, file, software, picked, output, as_json)
        return
    if file is not None:
        refuse_unused(
            given_options(),
            (),
            {"a strategy without a results file": STATED, "a run without one": ("from",)},
            f"this strategy comes from '{file}'",
        )
        launch, header = _picked(ctx, file, pick or 1, by or RATE, where, everything)
    else:
        refuse_unused(
            given_options(), (), {"a results file": SWEPT}, "name one, or leave the option out"
        )
        launch, header = _stated(ctx, problem, software_preset(software))
    launch, notes = prepared(software, launch)
    notes += not_held(software, launch)
    header = [*header, *notes, f"written by perfmodel {__version__}"]
    text = format_launch(software, launch, header)
    if as_json:
        document = _document(software, launch, notes) | {
            "title": software_title(software),
            "settings": keys_of(software, launch),
            "text": text,
            "output": output,
        }
        print_json(document)
    elif output is None:
        click.echo(text, nl=False)
    for note in notes:
        remark(f"note: {note}")
    if output is not None:
        _write(output, text)
        remark(f"wrote {output}")


def _launch_servers(
    ctx: click.Context,
    file: str | None,
    software: str,
    picked: tuple[int, str, str | None, bool],
    output: str | None,
    as_json: bool,
) -> None:
    """Write the commands that start the workers of a deployment."""
    from perfmodel.kernels.variables import SCHEMA_VERSION
    from perfmodel.launch.served import find_server, format_served, pools_of_row, served_lines
    from perfmodel.launch.software import chosen_by
    from perfmodel.software.engine import load_engine

    if file is None:
        raise click.UsageError(f"--for {software} needs a FILE that 'perfmodel serve -o' wrote")
    table, row = picked_row(ctx, file, *picked)
    if "deployment" not in table.sizes:
        what = "mappings of meshes" if "mapping" in table.sizes else "training steps"
        raise DataError(f"'{file}' holds {what}; {software} runs what 'perfmodel serve' finds")
    wanted = load_engine(software).engine
    pools = pools_of_row(row, table.attrs, file)
    notes = []
    if pools[0].engine != wanted:
        pools = [replace(pool, engine=wanted) for pool in pools]
        notes.append(f"projected as {row['engine']}; {software} schedules and computes otherwise")
    said = served_lines(row, pools[0].model, chosen_by(picked[0], file, picked[1], picked[2]))
    text = format_served(pools, [*said, *notes, f"written by perfmodel {__version__}"])
    if as_json:
        keys = [find_server(wanted).keys_of(pool) for pool in pools]
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "software": software,
                "model": pools[0].model,
                "pools": [
                    {"part": pool.part, "workers": pool.count, "settings": settings}
                    for pool, settings in zip(pools, keys, strict=True)
                ],
                "remarks": notes,
                "text": text,
                "output": output,
            }
        )
    elif output is None:
        click.echo(text, nl=False)
    for note in notes:
        remark(f"note: {note}")
    if output is not None:
        _write(output, text)
        remark(f"wrote {output}")


# FILE, or --from, may state all of these.
for _param in launch_command.params:
    if _param.name in (*NEEDED, "hardware"):
        _param.required = False


def _picked(
    ctx: click.Context, file: str, pick: int, by: str, where: str | None, everything: bool
) -> tuple[Launch, list[str]]:
    """Return the chosen strategy of a sweep, and lines that say which it is."""
    from perfmodel.launch.software import chosen_by, launch_of_row

    table, row = picked_row(ctx, file, pick, by, where, everything)
    if "deployment" in table.sizes:
        raise DataError(
            f"'{file}' holds served models; --for {', '.join(SERVERS)} writes what starts them"
        )
    return launch_of_row(table, row, file, chosen_by(pick, file, by, where))


def _stated(
    ctx: click.Context, problem: Mapping[str, Any], preset: str
) -> tuple[Launch, list[str]]:
    """Return the strategy that the options name, and lines that say which it is."""
    from perfmodel.analysis.single import one_strategy
    from perfmodel.launch.describe import Launch
    from perfmodel.launch.software import filled_nodes
    from perfmodel.training.project import run_of

    for param in ctx.command.params:
        if param.name in NEEDED and problem[param.name] is None:
            raise click.MissingParameter(ctx=ctx, param=param)
    model = stated_model(problem["model"], problem["reading"])
    say_remarks([model])
    devices = int(problem["devices"])
    framework = stated_framework(problem["framework"])
    framework = load_software(framework or preset, problem["settings"])
    axes = {spec.name: problem[spec.name] for spec in FIELDS}
    named = problem["hardware"]
    hardware = _hardware(named, problem["settings"]) if named is not None else None
    defaults = software_defaults_of(framework)
    grid = one_strategy(model, devices, axes, defaults, hardware=hardware)
    read = stated_launch()
    per_node = read.devices_per_node if read is not None else 0
    domain = read.domain if read is not None else 0
    where, run = "", None
    if hardware is not None:
        per_node, where = hardware.system.devices_per_node, f" of {hardware.name}"
        domain = hardware.system.network[0].size
        run = run_of(model, hardware, str(grid.row(0)["precision"]))
    launch = Launch(
        grid.row(0),
        framework,
        model,
        devices,
        filled_nodes(devices, per_node or 8),
        filled_nodes(devices, domain or per_node or 8),
        run=run,
        remarks=read.remarks if read is not None else (),
    )
    lines = [f"{model.name} on {devices:,} devices{where}, as {framework.name}"]
    if found := assumed(framework, grid, axes):
        lines.append(assumed_text(found))
    return launch, lines


def _hardware(name: str, settings: Mapping[str, Any]) -> Hardware:
    (hardware,), _ = load_rows([name], of_hardware(settings), {})
    check_acts([name], settings, {}, _placed)
    return hardware


def _placed(rows: list[Hardware], most: int) -> list[object]:
    """Return what a launch file says of the hardware."""
    return [(it.system.devices_per_node, it.system.network[0].size) for it in rows]


def _document(software: str, launch: Launch, notes: list[str]) -> dict[str, Any]:
    from perfmodel.kernels.variables import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "software": software,
        "model": launch.model.name if launch.model is not None else None,
        "framework": launch.framework.name,
        "devices": launch.devices,
        "devices_per_node": launch.devices_per_node,
        "strategy": dict(launch.strategy),
        "remarks": notes,
    }


def _write(path: str, text: str) -> None:
    from perfmodel.base.files import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
