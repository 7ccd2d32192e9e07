"""Levels of a hardware profile as the dimensions of a network."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.links.from_hardware import near_cube
from perfmodel.workloads.links.topology import Topology
from tests.workloads.links.networks import GB


def test_a_profile_gives_node_and_fat_tree():
    topology = Topology.from_hardware(load_hardware("dgx-h100"), 32)
    node, tree = topology.dimensions
    assert (node.kind, node.shape, node.name) == ("switch", (8,), "nvlink")
    assert (tree.kind, tree.shape) == ("fat-tree", (4,))
    assert node.bandwidth == 450 * GB
    # The profile's latency is that of a message between neighbours: two and four links.
    assert topology.message_time(0, 1, 0.0) == pytest.approx(0.413e-6)
    assert topology.message_time(0, 8, 0.0) == pytest.approx(2.7e-6)


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
