"""Networks of ASTRA-sim's analytical backend as topologies, and back.

ASTRA-sim gives the bandwidth of a link in GiB/s and the latency of a hop in ns; a
`Dimension` the bandwidth of a device over all its links in B/s and the latency in s. Its
dimensions are joined like ours, position by position: a ``Switch`` further out is a rail.
"""

from __future__ import annotations

from pathlib import Path

from perfmodel.base.errors import FormatError
from perfmodel.base.units import GIB
from perfmodel.workloads.formats.astra.network import read_network
from perfmodel.workloads.formats.astra.records import AstraNetwork, mesh_shape
from perfmodel.workloads.links.dimensions import Dimension
from perfmodel.workloads.links.topology import Topology

NANOSECOND = 1e-9
KIND_OF = {
    "Ring": "ring",
    "FullyConnected": "fully-connected",
    "Switch": "switch",
    "Mesh2D": "mesh",
}
NAME_OF = {
    "ring": "Ring",
    "torus": "Ring",
    "fully-connected": "FullyConnected",
    "switch": "Switch",
    "rail": "Switch",
    "mesh": "Mesh2D",
}
FAT_TREE_LINKS, RAIL_LINKS = 4, 2  # from a device to its nearest peer


def topology_of_astra(network: AstraNetwork) -> Topology:
    """Return a network of ASTRA-sim as a topology with the same links."""
    return Topology(
        tuple(
            _dimension(*entry)
            for entry in zip(
                network.topology,
                network.npus_count,
                network.bandwidth_gib_per_second,
                network.latency_nanoseconds,
                strict=True,
            )
        )
    )


def _dimension(name: str, size: int, bandwidth: float, latency: float) -> Dimension:
    """Return one dimension whose links have this bandwidth [GiB/s] and latency [ns]."""
    kind = KIND_OF[name]
    shape = mesh_shape(size) if kind == "mesh" else (size,)
    # A unit bandwidth says which share of it one link has.
    share = max(Dimension(kind, shape, 1.0, 0.0).link_bandwidths)
    return Dimension(kind, shape, bandwidth * GIB / share, latency * NANOSECOND)


def astra_of_topology(topology: Topology, *, rails: bool = False) -> AstraNetwork:
    """Return a topology as a network of ASTRA-sim.

    Parameters
    ----------
    topology : Topology
        A torus becomes one ring per axis, a rail a switch; what has one position is left
        out.
    rails : bool
        Write a fat tree without oversubscription as rails: a switch per position within the
        inner dimensions, with the same bandwidth per device and the same latency between
        neighbours. ASTRA-sim then routes messages that cross rails through the inner
        dimensions.

    Raises
    ------
    FormatError
        ASTRA-sim's analytical backend has no such dimension.
    """
    rows = [
        (NAME_OF[dimension.kind], size, link, dimension.latency)
        for index, given in enumerate(topology.dimensions)
        for dimension in [_as_rail(given) if rails and given.kind == "fat-tree" else given]
        for size, link in _parts(dimension, f"dimension {index} ('{dimension.label}')")
    ]
    if not rows:
        raise FormatError("one device has no network that ASTRA-sim could be told about")
    return AstraNetwork(
        topology=tuple(name for name, _, _, _ in rows),
        npus_count=tuple(size for _, size, _, _ in rows),
        bandwidth_gib_per_second=tuple(digits(link / GIB) for _, _, link, _ in rows),
        latency_nanoseconds=tuple(digits(latency / NANOSECOND) for _, _, _, latency in rows),
    )


def _as_rail(tree: Dimension) -> Dimension:
    """Return a fat tree as rails; one with oversubscription stays what it is."""
    if tree.oversubscription != 1.0:
        return tree
    latency = tree.latency * FAT_TREE_LINKS / RAIL_LINKS
    return Dimension("rail", tree.shape, tree.bandwidth, latency, name=tree.name)


def _parts(dimension: Dimension, where: str) -> list[tuple[int, float]]:
    """Return positions and link bandwidth [B/s] of what ASTRA-sim counts as dimensions."""
    if dimension.size == 1:
        return []
    known = "ASTRA-sim's analytical backend has Ring, FullyConnected, Switch and Mesh2D"
    if dimension.kind == "fat-tree":
        over = f" of oversubscription {dimension.oversubscription:g}"
        kind = dimension.kind + (over if dimension.oversubscription != 1 else "")
        raise FormatError(
            f"{where} is a {kind}; {known} only; a fat tree without oversubscription can be "
            "written as rails"
        )
    if dimension.kind == "mesh":
        square = mesh_shape(dimension.size)
        if dimension.shape != square:
            shape, expected = ("x".join(map(str, sides)) for sides in (dimension.shape, square))
            raise FormatError(
                f"{where} is a mesh of {shape}; {known} only, and its Mesh2D of "
                f"{dimension.size} is {expected}"
            )
        return [(dimension.size, dimension.link_bandwidths[0])]
    sides = zip(dimension.shape, dimension.link_bandwidths, strict=True)
    return [(side, link) for side, link in sides if side > 1]


def digits(value: float) -> float:
    """Return a number without the last bit's noise: 300.0, not 299.99999999999994."""
    return float(f"{value:.15g}")


def read_topology(path: str | Path) -> Topology:
    """Read a ``network.yml`` as a topology.

    Raises
    ------
    FormatError
        See `perfmodel.workloads.formats.astra.network.read_network`.
    """
    return topology_of_astra(read_network(path))
