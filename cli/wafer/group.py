"""``perfmodel wafer``: models on meshes of cores."""

from __future__ import annotations

import click

from perfmodel.cli.group import CommandGroup, LateCommands
from perfmodel.cli.shared.options import page

DEFAULT = "project"
HOMES = {
    "project": (
        "perfmodel.cli.wafer.project:project_command",
        "Project a model on a mesh of cores.",
    ),
    "collective": (
        "perfmodel.cli.wafer.links:collective_command",
        "Time sums and copies over cores.",
    ),
    "place": (
        "perfmodel.cli.wafer.links:place_command",
        "Place the nodes of groups on a wafer.",
    ),
    "experts": (
        "perfmodel.cli.wafer.links:experts_command",
        "Load a wafer's links with experts' tokens.",
    ),
}
"""Commands of the group; more are lines here."""


class WaferGroup(CommandGroup):
    """Commands of wafers; what names none of them is asked of ``project``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``wafer --model …`` for ``wafer project --model …``."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group(
    "wafer",
    commands=LateCommands(HOMES),
    **page("wafer", "wafer", "Project models on wafer-scale engines.", WaferGroup),
)
def wafer_group() -> None:
    """Project models on wafer-scale engines and other meshes of cores."""
