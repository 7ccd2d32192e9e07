"""``perfmodel wafer place``: where the nodes of groups stand on a wafer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.units import format_size
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option, say_remarks
from perfmodel.cli.shared.options import option
from perfmodel.cli.shared.printing import heading, print_json, table
from perfmodel.cli.shared.types import WholeRange
from perfmodel.cli.wafer.systems import given_system, system_options

if TYPE_CHECKING:
    from perfmodel.wafer.search.placement import GroupBytes, Placement
    from perfmodel.wafer.system import WaferSystem


SCHEMA_VERSION = "1.0"


@click.command("place", cls=Command, short_help="Place the nodes of groups on a wafer.")
@model_option
@option(
    "--phase",
    section=options.PROBLEM,
    type=click.Choice(["decode", "prefill"]),
    default="decode",
    show_default=True,
    help="A token of every sequence, or whole prompts.",
)
@option(
    "--batch",
    section=options.PROBLEM,
    type=WholeRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Sequences of all data-parallel clusters.",
)
@option(
    "--isl",
    section=options.PROBLEM,
    type=WholeRange(1),
    default=32,
    show_default=True,
    metavar="N",
    help="Tokens of a prompt, for prefill.",
)
@system_options
@options.json_option
@options.verbosity_options
def place_command(
    model: str,
    reading: Mapping[str, Any],
    phase: str,
    batch: int,
    isl: int,
    as_json: bool,
    **problem: Any,
) -> None:
    """Find places of nodes so that the messages of a layer load the busiest link least.

    Sums over tensor and sequence ranks go as rings, the exchange of experts from every node of a
    stage to every other, all along rows of the node grid first. Activations have 16 bit.

    \b
    Examples:
      perfmodel wafer place --model deepseek-v3 --system wafer.json --batch 1024
      perfmodel wafer place --model llama-3-70b --tp 8 --pp 4 --node-grid 4x8 --batch 16
    """
    from perfmodel.model.presets import load_model
    from perfmodel.wafer.search.placement import layer_bytes, place_groups

    spec = load_model(model, **reading)
    say_remarks([spec])
    system = given_system(problem, phase)
    sent = layer_bytes(spec, system, batch=batch, length=isl if phase == "prefill" else 1)
    found = place_groups(system, sent)
    if as_json:
        print_json(_document(spec.name, system, sent, found))
    else:
        _show(spec.name, system, sent, found)


def _document(
    model: str, system: WaferSystem, sent: GroupBytes, found: Placement
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "units": {"sent": "B", "busiest_link": "B", "bytes_times_links": "B"},
        "node_grid": list(system.node_grid),
        "sent": {name: getattr(sent, name) for name in sent.__dataclass_fields__},
        "places": found.places.tolist(),
        "blocks": {name: list(block) for name, block in found.blocks.items()},
        "given": {"busiest_link": found.given.busiest, "bytes_times_links": found.given.hops},
        "found": {"busiest_link": found.cost.busiest, "bytes_times_links": found.cost.hops},
    }


def _show(model: str, system: WaferSystem, sent: GroupBytes, found: Placement) -> None:
    rows, columns = system.node_grid
    click.echo(heading(f"{model} on {rows} × {columns} nodes: messages of a layer"))
    lines = [
        [name, format_size(one.busiest), format_size(one.hops)]
        for name, one in (("nodes in their order", found.given), ("places found", found.cost))
    ]
    click.echo(table(["", "busiest link", "bytes × links"], lines))
    click.echo()
    degrees = {
        "tensor": system.tensor_parallel,
        "sequence": system.sequence_parallel,
        "data": system.data_parallel,
        "pipeline": system.pipeline_parallel,
    }
    lines = [
        [name, f"{degree:,}", f"{high} × {wide}", format_size(getattr(sent, name))]
        for name, degree in degrees.items()
        if degree > 1
        for high, wide in (found.blocks[name],)
    ]
    if lines:
        click.echo(table(["group", "nodes", "rows × columns", "a node sends"], lines))
        click.echo()
    order = found.places.argsort().reshape(rows, columns)
    width = len(str(system.nodes - 1))
    click.echo("nodes on the wafer, by number:")
    for row in order.tolist():
        click.echo("  " + " ".join(f"{node:>{width}}" for node in row))
