"""``perfmodel collective``: the time of collectives, one or a grid of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from perfmodel.base.units import format_si, format_size, format_time
from perfmodel.base.wings import wing_module
from perfmodel.cli.core.kernel import NUMBER, output_options, run_grid, show_grid
from perfmodel.cli.shared import options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import say, table
from perfmodel.cli.shared.tables import as_written
from perfmodel.cli.shared.types import Words

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles import Hardware

GROUP, ASTRA = "Operation and group", "As ASTRA-sim"
ENGINES = ("congestion-unaware", "congestion-aware")
# Result -> heading of its column.
HEADINGS = {
    "time": "time",
    "algorithm_bandwidth": "algbw",
    "bus_bandwidth": "busbw",
    "chosen_algorithm": "algorithm",
    "chosen_protocol": "protocol",
}
# Axes whose own name is the heading of a result.
AXIS_HEADINGS = {"algorithm": "asked algorithm", "protocol": "asked protocol"}


@click.command("collective", **page("core", "collective", "Time collectives."))
@click.argument("collective", metavar="COLLECTIVE,…", type=Words())
@options.options_of(
    "core.collective", "size", "members", "members_per_node", "stride", "algorithm", "protocol"
)
@options.options_of("shared.common", "several_hardware", section=options.HARDWARE)
@options.set_option
@options.sweep_option
@options.options_of("core.collective", "astra_network", "astra_system")
@options.options_of("core.collective", "engine", type=click.Choice(ENGINES), default=ENGINES[0])
@output_options
@click.pass_context
def collective_command(
    ctx: click.Context,
    collective: list[str],
    size: list[int],
    members: list[int] | None,
    members_per_node: list[int] | None,
    stride: list[int] | None,
    algorithm: list[str],
    protocol: list[str],
    hardware: list[str] | None,
    settings: Mapping[str, Any],
    swept: Mapping[str, Any],
    astra_network: str | None,
    astra_system: str | None,
    engine: str,
    output: str | None,
    shown: int,
    as_json: bool,
) -> None:
    """Time collectives of groups of devices, as NCCL and RCCL run them."""
    if astra_network is not None or astra_system is not None:
        if astra_network is None or astra_system is None:
            missing = "--astra-network" if astra_network is None else "--astra-system"
            raise click.UsageError(f"Missing option '{missing}'.", ctx)
        _refuse_in_astra_mode(ctx)
        _run_astra(collective, size, astra_network, astra_system, engine, output, shown, as_json)
        return
    if ctx.get_parameter_source("engine") == ParameterSource.COMMANDLINE:
        raise click.UsageError("--engine goes with --astra-network and --astra-system only", ctx)
    for value, option in ((hardware, "--hardware"), (members, "--members")):
        if not value:
            raise click.UsageError(f"Missing option '{option}'.", ctx)
    if members_per_node and stride:
        raise click.UsageError("--members-per-node and --stride both place a group: give one", ctx)
    axes: dict[str, list[Any]] = {
        "collective": collective,
        "algorithm": algorithm,
        "protocol": protocol,
        "size": size,
        "members": members or [],
    }
    if members_per_node:
        axes["members_per_node"] = members_per_node
    else:
        axes["stride"] = stride or [1]

    def evaluate(rows: list[Hardware], values: Mapping[str, list[float]]) -> Table:
        from perfmodel.sweeps.collective_grids import collective_grid

        return collective_grid(rows, axes, swept=values)

    run_grid(evaluate, hardware or [], settings, swept, output, shown, as_json, _tabulate)


def _run_astra(
    kinds: list[str],
    sizes: list[int],
    network: str,
    system: str,
    engine: str,
    output: str | None,
    shown: int,
    as_json: bool,
) -> None:
    """Time collectives as ASTRA-sim would, and print or write them."""
    from perfmodel.store.files import check_results_path

    formats = wing_module("perfmodel.workloads.formats.astra_files")
    astra_grid = wing_module("perfmodel.workloads.twins.datasets").astra_grid
    files = formats.read_network(network), formats.read_system(system)
    if output is not None:
        output = check_results_path(output)
    label = PurePath(network).name
    show_grid(
        astra_grid(*files, kinds, sizes, engine=engine, label=label),
        output,
        shown,
        as_json,
        _tabulate,
    )


def _tabulate(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, bool], total: int) -> None:
    """Print the rows: axes that vary, the size, and the results."""
    varied = [name for name, several in axes.items() if several or name == "size"]
    headers = [AXIS_HEADINGS.get(name, name) for name in varied]
    left = [i for i, name in enumerate(varied) if isinstance(rows[0][name], str)]
    results = [name for name in HEADINGS if name in rows[0]]
    left += [len(headers) + i for i, name in enumerate(results) if name.startswith("chosen")]
    headers += [HEADINGS[name] for name in results]
    reasons = [_reason(row) for row in rows]
    if any(reasons):
        left.append(len(headers))
        headers.append("")
    lines = [
        [
            *(_axis_cell(name, row[name]) for name in varied),
            *(_result_cell(name, row[name]) for name in results),
            *([reason] if any(reasons) else []),
        ]
        for row, reason in zip(rows, reasons, strict=True)
    ]
    spare = [len(varied) + results.index("algorithm_bandwidth")]
    click.echo(table(headers, lines, left=left, spare=spare))
    fixed = [
        f"{name} {_axis_cell(name, rows[0][name])}"
        for name in axes
        if name not in varied and rows[0][name] != "auto"
    ]
    if fixed:
        say(f"all: {' · '.join(fixed)}", 5)
    if total > len(rows):
        click.echo(f"… and {total - len(rows):,} more; --lines, --json or -o FILE.nc shows them")


def _reason(row: Mapping[str, Any]) -> str:
    from perfmodel.sweeps.collective_grids import STATUS_REASONS

    return STATUS_REASONS.get(row.get("status", "ok"), "")


def _axis_cell(name: str, value: Any) -> str:
    return format_size(value) if name == "size" else as_written(value, NUMBER)


def _result_cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        return "–" if value == "none" else value
    if not math.isfinite(value):
        return "–"
    return format_time(value) if name == "time" else format_si(value, "B/s", even=True)


def _refuse_in_astra_mode(ctx: click.Context) -> None:
    """Refuse options that say something about another system than ASTRA-sim's."""
    for name in ("hardware", "members", "members_per_node", "stride", "algorithm", "protocol",
                 "settings", "swept"):  # fmt: skip
        if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            option = next(param.opts[0] for param in ctx.command.params if param.name == name)
            raise click.UsageError(f"{option} does not go with --astra-network", ctx)
