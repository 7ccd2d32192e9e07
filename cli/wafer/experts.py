"""``perfmodel wafer experts``: what tokens on their way to experts load on a wafer's links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.units import format_size, format_time
from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option
from perfmodel.cli.shared.options import options_of
from perfmodel.cli.shared.printing import activity, print_json, remark, table
from perfmodel.cli.wafer.options import complete_meshes
from perfmodel.cli.wafer.systems import (
    BYTES,
    elements_options,
    given_system,
    system_options,
    tell_routing,
    tokens_options,
)

if TYPE_CHECKING:
    from perfmodel.wafer.experts import ExpertTraffic

EXCHANGE = "Exchange and placement"


@click.command("experts", cls=Command, short_help="Load a wafer's links with experts' tokens.")
@model_option
@options_of("wafer.experts", "hardware", shell_complete=complete_meshes)
@tokens_options
@elements_options
@system_options
@options_of("wafer.experts", "phase", "exchange", "placement", "by_layer")
@options.json_option
@options.verbosity_options
def experts_command(
    model: str,
    reading: Mapping[str, Any],
    hardware: str,
    phase: str,
    exchange: tuple[str, ...],
    placement: tuple[str, ...],
    by_layer: bool,
    as_json: bool,
    **problem: Any,
) -> None:
    """Route the tokens of all layers with experts over a wafer's nodes, there and back.

    Says what the hottest link carries, how long the two exchanges take, and which node's experts
    are last. Tokens go along rows of nodes, then along columns.

    \b
    Examples:
      perfmodel wafer experts --model deepseek-v3 --hardware wse-2 --system wafer.json \\
          --batch 1024 --isl 2048 --routing two_level
      perfmodel wafer experts --model mixtral-8x7b --hardware wse-3 --node-grid 2x4 --ep 8 --tp 8 \\
          --batch 64 --by-layer
    """
    from perfmodel.hwprofiles.mesh_loader import load_mesh
    from perfmodel.model.presets import load_model
    from perfmodel.wafer.cores.routing import core_routing
    from perfmodel.wafer.cores.setting import CoreSetting
    from perfmodel.wafer.experts import expert_traffic, routed_layers

    spec, mesh = load_model(model, **reading), load_mesh(hardware)
    system = given_system(problem, phase)
    setting = CoreSetting(
        spec, system, phase, problem["batch"], problem["isl"], problem["speculative"]
    )
    routing = core_routing(setting, problem["routing"] or system.routing, problem["seed"])
    with activity("routing tokens"):
        routed = routed_layers(spec, routing)
        found = {
            (kind, place): expert_traffic(
                spec,
                system,
                routed,
                mesh,
                dispatch=kind,
                combine=kind,
                placement=place,
                precision=problem["precision"],
                element_bytes=BYTES[problem["precision"]],
            )
            for place in placement
            for kind in exchange
        }
    tell_routing(problem, system)
    if as_json:
        print_json(
            {
                "schema_version": "1",
                "model": spec.name,
                "hardware": mesh.name,
                "results": [
                    {"exchange": kind, "placement": place, **one.to_dict()}
                    for (kind, place), one in found.items()
                ],
            }
        )
        return
    for text in {text for one in found.values() for text in one.remarks}:
        remark(text)
    rows = [
        [kind, place, *_cells(one, at)]
        for (kind, place), one in found.items()
        for at in (range(one.layers.size) if by_layer else [None])
    ]
    head = [
        "exchange",
        "experts",
        "layer",
        "dispatch",
        "combine",
        "products",
        "hottest link",
        "/ mean",
        "nodes",
        "bytes x links",
        "straggler / mean",
        "node",
    ]
    keep = [at for at in range(len(head)) if by_layer or at not in (2, 8, 11)]
    click.echo(table([head[at] for at in keep], [[row[at] for at in keep] for row in rows]))


def _cells(found: ExpertTraffic, at: int | None) -> list[str]:
    """Return what a row of the table says of a layer, or of all in the mean."""

    def value(column: Any) -> float:
        return float(column.mean() if at is None else column[at])

    return [
        "mean" if at is None else str(found.layers[at]),
        format_time(value(found.dispatch_time)),
        format_time(value(found.combine_time)),
        format_time(value(found.expert_time)),
        format_size(value(found.hottest_link)),
        f"{value(found.link_imbalance):.2f}",
        "" if at is None else f"{found.hottest_from[at]} to {found.hottest_to[at]}",
        format_size(value(found.dispatch_hops + found.combine_hops)),
        f"{value(found.straggler_ratio):.2f}",
        "" if at is None else str(found.straggler[at]),
    ]
