"""Where the vertices of a network stand in a drawing."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.workloads.links.layout import blocks_of, vertex_positions
from perfmodel.workloads.links.topology import Dimension, Topology
from tests.workloads.links.drawn import DRAWN


@pytest.mark.parametrize("name", DRAWN)
def test_no_two_vertices_stand_in_one_place(name):
    topology = DRAWN[name]
    places = vertex_positions(topology)
    assert places.shape == (topology.vertex_count, 2)
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    np.fill_diagonal(apart, 9.0)
    assert apart.min() > 0.3


NODE = Dimension("switch", 8, 450e9, 1e-6)
OUTER = {
    "rail": Dimension("rail", 4, 50e9, 1e-6),
    "fat-tree": Dimension("fat-tree", 4, 50e9, 1e-6, 2.0),
    "ring": Dimension("ring", 4, 50e9, 1e-6),
    "mesh": Dimension("mesh", (2, 2), 50e9, 1e-6),
    "fully-connected": Dimension("fully-connected", 4, 50e9, 1e-6),
}


@pytest.mark.parametrize("kind", OUTER)
def test_every_link_between_blocks_is_one_of_the_line_that_joins_them(kind):
    topology = Topology((NODE, OUTER[kind]))
    blocks = blocks_of(topology)
    assert (blocks.size, blocks.inner, blocks.outer.device_count) == (8, 1, 4)
    between = blocks.of_link >= 0
    assert np.array_equal(between, topology.link_dimension == 1)
    devices, outer = topology.device_count, blocks.outer
    for end, whole in (
        (outer.link_source, topology.link_source),
        (outer.link_target, topology.link_target),
    ):
        reached, vertices = end[blocks.of_link[between]], whole[between]
        device = vertices < devices
        assert np.array_equal(device, reached < 4)
        assert np.array_equal(reached[device], vertices[device] // 8)
    _, count = blocks.busy_links(np.zeros(topology.link_count))
    assert count.min() >= 1  # no line without a link
    assert count.sum() == between.sum()


def test_a_line_takes_the_longest_time_of_its_links():
    topology = Topology((NODE, OUTER["rail"]))
    blocks = blocks_of(topology)
    times = np.zeros(topology.link_count)
    up = np.flatnonzero((topology.link_dimension == 1) & (topology.link_source < 8))
    times[up[:3]] = 1.0, 3.0, 2.0
    inside = np.flatnonzero((topology.link_dimension == 0) & (topology.link_source == 9))
    times[inside] = 5.0
    slowest = blocks.slowest_between(times)
    assert slowest.max() == 3.0
    assert np.count_nonzero(slowest) == 1
    used, count = blocks.busy_links(times)
    assert (used.max(), count[slowest.argmax()]) == (3, 8)
    assert blocks.slowest_within(times).tolist() == [0.0, 5.0, 0.0, 0.0]


def test_switches_of_a_pod_and_its_rails_meet_their_own():
    topology = Topology((NODE, OUTER["rail"], Dimension("fat-tree", 3, 25e9, 1e-6)))
    blocks = blocks_of(topology)
    assert blocks.outer.device_count == 12
    _, count = blocks.busy_links(np.zeros(topology.link_count))
    assert sorted(set(count.tolist())) == [1, 8]  # leaf and core are joined by one link


def test_blocks_are_the_smallest_of_which_there_are_few_enough():
    rings = Topology((Dimension("ring", 4, 1.0, 0.0),) * 4)
    assert blocks_of(rings).size == 16
    assert blocks_of(rings, most=64).size == 4
    assert blocks_of(Topology((Dimension("torus", (8, 8), 1.0, 0.0),))) is None
    assert blocks_of(Topology((NODE,))) is None
