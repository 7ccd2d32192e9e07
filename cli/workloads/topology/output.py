"""What ``perfmodel topology show`` prints, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import format_si, format_size, format_time
from perfmodel.cli.shared.printing import heading, table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from perfmodel.workloads.links.dimensions import Dimension
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
