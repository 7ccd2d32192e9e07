"""``perfmodel plot``: pictures of workloads."""

from __future__ import annotations

import click

from perfmodel.cli.group import CommandGroup
from perfmodel.cli.plot.wafer import wafer_command


@click.group("plot", cls=CommandGroup, short_help="Draw workloads.")
def plot_group() -> None:
    """Draw what a workload does, as PNG, SVG or PDF.

    \b
    Examples:
      perfmodel plot wafer out/ --step decode0 --operation wkv_a -o wkv_a.png

    Networks are drawn by 'perfmodel topology plot', measured runs by 'perfmodel compare --plot'.
    """


plot_group.add_command(wafer_command)
