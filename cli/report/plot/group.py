"""``perfmodel plot``: figures of results and of workloads."""

from __future__ import annotations

import click

from perfmodel.cli.group import CommandGroup, add_commands_of_wings
from perfmodel.cli.report.plot.kinds import COMMANDS


@click.group("plot", cls=CommandGroup, short_help="Draw figures of results and workloads.")
def plot_group() -> None:
    """Draw figures for papers: SVG, PDF or PNG, or a page to point and zoom in.

    RESULT is what other commands wrote with -o. Colours can be told apart whatever one's colour
    vision; text stays text. What a caption should say is printed on stderr.

    \b
    Examples:
      perfmodel plot pareto sweep.nc -o pareto.svg
      perfmodel plot breakdown sweep.nc --each hardware -o breakdown.pdf
      perfmodel plot heatmap sweep.nc --x tp --y pp --where 'hardware == "dgx-h100"'
      perfmodel plot wafer out/ --step decode0 --operation wkv_a -o wkv_a.png

    Networks are drawn by 'perfmodel topology plot'. docs/plots.md shows one of each.
    """


for command in COMMANDS:
    plot_group.add_command(command)
add_commands_of_wings(plot_group)
