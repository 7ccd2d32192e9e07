"""Axes of a network and the links along them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from perfmodel.kernels.workloads.links import routes as kernel
from perfmodel.workloads.links import axes as topology_links
from tests.workloads.links.networks import GB, MESH, network, one, topologies


def test_codes_of_the_kernel_and_the_labelled_side_agree():
    for name in ("RING", "LINE", "FULL", "SWITCH", "FAT_TREE", "KIND", "SIZE", "STRIDE"):
        assert getattr(topology_links, name) == getattr(kernel, name), name
    assert topology_links.FIRST_LINK == kernel.FIRST_LINK
    assert topology_links.COLUMNS == kernel.COLUMNS


def test_mesh_corner_edge_and_inner_devices_have_2_3_and_4_neighbours():
    counts = [len(MESH.neighbours(device)) for device in range(16)]
    assert counts == [2, 3, 3, 2, 3, 4, 4, 3, 3, 4, 4, 3, 2, 3, 3, 2]
    assert MESH.neighbours(0) == [1, 4]
    assert MESH.neighbours(7) == [3, 6, 11]
    assert MESH.neighbours(9) == [5, 8, 10, 13]


def test_ring_of_two_is_one_link_of_both_cables():
    pair = network(one("ring", 2, bandwidth=80 * GB))
    assert pair.link_count == 2
    assert pair.link_bandwidth.tolist() == [80 * GB, 80 * GB]
    assert pair.neighbours(0) == [1]


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
