"""The bandwidth that crosses a cut, against the largest flow and every halving."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from tests.workloads.links.networks import GB, NODES, network, one, small, topologies


@given(topologies(), st.integers(0, 2**31))
def test_no_load_passes_a_cut_faster_than_its_bandwidth(topology, seed):
    draw = np.random.default_rng(seed)
    count = topology.device_count
    inside = np.flatnonzero(draw.random(count) < 0.5)
    matrix = draw.random((count, count))
    outside = np.setdiff1d(np.arange(count), inside)
    crossing = matrix[np.ix_(inside, outside)].sum()
    if crossing:
        time = topology.load_time(topology.link_loads_of_matrix(matrix))
        assert time >= crossing / topology.cut_bandwidth(inside) * (1 - 1e-12)


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
def test_cut_bandwidth_is_the_largest_flow(topology):
    draw = np.random.default_rng(1)
    for _ in range(5):
        inside = np.flatnonzero(draw.random(topology.device_count) < 0.4)
        expected = flow(topology, inside)
        assert topology.cut_bandwidth(inside) / GB == pytest.approx(expected, abs=0.02)


@small
def test_bisection_bandwidth_is_the_smallest_of_all_halvings(topology):
    count = topology.device_count
    halvings = itertools.combinations(range(count), count // 2)
    smallest = min(topology.cut_bandwidth(list(inside)) for inside in halvings)
    assert topology.bisection_bandwidth() == pytest.approx(smallest)


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
