"""``perfmodel topology``: networks link by link, and what operations bring over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.units import format_si, format_size, format_time
from perfmodel.cli.group import CommandGroup
from perfmodel.cli.shared import options
from perfmodel.cli.shared.inputs import check_acts, load_rows
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, print_json, remark, table
from perfmodel.cli.shared.types import Members
from perfmodel.workloads.links.dimensions import KINDS, Dimension

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from perfmodel.hwprofiles import Hardware
    from perfmodel.workloads.links.topology import Topology
    from perfmodel.workloads.schedules.schedule import Schedule


def words(dimension: Dimension) -> str:
    """Return name, kind and shape of a dimension in a few words."""
    shape = "x".join(map(str, dimension.shape))
    kind = f"{dimension.kind} {shape}"
    return f"{dimension.name} ({kind})" if dimension.name else kind


def facts(topology: Topology) -> dict[str, Any]:
    """Return the facts of a network in SI units."""
    from perfmodel.kernels.variables import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "devices": topology.device_count,
        "switches": topology.vertex_count - topology.device_count,
        "links": topology.link_count,
        "diameter": topology.diameter,
        "average_hops": topology.average_hops,
        "bisection_bandwidth": topology.bisection_bandwidth(),
        "dimensions": [
            {
                "name": item.label,
                "kind": item.kind,
                "shape": list(item.shape),
                "bandwidth": item.bandwidth,
                "latency": item.latency,
                "oversubscription": item.oversubscription,
                "link_bandwidths": _link_bandwidths(topology, index),
            }
            for index, item in enumerate(topology.dimensions)
        ],
    }


def _link_bandwidths(topology: Topology, dimension: int) -> list[float]:
    """Return the different bandwidths of the links of a dimension [B/s], ascending."""
    axes = [axis for axis in topology.axes if axis.dimension == dimension and axis.links]
    values = {axis.bandwidth for axis in axes} | {axis.core_bandwidth for axis in axes}
    return sorted(values - {0.0})


def facts_text(document: Mapping[str, Any]) -> str:
    """Return `facts` as text."""
    rows = [
        [
            item["name"],
            item["kind"],
            "x".join(map(str, item["shape"])),
            format_si(item["bandwidth"], "B/s"),
            ", ".join(format_si(value, "B/s") for value in item["link_bandwidths"]) or "–",
            format_time(item["latency"]),
            f"{item['oversubscription']:g}",
        ]
        for item in document["dimensions"]
    ]
    headers = ["dimension", "kind", "shape", "per device", "per link", "per hop", "oversubscribed"]
    facts = [
        ["devices", f"{document['devices']:,}"],
        ["switches", f"{document['switches']:,}"],
        ["links, directed", f"{document['links']:,}"],
        ["diameter", f"{document['diameter']} hops"],
        ["mean distance", f"{document['average_hops']:.4g} hops"],
        ["bisection bandwidth", format_si(document["bisection_bandwidth"], "B/s")],
    ]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name.ljust(width)}  {value}" for name, value in facts]
    return "\n".join([*lines, "", table(headers, rows, left=(0, 1, 2))])


def operation_document(
    topology: Topology, messages: Schedule, loads: NDArray[np.float64]
) -> dict[str, Any]:
    """Return an operation and the links that it uses, in SI units."""
    import numpy as np

    times = topology.link_times(loads)
    return {
        "collective": messages.collective,
        "algorithm": messages.algorithm,
        "members": messages.members,
        "size": messages.size,
        "steps": messages.steps,
        "messages": int(messages.bytes.size),
        "bytes_over_links": float(loads.sum()),
        "busiest_link_time": topology.load_time(loads),
        "links": [
            {
                "source": topology.vertex_name(int(topology.link_source[link])),
                "target": topology.vertex_name(int(topology.link_target[link])),
                "dimension": topology.dimensions[int(topology.link_dimension[link])].label,
                "bandwidth": float(topology.link_bandwidth[link]),
                "bytes": float(loads[link]),
                "time": float(times[link]),
            }
            for link in np.flatnonzero(loads)
        ],
    }


def operation_text(
    topology: Topology, messages: Schedule, loads: NDArray[np.float64], shown: int
) -> str:
    """Return what an operation brings over the links, the links of the longest time first."""
    document = operation_document(topology, messages, loads)
    links = sorted(document["links"], key=lambda item: -item["time"])
    title = heading(
        f"{messages.collective} {messages.algorithm}, {format_size(messages.size)}, "
        f"{messages.members} members; messages: {document['messages']:,}, steps: "
        f"{messages.steps:,}"
    )
    if not links:
        return f"{title}\nno link is used"
    rows = [
        [
            f"{item['source']} → {item['target']}",
            item["dimension"],
            format_si(item["bytes"], "B"),
            format_si(item["bandwidth"], "B/s"),
            format_time(item["time"]),
        ]
        for item in links[:shown]
    ]
    parts = [
        title,
        f"{len(links):,} of {topology.link_count:,} links used; the busiest takes "
        f"{format_time(document['busiest_link_time'])}",
        "",
        table(["link", "dimension", "bytes", "bandwidth", "time"], rows, left=(0, 1)),
    ]
    if len(links) > shown:
        parts.append(f"… and {len(links) - shown:,} more (--lines)")
    return "\n".join(parts)


NETWORK, OPERATION = "Network (one of three)", "Operation"
SPELLING = "KIND:SHAPE:BANDWIDTH:LATENCY[:OVERSUBSCRIPTION]"


class DimensionType(click.ParamType):
    """A dimension: ``mesh:4x4:200e9:1e-6``."""

    name = "KIND:SHAPE:B/s:s"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Dimension:
        """Return the dimension."""
        if isinstance(value, Dimension):
            return value
        kind, *rest = str(value).split(":")
        if not 3 <= len(rest) <= 4:
            self.fail(f"'{value}' should be {SPELLING}, as in mesh:4x4:200e9:1e-6", param, ctx)
        try:
            shape = tuple(int(side) for side in rest[0].split("x"))
        except ValueError:
            self.fail(f"'{value}': shape '{rest[0]}' should be as in 8 or 4x4", param, ctx)
        try:
            bandwidth, latency, *over = (float(item) for item in rest[1:])
        except ValueError:
            self.fail(
                f"'{value}': bandwidth [B/s], latency [s] and oversubscription should be numbers",
                param,
                ctx,
            )
        try:
            return Dimension(kind, shape, bandwidth, latency, over[0] if over else 1.0)
        except HardwareError as error:
            self.fail(f"'{value}': {error}", param, ctx)


network_options = options.stack(
    options.one_hardware_option(
        section=NETWORK, text=f"{options.HARDWARE_HELP}; its levels for --devices."
    ),
    options.options_of("workloads.topology", "devices", "network"),
    options.option(
        "--dimension",
        "dimensions",
        section=NETWORK,
        type=DimensionType(),
        multiple=True,
        metavar=SPELLING,
        help="One dimension, innermost first; repeat it for more. "
        f"Kinds: {', '.join(KINDS)}. Bandwidth per device and direction over all its "
        "links of the dimension [B/s], latency of a hop [s].",
    ),
    options.set_option,
)
"""The options that say which network is meant."""


@click.group(
    "topology", **page("workloads", "topology", "Show, draw and export networks.", CommandGroup)
)
def topology_group() -> None:
    """Show networks link by link, with what an operation brings over every link."""


@topology_group.command("show", **page("workloads", "topology show", "Facts, link loads, drawing."))
@network_options
@options.options_of("workloads.topology", "operation", "algorithm", "size")
@options.options_of("workloads.topology", "members", type=Members())
@options.options_of("workloads.topology", "domain")
@options.output_option(
    "FILE.png|svg|pdf",
    "Draw the network, links coloured and widened by the time of their bytes (needs matplotlib: "
    "pip install 'perfmodel[plot]').",
)
@options.options_of("workloads.topology", "lines")
@options.json_option
@options.verbosity_options
@click.pass_context
def show_command(
    ctx: click.Context,
    hardware: str | None,
    devices: int | None,
    network: str | None,
    dimensions: tuple[Dimension, ...],
    settings: Mapping[str, Any],
    operation: str | None,
    algorithm: str | None,
    size: int,
    members: list[int] | None,
    domain: int | None,
    output: str | None,
    shown: int,
    as_json: bool,
) -> None:
    """Show devices, links, distances and bisection of a network, and draw it."""
    _check_operation(ctx, operation, members)
    topology = _topology(hardware, devices, network, dimensions, settings)
    if output is not None:
        _check_figure(topology, output)
    title = " + ".join(words(item) for item in topology.dimensions)
    document = facts(topology)
    messages: Schedule | None = None
    loads: NDArray[np.float64] | None = None
    if operation is not None:
        messages, loads = _loads(topology, operation, algorithm, members, size, domain)
        title += f"\n{messages.collective} {messages.algorithm}, {format_size(size)}"
        document["operation"] = operation_document(topology, messages, loads)
    if output is not None:
        from perfmodel.workloads.links.figures import save_topology

        save_topology(topology, output, loads, title)
        remark(f"drawn into {output}")
    if as_json:
        print_json(document)
        return
    click.echo(facts_text(document))
    if messages is not None and loads is not None:
        click.echo("\n" + operation_text(topology, messages, loads, shown))


@topology_group.command(
    "export", **page("workloads", "topology export", "Write ASTRA-sim's network.yml.")
)
@network_options
@options.options_of("workloads.topology", "rails")
@options.output_option("DIR", "Folder to write network.yml into; made if need be.", required=True)
@options.verbosity_options
def export_command(
    hardware: str | None,
    devices: int | None,
    network: str | None,
    dimensions: tuple[Dimension, ...],
    settings: Mapping[str, Any],
    rails: bool,
    output: str,
) -> None:
    """Write a network for ASTRA-sim's analytical backend."""
    from perfmodel.cli.workloads.workload_files import make_folder
    from perfmodel.workloads.formats.astra_files import write_network
    from perfmodel.workloads.formats.astra_machine import astra_of_topology

    written = astra_of_topology(
        _topology(hardware, devices, network, dimensions, settings), rails=rails
    )
    folder = Path(output)
    if not output or (folder.exists() and not folder.is_dir()):
        raise DataError(f"cannot write into '{output}': name a folder, as in astra/")
    make_folder(folder)
    write_network(written, folder / "network.yml")
    remark(f"written to {folder / 'network.yml'}")


def _topology(
    hardware: str | None,
    devices: int | None,
    network: str | None,
    dimensions: Sequence[Dimension],
    settings: Mapping[str, Any],
) -> Topology:
    """Return the network that the options mean."""
    from perfmodel.workloads.links.topology import Topology

    if sum((hardware is not None, network is not None, bool(dimensions))) != 1:
        raise click.UsageError("name one of --hardware with --devices, --network, --dimension")
    if hardware is None:
        if devices is not None or settings:
            raise click.UsageError("--devices and --set belong to --hardware")
        if network is None:
            return Topology(tuple(dimensions))
        from perfmodel.workloads.formats.astra_files import read_network
        from perfmodel.workloads.formats.astra_machine import topology_of_astra

        return topology_of_astra(read_network(network))
    if devices is None:
        raise click.UsageError("--hardware needs --devices")
    (profile,), _ = load_rows([hardware], settings, {})

    def results(rows: list[Hardware], most: int) -> list[object]:
        return [Topology.from_hardware(row, devices) for row in rows]

    check_acts([hardware], settings, {}, results)
    return Topology.from_hardware(profile, devices)


def _check_operation(ctx: click.Context, operation: str | None, members: list[int] | None) -> None:
    """Refuse options that would have no effect, and an operation that lacks one."""
    if operation is None:
        for name in ("algorithm", "size", "members", "domain", "shown"):
            if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE:
                option = next(param.opts[-1] for param in ctx.command.params if param.name == name)
                raise click.UsageError(f"{option} belongs to an --operation", ctx)
    elif operation == "point_to_point" and members is None:
        raise click.UsageError("point_to_point needs --members SOURCE,TARGET", ctx)


def _check_figure(topology: Topology, output: str) -> None:
    """Refuse, before any work, a figure that cannot be drawn or written."""
    from perfmodel.base.figures import check_plot
    from perfmodel.base.files import check_writable
    from perfmodel.workloads.links.figures import check_drawing

    check_plot(output)
    check_writable(output)
    check_drawing(topology)


def _loads(
    topology: Topology,
    operation: str,
    algorithm: str | None,
    members: list[int] | None,
    size: int,
    domain: int | None,
) -> tuple[Schedule, NDArray[np.float64]]:
    """Return the messages of an operation and the bytes over every link."""
    from perfmodel.workloads.schedules.schedule import operation_loads, operation_schedule

    group = list(range(topology.device_count)) if members is None else members
    messages = operation_schedule(topology, operation, algorithm, group, size, domain)
    return messages, operation_loads(topology, messages, group)
