"""A network link by link: loads, messages and times, by hand and by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.workloads.links.topology import Topology
from tests.workloads.links.networks import (
    MESH,
    NODES,
    RAILS,
    loads_by_link,
    matrix_loads,
    neighbours,
    network,
    one,
)


def test_mesh_of_the_exercise_all_to_all_on_a_line_of_4():
    # Link i→i+1 of a line carries (i + 1) (n - i - 1) messages: 3, 4, 3, in each direction.
    line = network(one("mesh", 4))
    loads = matrix_loads(line, np.ones((4, 4)))
    assert loads_by_link(line, loads) == {
        (0, 1): 3.0,
        (1, 2): 4.0,
        (2, 3): 3.0,
        (1, 0): 3.0,
        (2, 1): 4.0,
        (3, 2): 3.0,
    }


@pytest.mark.parametrize(("members", "busiest"), [(4, 3), (8, 10), (16, 36)])
def test_ring_all_to_all_loads_its_busiest_link_as_astra_sim_does(members, busiest):
    # (n/2)(n/2+1)/2 messages on the clockwise link: the ratio of ASTRA-sim's congestion-aware
    # to its unaware time of a direct all-to-all on a ring of 4, 8 and 16.
    ring = network(one("ring", members))
    loads = matrix_loads(ring, np.ones((members, members)))
    assert loads.max() == busiest
    assert np.all(loads[:members] == busiest)
    assert np.all(loads[members:] == (members // 2) * (members // 2 - 1) / 2)


def test_fully_connected_messages_take_their_own_link():
    full = network(one("fully-connected", 5))
    loads = matrix_loads(full, np.arange(25.0).reshape(5, 5))
    expected = {(i, j): 5.0 * i + j for i in range(5) for j in range(5) if i != j}
    assert loads_by_link(full, loads) == expected


def test_switch_carries_what_devices_send_and_receive():
    switch = network(one("switch", 4))
    loads = switch.link_loads([0, 1, 2], [3, 3, 0], [5.0, 7.0, 11.0])
    assert loads_by_link(switch, loads) == {
        (0, 4): 5.0,
        (1, 4): 7.0,
        (2, 4): 11.0,
        (4, 3): 12.0,
        (4, 0): 11.0,
    }
    up, down = switch.switch_links([0, 3], 0)
    assert switch.link_source[up].tolist() == [0, 3]
    assert switch.link_target[up].tolist() == [4, 4]
    assert switch.link_target[down].tolist() == [0, 3]


def test_messages_that_cross_rails_go_through_the_node_first():
    # 16, 17: switches of the nodes; 18 + r: switch of rail r.
    assert RAILS.route(3, 11).tolist() == [3, 18 + 3, 11]
    assert RAILS.route(3, 12).tolist() == [3, 16, 4, 18 + 4, 12]
    assert RAILS.vertex_name(16) == "switch switch 0"
    assert RAILS.vertex_name(21) == "rail switch 3"
    assert neighbours(RAILS, 9) == [17, 19]


def test_messages_between_domains_of_a_fat_tree_do_not_touch_the_inner_network():
    # 16, 17: switches of the nodes; 18, 19: leaves; 20: core.
    assert NODES.route(3, 12).tolist() == [3, 18, 20, 19, 12]
    assert NODES.route(3, 4).tolist() == [3, 16, 4]
    assert [NODES.vertex_name(v) for v in (18, 19, 20)] == [
        "fat-tree leaf 0",
        "fat-tree leaf 1",
        "fat-tree core 0",
    ]


def test_mixed_radix_numbering_counts_the_innermost_fastest():
    topology = network(one("mesh", 3, 2), one("switch", 4))
    assert topology.shape == (3, 2, 4)
    assert topology.coordinates(17).tolist() == [2, 1, 2]
    assert topology.device([2, 1, 2]) == 17
    everyone = np.arange(24)
    assert np.array_equal(topology.device(topology.coordinates(everyone)), everyone)


@pytest.mark.parametrize("shape", [(5, 5), (3, 5), (3, 3, 5), (7,), (4, 4), (4, 6)])
def test_uniform_all_to_all_loads_links_of_a_torus_dimension_equally(shape):
    topology = network(one("torus", *shape))
    count = topology.device_count
    loads = matrix_loads(topology, np.ones((count, count)))
    for axis, side in enumerate(shape):
        clockwise = loads[2 * axis * count : (2 * axis + 1) * count]
        back = loads[(2 * axis + 1) * count : (2 * axis + 2) * count]
        assert np.all(clockwise == clockwise[0])
        assert np.all(back == back[0])
        # Ties go clockwise, so that the two directions are equal where there are none.
        assert (clockwise[0] == back[0]) == (side % 2 == 1)
        total = count * (side**2 // 4) / side
        assert clockwise[0] + back[0] == pytest.approx(total)


def test_networks_that_cannot_be_listed_are_refused():
    with pytest.raises(HardwareError, match="one or more dimensions"):
        Topology(())
    with pytest.raises(HardwareError, match="50,000,000 links"):
        network(one("fully-connected", 10_000))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MESH.route(0, 16), "target 16 does not exist; ids are 0 to 15"),
        (lambda: MESH.routes([-1], [0]), "source -1"),
        (lambda: MESH.routes([0.5], [0]), "whole numbers"),
        (lambda: MESH.routes([0, 1], [0, 1, 2]), "broadcast"),
        (lambda: MESH.link_loads([0], [1], [float("nan")]), "finite"),
        (lambda: MESH.link_loads([0], [1], [-1.0]), ">= 0"),
        (lambda: MESH.load_time(np.ones(3)), "one per link, 48"),
        (lambda: MESH.coordinates(16), "device 16"),
        (lambda: MESH.device([4, 0]), "outside the shape"),
        (lambda: MESH.device([1, 1, 1]), "2 whole numbers"),
        (lambda: MESH.vertex_name(16), "0 to 15"),
        (lambda: MESH.switch_links([0], 0), "no switch"),
    ],
)
def test_malformed_messages_are_refused(call, message):
    with pytest.raises(StrategyError, match=message):
        call()


def test_large_networks_are_built_and_loaded_without_listing_pairs():
    topology = network(one("switch", 8), one("torus", 16, 16, 64), one("fat-tree", 2))
    assert topology.device_count == 262_144
    draw = np.random.default_rng(0)
    sources, targets = draw.integers(0, topology.device_count, (2, 100_000))
    loads = topology.link_loads(sources, targets, 1.0)
    assert loads.sum() == topology.hops(sources, targets).sum()
