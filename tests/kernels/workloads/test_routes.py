"""Routes over links: the way they go, their length and the loads they leave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from tests.workloads.links.networks import MESH, loads_by_link, network, one, topologies


def test_mesh_routes_go_along_x_first():
    assert MESH.route(1, 7).tolist() == [1, 2, 3, 7]
    assert MESH.route(14, 5).tolist() == [14, 13, 9, 5]
    assert MESH.route(6, 6).tolist() == [6]


def test_mesh_link_loads_add_where_routes_meet():
    # 1→2→3→7 and 14→13→9→5 are apart; 0→1→2→3 shares 1→2→3 with the first.
    loads = MESH.link_loads([1, 14, 0], [7, 5, 3], [100.0, 10.0, 1.0])
    assert loads_by_link(MESH, loads) == {
        (0, 1): 1.0,
        (1, 2): 101.0,
        (2, 3): 101.0,
        (3, 7): 100.0,
        (14, 13): 10.0,
        (13, 9): 10.0,
        (9, 5): 10.0,
    }


def test_ring_goes_the_shorter_way_and_ties_clockwise():
    ring = network(one("ring", 6))
    assert ring.route(1, 3).tolist() == [1, 2, 3]
    assert ring.route(1, 5).tolist() == [1, 0, 5]
    assert ring.route(1, 4).tolist() == [1, 2, 3, 4]
    assert ring.route(4, 1).tolist() == [4, 5, 0, 1]


@given(topologies(), st.integers(0, 2**31))
def test_routes_are_connected_and_as_long_as_said(topology, seed):
    draw = np.random.default_rng(seed)
    sources, targets = draw.integers(0, topology.device_count, (2, 30))
    offsets, links = topology.routes(sources, targets)
    hops = topology.hops(sources, targets)
    assert np.array_equal(np.diff(offsets), hops)
    for message in range(30):
        route = links[offsets[message] : offsets[message + 1]]
        path = [sources[message], *topology.link_target[route]]
        assert path[-1] == targets[message]
        assert np.array_equal(topology.link_source[route], path[:-1])
        assert len(set(path)) == len(path)


@given(topologies(), st.integers(0, 2**31))
def test_bytes_are_conserved_over_links(topology, seed):
    draw = np.random.default_rng(seed)
    count = topology.device_count
    sources, targets = draw.integers(0, count, (2, 50))
    sizes = draw.random(50)
    loads = topology.link_loads(sources, targets, sizes)
    assert loads.sum() == pytest.approx((sizes * topology.hops(sources, targets)).sum())
    # What leaves a device is what it sends plus what it passes on.
    balance = np.zeros(topology.vertex_count)
    np.add.at(balance, topology.link_source, loads)
    np.subtract.at(balance, topology.link_target, loads)
    np.subtract.at(balance, sources, sizes)
    np.add.at(balance, targets, sizes)
    assert np.abs(balance).max() < 1e-9


@given(st.sampled_from(["ring", "torus", "mesh"]), st.integers(2, 5), st.integers(1, 4))
def test_dimension_order_routes_are_shortest_paths(kind, first, second):
    shape = (first,) if kind == "ring" else (first, second)
    topology = network(one(kind, *shape))
    count = topology.device_count
    ones = np.ones(topology.link_count)
    ends = (topology.link_source, topology.link_target)
    graph = csr_array((ones, ends), shape=(count, count))
    hops = topology.hops(np.arange(count)[:, None], np.arange(count))
    assert np.array_equal(hops, shortest_path(graph))
