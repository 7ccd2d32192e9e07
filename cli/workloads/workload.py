"""``perfmodel workload``: write, convert and describe workload files."""

from __future__ import annotations

import click

from perfmodel.cli.group import CommandGroup, add_commands_of_wings
from perfmodel.cli.shared.options import page
from perfmodel.cli.workloads.workload_files import (
    aicb_command,
    aiob_command,
    astra_text_command,
    chakra_command,
    is_projection,
    projected_aicb_command,
)
from perfmodel.cli.workloads.workload_traces import (
    convert_command,
    show_command,
    stage_command,
    synthetic_command,
)


class WorkloadGroup(CommandGroup):
    """The commands of workloads; ``aicb`` is two: with AICB's options, and with ours."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take ``aicb --model …`` for a projection of one of our models."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is aicb_command and is_projection(rest):
            return name, projected_aicb_command, rest
        return name, command, rest


@click.group(
    "workload",
    **page("workloads", "workload", "Write, convert and describe workloads.", WorkloadGroup),
)
def workload_group() -> None:
    """Write workload files with predicted times, without a GPU; convert others' files."""


for _command in (
    aicb_command,
    aiob_command,
    astra_text_command,
    chakra_command,
    stage_command,
    synthetic_command,
    convert_command,
    show_command,
):
    workload_group.add_command(_command)
add_commands_of_wings(workload_group)
