"""Networks that the tests of schedules run on."""

from __future__ import annotations

from perfmodel.workloads.links.topology import Dimension, Topology
from perfmodel.workloads.schedules.algorithms import ALGORITHMS
from perfmodel.workloads.schedules.schedule import available

GB = 1e9
US = 1e-6


def one(kind: str, shape, bandwidth: float = 100 * GB, latency: float = 0.0, **more) -> Topology:
    return Topology((Dimension(kind, shape, bandwidth, latency, **more),))


def nodes(latency: float = 0.0) -> Topology:
    """4 nodes of 4 devices: a switch inside, one adapter per device on rails."""
    return Topology(
        (
            Dimension("switch", 4, 400 * GB, latency),
            Dimension("rail", 4, 50 * GB, 3 * latency),
        )
    )


TOPOLOGIES = {
    "ring": one("ring", 8, latency=US),
    "fully-connected": one("fully-connected", 8, latency=US),
    "switch": one("switch", 8, latency=US),
    "line": one("mesh", 8, latency=US),
    "mesh": one("mesh", (4, 2), latency=US),
    "torus": one("torus", (4, 2), latency=US),
    "fat-tree": Topology(
        (
            Dimension("switch", 2, 400 * GB, US),
            Dimension("fat-tree", 4, 50 * GB, 3 * US, oversubscription=2.0),
        )
    ),
}
UNROOTED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

CASES = [  # a reduction in the switch needs one that joins all
    (name, collective, algorithm)
    for name in TOPOLOGIES
    for collective in UNROOTED
    for algorithm in available(collective)
    if algorithm != "in_network" or name == "switch"
]


def options_of(collective: str, algorithm: str) -> dict:
    return {"domain": 2} if ALGORITHMS[collective][algorithm].two_level else {}
