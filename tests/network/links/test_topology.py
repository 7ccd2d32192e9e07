"""Topologies: links, routes, loads, distances and cuts, by hand and by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow, shortest_path

from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.links import routes as kernel
from perfmodel.network.links import axes as topology_links
from perfmodel.network.links.from_hardware import near_cube
from perfmodel.network.links.topology import KINDS, Dimension, Topology

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


def loads_by_link(topology, loads):
    """Loads that are not zero, by the two vertices."""
    used = np.flatnonzero(loads)
    return {
        (int(topology.link_source[i]), int(topology.link_target[i])): float(loads[i]) for i in used
    }


# One dimension, by hand -----------------------------------------------------------------


def test_codes_of_the_kernel_and_the_labelled_side_agree():
    for name in ("RING", "LINE", "FULL", "SWITCH", "FAT_TREE", "KIND", "SIZE", "STRIDE"):
        assert getattr(topology_links, name) == getattr(kernel, name), name
    assert topology_links.FIRST_LINK == kernel.FIRST_LINK
    assert topology_links.COLUMNS == kernel.COLUMNS


def test_mesh_routes_go_along_x_first():
    assert MESH.route(1, 7).tolist() == [1, 2, 3, 7]
    assert MESH.route(14, 5).tolist() == [14, 13, 9, 5]
    assert MESH.route(6, 6).tolist() == [6]


def test_mesh_corner_edge_and_inner_devices_have_2_3_and_4_neighbours():
    counts = [len(MESH.neighbours(device)) for device in range(16)]
    assert counts == [2, 3, 3, 2, 3, 4, 4, 3, 3, 4, 4, 3, 2, 3, 3, 2]
    assert MESH.neighbours(0) == [1, 4]
    assert MESH.neighbours(7) == [3, 6, 11]
    assert MESH.neighbours(9) == [5, 8, 10, 13]


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


def test_mesh_of_the_exercise_all_to_all_on_a_line_of_4():
    # Link i→i+1 of a line carries (i + 1) (n - i - 1) messages: 3, 4, 3, in each direction.
    line = network(one("mesh", 4))
    loads = line.link_loads_of_matrix(np.ones((4, 4)))
    assert loads_by_link(line, loads) == {
        (0, 1): 3.0,
        (1, 2): 4.0,
        (2, 3): 3.0,
        (1, 0): 3.0,
        (2, 1): 4.0,
        (3, 2): 3.0,
    }


def test_ring_goes_the_shorter_way_and_ties_clockwise():
    ring = network(one("ring", 6))
    assert ring.route(1, 3).tolist() == [1, 2, 3]
    assert ring.route(1, 5).tolist() == [1, 0, 5]
    assert ring.route(1, 4).tolist() == [1, 2, 3, 4]
    assert ring.route(4, 1).tolist() == [4, 5, 0, 1]


@pytest.mark.parametrize(("members", "busiest"), [(4, 3), (8, 10), (16, 36)])
def test_ring_all_to_all_loads_its_busiest_link_as_astra_sim_does(members, busiest):
    # (n/2)(n/2+1)/2 messages on the clockwise link: the ratio of ASTRA-sim's congestion-aware
    # to its unaware time of a direct all-to-all on a ring of 4, 8 and 16.
    ring = network(one("ring", members))
    loads = ring.link_loads_of_matrix(np.ones((members, members)))
    assert loads.max() == busiest
    assert np.all(loads[:members] == busiest)
    assert np.all(loads[members:] == (members // 2) * (members // 2 - 1) / 2)


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


def test_fully_connected_messages_take_their_own_link():
    full = network(one("fully-connected", 5))
    loads = full.link_loads_of_matrix(np.arange(25.0).reshape(5, 5))
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


# Several dimensions, by hand ------------------------------------------------------------


def test_messages_that_cross_rails_go_through_the_node_first():
    # 16, 17: switches of the nodes; 18 + r: switch of rail r.
    assert RAILS.route(3, 11).tolist() == [3, 18 + 3, 11]
    assert RAILS.route(3, 12).tolist() == [3, 16, 4, 18 + 4, 12]
    assert RAILS.vertex_name(16) == "switch switch 0"
    assert RAILS.vertex_name(21) == "rail switch 3"
    assert RAILS.neighbours(9) == [17, 19]


def test_messages_between_domains_of_a_fat_tree_do_not_touch_the_inner_network():
    # 16, 17: switches of the nodes; 18, 19: leaves; 20: core.
    assert NODES.route(3, 12).tolist() == [3, 18, 20, 19, 12]
    assert NODES.route(3, 4).tolist() == [3, 16, 4]
    assert [NODES.vertex_name(v) for v in (18, 19, 20)] == [
        "fat-tree leaf 0",
        "fat-tree leaf 1",
        "fat-tree core 0",
    ]


def test_oversubscription_of_a_rail_narrows_its_ports():
    nodes = one("switch", 4, bandwidth=100 * GB)
    full, half = (
        network(nodes, one("rail", 8, bandwidth=50 * GB, oversubscription=over))
        for over in (1.0, 2.0)
    )
    # device 0 of node 0 to device 0 of node 1, over the first rail
    assert full.message_time(0, 4, 1e9) == pytest.approx(1e9 / (50 * GB), rel=1e-3)
    assert half.message_time(0, 4, 1e9) == pytest.approx(1e9 / (25 * GB), rel=1e-3)
    assert half.message_time(0, 1, 1e9) == full.message_time(0, 1, 1e9)
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


def test_mixed_radix_numbering_counts_the_innermost_fastest():
    topology = network(one("mesh", 3, 2), one("switch", 4))
    assert topology.shape == (3, 2, 4)
    assert topology.coordinates(17).tolist() == [2, 1, 2]
    assert topology.device([2, 1, 2]) == 17
    everyone = np.arange(24)
    assert np.array_equal(topology.device(topology.coordinates(everyone)), everyone)


def test_message_time_is_latency_of_the_hops_and_one_serialisation():
    # Two hops of 0.3 µs, 9 MB at 450 GB/s.
    node = network(one("switch", 8, bandwidth=450 * GB, latency=0.3e-6))
    assert node.message_time(0, 1, 9e6) == pytest.approx(0.6e-6 + 20e-6)
    # Through node and rail the narrower rail counts.
    assert RAILS.message_time(3, 12, 5e6) == pytest.approx(4e-6 + 100e-6)
    assert RAILS.message_time(5, 5, 1e9) == 0.0
    assert RAILS.message_time([[0], [1]], [2, 3, 4], 1.0).shape == (2, 3)


def test_groups_that_lie_apart_share_no_link():
    first, second = MESH.group_links([0, 1, 2, 3]), MESH.group_links([4, 5, 6, 7])
    assert first.size == second.size == 6
    assert not set(first) & set(second)
    # Columns cross no row.
    assert not set(first) & set(MESH.group_links([0, 4, 8, 12]))
    # Rail groups of two nodes: two links up and two down each.
    assert RAILS.group_links([0, 8]).size == 4
    assert RAILS.group_links([5]).size == 0


# Properties -----------------------------------------------------------------------------


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
    matrix = np.zeros((count, count))
    np.add.at(matrix, (sources, targets), sizes)
    assert topology.link_loads_of_matrix(matrix) == pytest.approx(loads)
    # What leaves a device is what it sends plus what it passes on.
    balance = np.zeros(topology.vertex_count)
    np.add.at(balance, topology.link_source, loads)
    np.subtract.at(balance, topology.link_target, loads)
    np.subtract.at(balance, sources, sizes)
    np.add.at(balance, targets, sizes)
    assert np.abs(balance).max() < 1e-9


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


@pytest.mark.parametrize("shape", [(5, 5), (3, 5), (3, 3, 5), (7,), (4, 4), (4, 6)])
def test_uniform_all_to_all_loads_links_of_a_torus_dimension_equally(shape):
    topology = network(one("torus", *shape))
    count = topology.device_count
    loads = topology.link_loads_of_matrix(np.ones((count, count)))
    for axis, side in enumerate(shape):
        clockwise = loads[2 * axis * count : (2 * axis + 1) * count]
        back = loads[(2 * axis + 1) * count : (2 * axis + 2) * count]
        assert np.all(clockwise == clockwise[0])
        assert np.all(back == back[0])
        # Ties go clockwise, so that the two directions are equal where there are none.
        assert (clockwise[0] == back[0]) == (side % 2 == 1)
        total = count * (side**2 // 4) / side
        assert clockwise[0] + back[0] == pytest.approx(total)


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


# Cuts -----------------------------------------------------------------------------------


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


# Hardware profiles ----------------------------------------------------------------------


def test_a_profile_gives_node_and_fat_tree():
    topology = Topology.from_hardware(load_hardware("dgx-h100"), 32)
    node, tree = topology.dimensions
    assert (node.kind, node.shape, node.name) == ("switch", (8,), "nvlink")
    assert (tree.kind, tree.shape) == ("fat-tree", (4,))
    assert node.bandwidth == 450 * GB
    # The profile's latency is that of a message between neighbours: two and four links.
    assert topology.message_time(0, 1, 0.0) == pytest.approx(0.6e-6)
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


# Bad input ------------------------------------------------------------------------------


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
        (lambda: MESH.link_loads_of_matrix(np.ones((4, 4))), r"\(16, 16\) is due"),
        (lambda: MESH.load_time(np.ones(3)), "one per link, 48"),
        (lambda: MESH.coordinates(16), "device 16"),
        (lambda: MESH.device([4, 0]), "outside the shape"),
        (lambda: MESH.device([1, 1, 1]), "2 whole numbers"),
        (lambda: MESH.neighbours(16), "0 to 15"),
        (lambda: MESH.vertex_name(16), "0 to 15"),
        (lambda: MESH.group_links([0, 99]), "member 99"),
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
