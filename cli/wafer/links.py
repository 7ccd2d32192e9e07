"""Links of a wafer: collectives over cores, places of nodes, tokens of experts, pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.units import format_size, format_time
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import model_option, say_remarks
from perfmodel.cli.shared.options import options_of, page
from perfmodel.cli.shared.printing import activity, heading, print_json, remark, table
from perfmodel.cli.shared.types import One, Paths
from perfmodel.cli.wafer.options import (
    BYTES,
    complete_meshes,
    elements_options,
    given_system,
    system_options,
    tell_routing,
    tokens_options,
)

# ``perfmodel wafer collective``: sums and copies over the cores of a mesh.


@click.command(
    "collective", **page("wafer", "wafer collective", "Time sums and copies over cores.")
)
@click.argument("collective", metavar="COLLECTIVE")
@options_of("wafer.mesh", "hardware", type=One(Paths()), shell_complete=complete_meshes)
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
    """Time all_reduce, reduce, broadcast or all_gather over a row or rectangle of cores."""
    from perfmodel.hwprofiles import load_mesh
    from perfmodel.kernels.variables import SCHEMA_VERSION
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


# ``perfmodel wafer place``: where the nodes of groups stand on a wafer.

if TYPE_CHECKING:
    from perfmodel.wafer.placement import GroupBytes, Placement
    from perfmodel.wafer.system import WaferSystem


PLACES_VERSION = "1.0"


@click.command("place", **page("wafer", "wafer place", "Place the nodes of groups on a wafer."))
@model_option
@options_of("wafer.place", "phase")
@options_of("wafer.systems", "batch")
@options_of("wafer.place", "isl")
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
    """Find places of nodes so that the messages of a layer load the busiest link least."""
    from perfmodel.model.presets import load_model
    from perfmodel.wafer.placement import layer_bytes, place_groups

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
        "schema_version": PLACES_VERSION,
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


# ``perfmodel wafer experts``: what tokens on their way to experts load on a wafer's links.

if TYPE_CHECKING:
    from perfmodel.wafer.experts import ExpertTraffic


@click.command(
    "experts", **page("wafer", "wafer experts", "Load a wafer's links with experts' tokens.")
)
@model_option
@options_of("wafer.mesh", "hardware", type=One(Paths()), shell_complete=complete_meshes)
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
    """Route the tokens of all layers with experts over a wafer's nodes, there and back."""
    from perfmodel.hwprofiles.mesh_loader import load_mesh
    from perfmodel.model.presets import load_model
    from perfmodel.wafer.experts import expert_traffic, routed_layers
    from perfmodel.wafer.routing import core_routing
    from perfmodel.wafer.setting import CoreSetting

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


# ``perfmodel plot wafer``: an operation on the nodes, cores and links of a wafer.


@click.command("wafer", **page("wafer", "plot wafer", "Draw an operation on a wafer."))
@click.argument("workload", metavar="WORKLOAD", type=click.Path())
@options.options_of("wafer.plot", "step", "operation", "layer", "system", "output")
@options.json_option
@options.verbosity_options
def wafer_command(
    workload: str,
    step: str,
    operation: str,
    layer: str,
    system: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Draw what an operation brings over the links of a wafer, and what each core does."""
    from perfmodel.base.figures import check_plot
    from perfmodel.base.files import check_writable
    from perfmodel.wafer.figures import link_loads, read_drawn, save_wafer

    check_plot(output)
    check_writable(output)
    with activity(f"reading {workload}"):
        drawn = read_drawn(workload, step, operation, layer, system)
    save_wafer(drawn, output)
    loads = link_loads(drawn.traffic, drawn.system)
    if as_json:
        print_json(
            {
                "schema_version": "1",
                "output": output,
                "step": step,
                "operation": operation,
                "multiply_adds": float(drawn.traffic.macs.sum()),
                "bytes_between_cores": float(drawn.traffic.sizes.sum()),
                "byte_hops": loads.hops,
                "busiest_link_bytes": loads.busiest,
            }
        )
        return
    remark(f"busiest link {format_size(loads.busiest)}, longest way {loads.longest} links")
    click.echo(output)
