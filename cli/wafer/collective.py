"""``perfmodel wafer collective``: sums and copies over the cores of a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.options import options_of
from perfmodel.cli.shared.printing import print_json, table
from perfmodel.cli.wafer.options import complete_meshes

GROUP = "Operation and cores"


@click.command("collective", cls=Command, short_help="Time sums and copies over cores.")
@click.argument("collective", metavar="COLLECTIVE")
@options_of("wafer.collective", "hardware", shell_complete=complete_meshes)
@options_of("wafer.collective", "grid", "size", "algorithm", "element_bytes", "simulate")
@options_of("wafer.collective", "set", callback=options.read_settings)
@options.json_option
@options.verbosity_options
def collective_command(
    collective: str,
    hardware: str,
    grid: list[str],
    size: list[int],
    algorithm: list[str] | None,
    element_bytes: int,
    simulated: bool,
    settings: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Time all_reduce, reduce, broadcast or all_gather over a row or rectangle of cores.

    \b
    Examples:
      perfmodel wafer collective all_reduce --hardware wse-2 --grid 1x420 --size 64,1KiB
      perfmodel wafer collective reduce --hardware wse-2 --grid 8x8 --size 256 --simulate \\
          --set constants.stage_latency=0

    Of an all-reduce over a row: what the busiest core takes [wavelets], the longest way [hops]
    and messages one after the other. One user of the mesh; see docs/meshes.md.
    """
    from perfmodel.base.units import format_size, format_time
    from perfmodel.base.variables import SCHEMA_VERSION
    from perfmodel.hwprofiles import load_mesh
    from perfmodel.kernels.wafer.reduce import ALGORITHMS
    from perfmodel.wafer.collectives import mesh_collective_times

    mesh = load_mesh(hardware, settings)
    found = mesh_collective_times(
        mesh, collective, grid, size, algorithm or ALGORITHMS, element_bytes, simulated
    )
    if as_json:
        rows = [one._asdict() for one in found]
        print_json({"schema_version": SCHEMA_VERSION, "hardware": mesh.name, "collectives": rows})
        return
    headers = ["grid", "size", "algorithm", "cycles", "time", "busiest core", "longest", "depth"]
    lines = [
        [
            f"{one.rows} x {one.columns}",
            format_size(one.size),
            one.algorithm,
            f"{one.cycles:,.0f}",
            format_time(one.time),
            *("–" if count is None else f"{count:,.0f}" for count in one[7:8]),
            *("–" if count is None else f"{count:,.0f}" for count in one[9:11]),
            *([] if not simulated else ["–" if one[11] is None else f"{one[11]:,}"]),
        ]
        for one in found
    ]
    headers += ["simulated"] if simulated else []
    click.echo(table(headers, lines, left=(0, 2)))
