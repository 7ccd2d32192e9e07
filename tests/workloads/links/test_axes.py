"""Axes of a network and the links along them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from perfmodel.kernels.workloads import routes as kernel
from perfmodel.workloads.links import axes as topology_links
from tests.workloads.links.networks import (
    GB,
    MESH,
    NODES,
    neighbours,
    network,
    one,
    small,
    topologies,
)


def test_codes_of_the_kernel_and_the_labelled_side_agree():
    for name in ("RING", "LINE", "FULL", "SWITCH", "FAT_TREE", "KIND", "SIZE", "STRIDE"):
        assert getattr(topology_links, name) == getattr(kernel, name), name
    assert topology_links.FIRST_LINK == kernel.FIRST_LINK
    assert topology_links.COLUMNS == kernel.COLUMNS


def test_mesh_corner_edge_and_inner_devices_have_2_3_and_4_neighbours():
    counts = [len(neighbours(MESH, device)) for device in range(16)]
    assert counts == [2, 3, 3, 2, 3, 4, 4, 3, 3, 4, 4, 3, 2, 3, 3, 2]
    assert neighbours(MESH, 0) == [1, 4]
    assert neighbours(MESH, 7) == [3, 6, 11]
    assert neighbours(MESH, 9) == [5, 8, 10, 13]


def test_ring_of_two_is_one_link_of_both_cables():
    pair = network(one("ring", 2, bandwidth=80 * GB))
    assert pair.link_count == 2
    assert pair.link_bandwidth.tolist() == [80 * GB, 80 * GB]
    assert neighbours(pair, 0) == [1]


@pytest.mark.parametrize(
    ("dimension", "links", "bandwidth"),
    [
        (one("ring", 8), 16, 50),
        (one("fully-connected", 5), 20, 25),
        (one("switch", 8), 16, 100),
        (one("rail", 8), 16, 100),
        (one("mesh", 4), 6, 50),
        (one("mesh", 4, 4), 48, 25),
        (one("torus", 4, 4), 64, 25),
        (one("torus", 3, 3, 3), 162, 100 / 6),
        (one("switch", 1), 0, None),
        (one("torus", 1, 4), 8, 25),
    ],
)
def test_links_and_their_share_of_the_device_bandwidth(dimension, links, bandwidth):
    topology = network(dimension)
    assert topology.link_count == links == topology.link_source.size
    assert topology.link_bandwidth == pytest.approx(np.full(links, (bandwidth or 0) * GB))


@given(topologies())
def test_links_join_what_they_say(topology):
    assert topology.link_count == topology.link_source.size
    assert topology.link_source.max(initial=0) < topology.vertex_count
    pairs = set(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True))
    assert len(pairs) == topology.link_count, "no link twice"
    assert {(b, a) for a, b in pairs} == pairs, "every link has one back"
    assert topology.vertex_name(topology.vertex_count - 1)


@given(topologies())
def test_diameter_and_mean_distance_are_those_of_all_pairs(topology):
    count = topology.device_count
    hops = topology.hops(np.arange(count)[:, None], np.arange(count))
    assert topology.diameter == hops.max()
    if count > 1:
        assert topology.average_hops == pytest.approx(hops.sum() / (count * (count - 1)))
    else:
        assert topology.average_hops == 0.0


def flow(topology, inside):
    """Largest flow from some devices to all others, by scipy [GB/s]."""
    count = topology.vertex_count
    outside = np.setdiff1d(np.arange(topology.device_count), inside)
    scale = 1000
    rows = [*topology.link_source, *[count] * len(inside), *outside]
    columns = [*topology.link_target, *inside, *[count + 1] * len(outside)]
    capacity = [
        *np.rint(topology.link_bandwidth / GB * scale),
        *[10**8] * topology.device_count,
    ]
    graph = csr_array(
        (np.array(capacity, dtype=np.int32), (rows, columns)), shape=(count + 2, count + 2)
    )
    return maximum_flow(graph, count, count + 1).flow_value / scale


@small
def test_bisection_bandwidth_is_the_smallest_of_all_halvings(topology):
    count = topology.device_count
    halvings = itertools.combinations(range(count), count // 2)
    smallest = min(flow(topology, list(inside)) for inside in halvings)
    assert topology.bisection_bandwidth() / GB == pytest.approx(smallest, abs=0.02)


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        # Dally & Towles 2004, chapter 5: N/k channels each way for a mesh, 2 N/k for a torus.
        (network(one("mesh", 8, 8, bandwidth=4.0)), 8.0),
        (network(one("torus", 8, 8, bandwidth=4.0)), 16.0),
        (network(one("torus", 8, 8, 8, bandwidth=6.0)), 128.0),
        # Non-blocking: half of the devices send at full bandwidth.
        (network(one("switch", 72, bandwidth=900 * GB)), 36 * 900 * GB),
        (network(one("fat-tree", 64, bandwidth=4.0, oversubscription=4.0)), 32.0),
        (network(one("fully-connected", 8, bandwidth=7.0)), 16.0),
        (NODES, 8 * 50 * GB),
    ],
)
def test_bisection_bandwidth_by_hand(topology, expected):
    assert topology.bisection_bandwidth() == pytest.approx(expected)
