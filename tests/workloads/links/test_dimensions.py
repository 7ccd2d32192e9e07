"""Dimensions of a network: what one holds, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.links.dimensions import near_cube
from perfmodel.workloads.links.topology import Dimension, Topology
from tests.workloads.links.networks import GB, NODES, message_time, network, one


def test_oversubscription_of_a_rail_narrows_its_ports():
    nodes = one("switch", 4, bandwidth=100 * GB)
    full, half = (
        network(nodes, one("rail", 8, bandwidth=50 * GB, oversubscription=over))
        for over in (1.0, 2.0)
    )
    # device 0 of node 0 to device 0 of node 1, over the first rail
    assert message_time(full, 0, 4, 1e9) == pytest.approx(1e9 / (50 * GB), rel=1e-3)
    assert message_time(half, 0, 4, 1e9) == pytest.approx(1e9 / (25 * GB), rel=1e-3)
    assert message_time(half, 0, 1, 1e9) == message_time(full, 0, 1, 1e9)
    assert half.bisection_bandwidth() == pytest.approx(full.bisection_bandwidth() / 2)


def test_oversubscription_narrows_the_uplinks_of_the_leaves():
    tree = network(
        one("switch", 8, bandwidth=450 * GB),
        one("fat-tree", 2, bandwidth=50 * GB, oversubscription=4.0),
    )
    # Eight devices send 1 GB each to the other node: 8 GB through 8 × 50 / 4 = 100 GB/s.
    loads = tree.link_loads(np.arange(8), np.arange(8, 16), 1 * GB)
    assert tree.load_time(loads) == pytest.approx(8 / 100)
    assert NODES.load_time(loads) == pytest.approx(1 / 50)


def test_a_dimension_outside_a_fat_tree_follows_it():
    topology = network(one("ring", 3), one("fat-tree", 2), one("ring", 4))
    # 1 = (1, 0, 0), 17 = (2, 1, 2): from adapter to adapter at (2, 1, 0) = 5, then two hops.
    route = topology.route(1, 17).tolist()
    assert [vertex for vertex in route if vertex < 24] == [1, 5, 11, 17]
    # Without a change of domain the inner ring does it: (0, 1, 0) → (2, 1, 0) is one hop.
    assert topology.route(3, 5).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rings", (4,), 1.0, 0.0), "did you mean ring"),
        (("ring", (4, 4), 1.0, 0.0), "a ring has one side"),
        (("mesh", (2, 2, 2, 2), 1.0, 0.0), "1 to 3 sides"),
        (("ring", (0,), 1.0, 0.0), "at least 1"),
        (("ring", (2.5,), 1.0, 0.0), "whole number"),
        (("ring", (), 1.0, 0.0), "one side"),
        (("ring", (4,), 0.0, 0.0), "above 0"),
        (("ring", (4,), float("nan"), 0.0), "finite"),
        (("ring", (4,), float("inf"), 0.0), "finite"),
        (("ring", (4,), "fast", 0.0), "finite"),
        (("ring", (4,), 1.0, -1e-9), "at least 0"),
        (("fat-tree", (4,), 1.0, 0.0, 0.5), "at least 1"),
        (("switch", (4,), 1.0, 0.0, 2.0), "only a fat-tree and a rail have uplinks"),
    ],
)
def test_malformed_dimensions_are_refused(arguments, message):
    with pytest.raises(HardwareError, match=message):
        Dimension(*arguments)


def test_a_profile_gives_node_and_fat_tree():
    topology = Topology.from_hardware(load_hardware("dgx-h100"), 32)
    node, tree = topology.dimensions
    assert (node.kind, node.shape, node.name) == ("switch", (8,), "nvlink")
    assert (tree.kind, tree.shape) == ("fat-tree", (4,))
    assert node.bandwidth == 450 * GB
    # The profile's latency is that of a message between neighbours: two and four links.
    assert message_time(topology, 0, 1, 0.0) == pytest.approx(0.413e-6)
    assert message_time(topology, 0, 8, 0.0) == pytest.approx(2.7e-6)


def test_a_profile_for_one_node_has_no_outer_level():
    topology = Topology.from_hardware(load_hardware("mi300x-server"), 8)
    assert [item.kind for item in topology.dimensions] == ["fully-connected"]
    assert topology.link_bandwidth[0] == pytest.approx(64 * GB)


def test_a_switch_above_other_levels_has_a_port_for_every_device():
    # Pairs of NVLink, two to four pairs on one PCIe switch: 0 → 3 does not pass 1 or 2.
    topology = Topology.from_hardware(load_hardware("h100-nvl"), 8)
    assert [v for v in topology.route(0, 3).tolist() if v < 8] == [0, 3]
    assert topology.route(0, 1).tolist() == [0, 1]


def test_torus_profiles_have_sides_as_equal_as_can_be():
    assert near_cube(8960, 3) == (16, 20, 28)
    assert near_cube(256, 2) == (16, 16)
    assert near_cube(6, 2) == (2, 3)
    assert near_cube(7, 2) == (1, 7)
    hardware = load_hardware("tpu-v5p-pod").with_values({"system.network.0.size": 64})
    assert Topology.from_hardware(hardware, 64).shape == (4, 4, 4)
    given_sides = Topology.from_hardware(hardware, 64, sides={0: (2, 4, 8)})
    assert given_sides.shape == (2, 4, 8)
    with pytest.raises(HardwareError, match=r"sides 2x4x4 of level 0 .* product is 64"):
        Topology.from_hardware(hardware, 64, sides={0: (2, 4, 4)})
    with pytest.raises(HardwareError, match="sides of level 7"):
        Topology.from_hardware(hardware, 64, sides={7: (2, 4, 4)})


@pytest.mark.parametrize("devices", [4, 12, 0, -8, 8.0, True])
def test_devices_that_do_not_fill_the_levels_are_refused(devices):
    with pytest.raises(HardwareError, match=r"8 or a multiple of 8|whole number"):
        Topology.from_hardware(load_hardware("dgx-h100"), devices)
