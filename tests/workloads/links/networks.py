"""Small networks of every kind, and random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from perfmodel.workloads.links.topology import KINDS, Dimension, Topology

GB = 1e9


def one(kind, *shape, bandwidth=100 * GB, latency=1e-6, **more):
    return Dimension(kind, shape, bandwidth, latency, **more)


def network(*dimensions):
    return Topology(tuple(dimensions))


MESH = network(one("mesh", 4, 4))
RAILS = network(one("switch", 8, bandwidth=450 * GB), one("rail", 2, bandwidth=50 * GB))
NODES = network(one("switch", 8, bandwidth=450 * GB), one("fat-tree", 2, bandwidth=50 * GB))

SMALL = [
    network(one("ring", 5)),
    network(one("ring", 6)),
    network(one("ring", 2)),
    network(one("fully-connected", 5)),
    network(one("fully-connected", 6)),
    network(one("switch", 5)),
    network(one("mesh", 7)),
    network(one("mesh", 4, 2)),
    network(one("mesh", 3, 3)),
    network(one("torus", 3, 3)),
    network(one("torus", 4, 3)),
    network(one("torus", 2, 2, 2)),
    network(one("mesh", 3, 2, 2)),
    network(one("fat-tree", 6, oversubscription=2.0)),
    network(one("ring", 4), one("switch", 2, bandwidth=30 * GB)),
    network(one("fully-connected", 4), one("ring", 2, bandwidth=10 * GB)),
    network(one("fully-connected", 3, bandwidth=300 * GB), one("rail", 3, bandwidth=40 * GB)),
    network(one("switch", 4), one("fat-tree", 2, bandwidth=20 * GB)),
    network(one("switch", 4), one("fat-tree", 2, bandwidth=90 * GB, oversubscription=3.0)),
    network(one("switch", 3), one("fat-tree", 3, bandwidth=50 * GB, oversubscription=2.0)),
    network(one("switch", 2, bandwidth=1 * GB), one("fat-tree", 4, bandwidth=50 * GB)),
    network(one("ring", 3), one("fat-tree", 2, bandwidth=20 * GB), one("switch", 2)),
]

small = pytest.mark.parametrize(
    "topology",
    SMALL,
    ids=lambda t: "+".join(f"{d.kind}-{'x'.join(map(str, d.shape))}" for d in t.dimensions),
)
kinds = st.sampled_from(KINDS)


@st.composite
def topologies(draw):
    """Return topologies of one to three dimensions, of at most a few hundred devices."""
    dimensions = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(kinds)
        axes = draw(st.integers(1, 3)) if kind in ("mesh", "torus") else 1
        shape = tuple(draw(st.integers(1, 4 if axes > 1 else 6)) for _ in range(axes))
        over = draw(st.sampled_from([1.0, 2.0])) if kind == "fat-tree" else 1.0
        dimensions.append(one(kind, *shape, oversubscription=over))
    return network(*dimensions)


def matrix_loads(topology, matrix):
    """Bytes over every link when each device sends each other one what a matrix says."""
    sources, targets = np.indices(matrix.shape)
    return topology.link_loads(sources.ravel(), targets.ravel(), matrix.ravel())


def neighbours(topology, vertex):
    """Vertices that one link joins to another, ascending."""
    return np.unique(topology.link_target[topology.link_source == vertex]).tolist()


def message_time(topology, source, target, size):
    """Latencies of the route and the size over its slowest link: a message that is alone [s]."""
    links = topology.route_links(source, target)
    return topology.link_latency[links].sum() + size / topology.link_bandwidth[links].min()


def loads_by_link(topology, loads):
    """Loads that are not zero, by the two vertices."""
    used = np.flatnonzero(loads)
    return {
        (int(topology.link_source[i]), int(topology.link_target[i])): float(loads[i]) for i in used
    }
