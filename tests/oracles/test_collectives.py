"""Closed forms of collectives against message-by-message schedules on explicit topologies.

The network is ideal: no overheads, efficiencies of 1, so that both must say the same wherever
they mean the same messages. *Exact* are bytes, hops and times; where the closed form stands for
a better or a cheaper arrangement than the schedule, a one-sided bound with a named factor says so.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfmodel.base.collectives import ALGORITHMS, ALGORITHMS_OF, COLLECTIVES
from perfmodel.compute.network import CONSTANTS, set_library, table_of
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.collective import table as column
from perfmodel.kernels.collective.algorithms import TREE_FRACTION, is_pipelined, level_load
from perfmodel.kernels.collective.cost import filled_transfer, network_cost
from perfmodel.workloads.links.topology import Dimension, Topology
from perfmodel.workloads.schedules.schedule import available
from tests.workloads.schedules.laid import link_loads, scheduled_time

SIZE = 3e9
US = 1e-6
BANDWIDTH = 100e9  # of one level [B/s]
INNER, OUTER = 400e9, 50e9  # of two
INNER_HOP, OUTER_HOP = 1 * US, 4 * US
NO_OVERHEAD = dict.fromkeys(CONSTANTS, 0.0) | {
    name: 1.0
    for name in CONSTANTS
    if name.endswith(("_efficiency", "_fraction")) and not name.startswith(("tuned", "local"))
}


def row(size, bandwidth, latency, topology=column.SWITCH, **others):
    """One level without overheads."""
    ones = ("dimensions", "low_latency_fraction", "pairwise_fraction", "shot_fraction")
    hops = ("low_latency_hop", "low_latency_128_hop", "simple_hop")
    values = {"domains": size, "bandwidth": bandwidth, "topology": topology}
    return values | dict.fromkeys(ones, 1.0) | dict.fromkeys(hops, latency) | others


def network_of(*levels):
    """Return the network of levels that `row` describes, innermost first."""
    made = column.blank_network(len(levels))
    for record, values in zip(made.levels, levels, strict=True):
        for name, value in values.items():
            record[name] = value
    set_library(made)
    return made


def one_level(kind, size, dimensions=1):
    """Table and topology of one level of 100 GB/s and 1 us from device to device."""
    if kind == "switch":
        return network_of(row(0, BANDWIDTH, US)), one_dimension("switch", size, US / 2)
    if kind == "fully-connected":
        table = network_of(row(size, BANDWIDTH, US, column.FULLY_CONNECTED))
        return table, one_dimension(kind, size, US)
    wraps = float(kind in ("ring", "torus"))
    side = round(size ** (1 / dimensions))
    shape = (side,) * dimensions if kind != "ring" else side
    table = network_of(row(size, BANDWIDTH, US, column.TORUS, wraps=wraps, dimensions=dimensions))
    return table, one_dimension(kind, shape, US)


def one_dimension(kind, shape, latency):
    return Topology((Dimension(kind, shape, BANDWIDTH, latency),))


def two_levels(node, nodes, outer="fat-tree", over=1.0):
    """Table and topology of switched nodes under a fat tree or rails."""
    table = network_of(
        row(node, INNER, INNER_HOP),
        row(0, OUTER / over, OUTER_HOP, link_class=column.ADAPTER),
    )
    links = 4 if outer == "fat-tree" else 2
    inside = Dimension("switch", node, INNER, INNER_HOP / 2)
    return table, Topology((inside, Dimension(outer, nodes, OUTER, OUTER_HOP / links, over)))


def closed(collective, algorithm, members, table, stride=1):
    """Transfer time and latencies of the closed form [s]."""
    codes = COLLECTIVES.index(collective), ALGORITHMS.index(algorithm)
    cost = network_cost(*codes, SIZE, members, stride, table)
    return filled_transfer(SIZE, cost), cost.simple_hops


def scheduled(topology, collective, algorithm, groups, share=1.0, **options):
    """The same of the schedule, pipelined where the closed form is."""
    pipelined = bool(is_pipelined(ALGORITHMS.index(algorithm)))
    shape = topology, collective, algorithm
    latency = scheduled_time(*shape, 0.0, groups, pipelined=pipelined, **options)
    whole = scheduled_time(*shape, SIZE * share, groups, pipelined=pipelined, **options)
    return whole - latency, latency


def same(value):
    return pytest.approx(value, rel=1e-6, abs=1e-12)


def every_group(total, members, stride):
    """All groups of a shape that fit side by side, int64[groups, members]."""
    first = [
        block * members * stride + offset
        for block in range(total // (members * stride))
        for offset in range(stride)
    ]
    return np.array(first)[:, None] + np.arange(members) * stride


# One switch ------------------------------------------------------------------------------------

EXACT_ON_A_SWITCH = [
    *(
        ("all_reduce", name)
        for name in ("ring", "bidirectional_ring", "direct", "one_shot", "two_shot")
    ),
    *(("all_reduce", name) for name in ("halving_doubling", "recursive_doubling")),
    *(
        (collective, name)
        for collective in ("all_gather", "reduce_scatter")
        for name in (
            *("ring", "bidirectional_ring", "direct", "halving_doubling"),
            "aggregated_trees",
        )
    ),
    *(("broadcast", name) for name in ("ring", "direct", "recursive_doubling")),
    *((name, way) for name in ("gather", "scatter") for way in ("direct", "recursive_doubling")),
]


@pytest.mark.parametrize("members", range(2, 17))
@pytest.mark.parametrize(("collective", "algorithm"), EXACT_ON_A_SWITCH)
def test_exact_on_a_switch(collective, algorithm, members):
    table, topology = one_level("switch", members)
    transfer, latency = scheduled(topology, collective, algorithm, range(members))
    assert closed(collective, algorithm, members, table) == (same(transfer), same(latency))


@pytest.mark.parametrize("members", range(2, 17))
def test_all_to_all_on_a_switch(members):
    # Bytes are exact; its log2(p) hops, one of the schedule, are what measurements show.
    table, topology = one_level("switch", members)
    transfer, latency = scheduled(topology, "all_to_all", "direct", range(members))
    time, hops = closed("all_to_all", "direct", members, table)
    assert time == same(transfer)
    assert latency <= hops <= math.log2(members) * latency * (1 + 1e-9)


@pytest.mark.parametrize("members", range(2, 17))
def test_all_gather_without_a_fold(members):
    # Where n is no power of two, recursive doubling is Bruck's algorithm, the bytes of a ring in
    # ceil(log2 n) steps; the schedule folds, with up to 2.6 times the bytes and a step more.
    table, topology = one_level("switch", members)
    transfer, latency = scheduled(topology, "all_gather", "recursive_doubling", range(members))
    time, hops = closed("all_gather", "recursive_doubling", members, table)
    power = members & (members - 1) == 0
    assert time <= transfer * (1 + 1e-9) <= (1.0 if power else 2.6) * time * (1 + 1e-6)
    assert round((latency - hops) / US) == (0 if power else 1)


@pytest.mark.parametrize("members", range(2, 17))
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast"])
def test_trees_on_a_switch(collective, members):
    # NCCL's table gives trees 0.92 of a ring and its bytes, 2 (n-1)/n S where a tree of more than
    # two ranks sends 2 S; inside a node they are chains, no shallower than the tree.
    table, topology = one_level("switch", members)
    transfer, latency = scheduled(topology, collective, "double_binary_tree", range(members))
    time, hops = closed(collective, "double_binary_tree", members, table)
    # three ranks: one is inside both trees and has 4/3 of the bytes of the others, 3/2 S twice
    least = (members - 1) / members if collective == "all_reduce" and members > 2 else 1.0
    assert 0.99 * least * transfer <= time * TREE_FRACTION * (1 + 1e-9)
    assert time * TREE_FRACTION <= transfer * (1 + 1e-6)
    assert hops >= latency * (1 - 1e-9)


@pytest.mark.parametrize("nodes", range(2, 17))
def test_trees_of_nodes(nodes):
    # One rank of each node under NCCL's table: the bytes of the busiest over two nodes (S, where a
    # ring sends as much) and three (3/2 S); over more 2 (n-1)/n S of the schedule's 2 S.
    table, topology = two_levels(8, nodes)
    table.facts.tuned_low_latency_bandwidth = 1.0
    group = [np.arange(nodes) * 8]
    transfer, latency = scheduled(topology, "all_reduce", "double_binary_tree", group)
    time, hops = closed("all_reduce", "double_binary_tree", nodes, table, 8)
    least = 1.0 if nodes <= 3 else (nodes - 1) / nodes
    assert time * TREE_FRACTION == same(least * transfer)
    assert hops <= latency * (1 + 1e-9) <= hops + 2 * OUTER_HOP * (1 + 1e-6)


@pytest.mark.parametrize("members", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_reducing_switch(collective, members):
    # The same, but for an all-reduce: devices serve their peers' reads (S) and receive the result
    # of the others' parts (S/n), where a switch of the schedule takes and gives S.
    from perfmodel.kernels.collective.protocols import in_network_time

    table, topology = one_level("switch", members)
    table.levels[0].in_network_bandwidth = BANDWIDTH
    transfer = topology.load_time(
        link_loads(topology, collective, "in_network", SIZE, list(range(members)))
    )
    factor = 1 + 1 / members if collective == "all_reduce" else 1.0
    time = in_network_time(COLLECTIVES.index(collective), SIZE, members, 1, False, table)
    assert time == same(factor * transfer)


# Two levels ------------------------------------------------------------------------------------

# node, nodes, members, stride: whole nodes, parts of nodes, one member per node, fewer nodes
SHAPES = [
    *((4, 2, 8, 1), (8, 2, 16, 1), (8, 4, 32, 1), (8, 3, 24, 1)),
    *((4, 4, 8, 2), (8, 4, 16, 2), (8, 4, 4, 8), (8, 3, 3, 8), (8, 2, 4, 4), (8, 4, 2, 16)),
    *((8, 2, 8, 1), (8, 2, 5, 1), (8, 2, 2, 4)),
]
POWERS = [shape for shape in SHAPES if shape[2] & (shape[2] - 1) == 0]


def members_of_a_node(node, members, stride):
    return min(members, max(1, node // stride))


# Shapes whose groups fill the nodes they lie in; uneven groups have a test of their own.
EVEN = [shape for shape in SHAPES if shape[2] % members_of_a_node(shape[0], *shape[2:]) == 0]


def laid_out(node, nodes, members, stride, outer):
    """Table, topology, all groups of the shape, and members per node."""
    table, topology = two_levels(node, nodes, outer)
    inside = members_of_a_node(node, members, stride)
    total = node if inside == members else node * nodes
    return table, topology, every_group(total, members, stride), inside


def channels(groups, inside, rooted=False):
    """Rings that leave a node through different adapters: one per member of a node.

    Those of a broadcast all begin at one root, and so cannot only be turned: channel k leaves
    the first node at place k, channel 0 at once, and comes back for the others in the end.
    """
    places = groups.reshape(len(groups), -1, inside)
    turned = [np.roll(places, -shift, axis=2) for shift in range(inside)]
    if not rooted:
        return np.concatenate([turn.reshape(groups.shape) for turn in turned])
    if places.shape[1] == 1:
        return groups
    home, own = places[:, 0], np.arange(inside)
    first = np.concatenate([home[:, :1], places[:, 1:].reshape(len(groups), -1), home[:, 1:]], 1)
    rings = [first]
    for k in range(1, inside):
        order = [0, *own[(own > 0) & (own != k)], k]
        away = turned[k][:, 1:].reshape(len(groups), -1)
        rings.append(np.concatenate([home[:, order], away], 1))
    return np.concatenate(rings)


@pytest.mark.parametrize("outer", ["fat-tree", "rail"])
@pytest.mark.parametrize("shape", EVEN)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_rings_over_nodes_are_one_channel_per_port(collective, shape, outer):
    table, topology, groups, inside = laid_out(*shape, outer)
    rings = channels(groups, inside, collective == "broadcast")
    part = len(groups) / len(rings)
    transfer, latency = scheduled(topology, collective, "ring", rings, part)
    time, hops = closed(collective, "ring", shape[2], table, shape[3])
    assert time == same(transfer)
    if outer == "fat-tree" and collective != "broadcast":
        assert hops == same(latency)  # every step as slow as the slowest neighbour
    elif collective != "broadcast":  # the last of a domain first goes to the rail
        assert hops <= latency * (1 + 1e-9) <= hops * 1.25 * (1 + 1e-6)
    else:  # a chain passes each border once, the closed form waits at every rank
        assert hops >= latency * (1 - 1e-9) or outer == "rail"


@pytest.mark.parametrize("outer", ["fat-tree", "rail"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *(("all_reduce", name) for name in ("direct", "one_shot", "two_shot")),
        *(("all_gather", "direct"), ("reduce_scatter", "direct"), ("all_to_all", "direct")),
        *((name, "direct") for name in ("gather", "broadcast", "scatter")),
    ],
)
def test_direct_exchange_over_nodes(collective, algorithm, shape, outer):
    table, topology, groups, _ = laid_out(*shape, outer)
    transfer, latency = scheduled(topology, collective, algorithm, groups)
    time, hops = closed(collective, algorithm, shape[2], table, shape[3])
    if outer == "rail" and collective in ("broadcast", "scatter"):
        # The root has one adapter in the closed form; its node's rails share the work here.
        inside = members_of_a_node(shape[0], shape[2], shape[3])
        assert transfer <= time * (1 + 1e-9) <= inside * transfer * (1 + 1e-6)
    else:
        assert time == same(transfer)
    if collective == "all_to_all":
        assert hops >= 0.8 * latency
    elif outer == "fat-tree":
        assert hops == same(latency)
    else:  # to the rail first
        assert hops <= latency * (1 + 1e-9) <= hops * 1.25 * (1 + 1e-6)


@pytest.mark.parametrize("outer", ["fat-tree", "rail"])
@pytest.mark.parametrize("shape", POWERS)
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *((name, "halving_doubling") for name in ("all_reduce", "all_gather", "reduce_scatter")),
        *((name, "recursive_doubling") for name in ("all_reduce", "all_gather", "broadcast")),
        *((name, "recursive_doubling") for name in ("gather", "scatter")),
    ],
)
def test_doubling_over_nodes(collective, algorithm, shape, outer):
    # Halving-doubling keeps the long messages inside the node (MPICH's Rabenseifner all-reduce:
    # vector halving, distance doubling); the schedule does so with the nodes' members transposed.
    table, topology, groups, inside = laid_out(*shape, outer)
    if algorithm == "halving_doubling":
        groups = groups.reshape(len(groups), -1, inside).swapaxes(1, 2).reshape(groups.shape)
    transfer, latency = scheduled(topology, collective, algorithm, groups)
    assert closed(collective, algorithm, shape[2], table, shape[3]) == (
        same(transfer),
        same(latency),
    )


@pytest.mark.parametrize("nodes", range(2, 9))
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_halving_doubling_over_any_number_of_nodes(collective, nodes):
    # Level after level: inside every node with S, then among equal places with S/8.
    table, topology = two_levels(8, nodes)
    everyone = np.arange(8 * nodes).reshape(nodes, 8)
    inside = scheduled(topology, collective, "halving_doubling", everyone)
    across = scheduled(topology, collective, "halving_doubling", everyone.T, 1 / 8)
    time, hops = closed(collective, "halving_doubling", 8 * nodes, table)
    assert (time, hops) == (same(inside[0] + across[0]), same(inside[1] + across[1]))


@pytest.mark.parametrize("shape", [(8, 3, 24, 1), (8, 5, 40, 1), (8, 6, 48, 1), (8, 3, 3, 8)])
def test_recursive_doubling_of_three_nodes_folds_once(shape):
    # n ranks fold once and so make floor(log2 n) + 2 steps, not two more on every level. Which
    # of the steps cross nodes differs: the closed form folds inside.
    table, topology, groups, _ = laid_out(*shape, "fat-tree")
    transfer, _ = scheduled(topology, "all_reduce", "recursive_doubling", groups)
    time, _ = closed("all_reduce", "recursive_doubling", shape[2], table, shape[3])
    assert 0.95 * transfer <= time <= 1.35 * transfer


@pytest.mark.parametrize("outer", ["fat-tree", "rail"])
@pytest.mark.parametrize("shape", EVEN)
@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
)
def test_hierarchies(collective, shape, outer):
    table, topology, groups, inside = laid_out(*shape, outer)
    transfer, latency = scheduled(topology, collective, "hierarchical", groups, domain=inside)
    time, hops = closed(collective, "hierarchical", shape[2], table, shape[3])
    assert time == same(transfer)
    if collective == "all_to_all":
        assert hops >= latency * (1 - 1e-9)
    else:
        assert hops == same(latency)


@pytest.mark.parametrize("shape", EVEN)
def test_rail_aligned_all_to_all_waits_for_one_piece(shape):
    table, topology, groups, inside = laid_out(*shape, "rail")
    transfer, _ = scheduled(topology, "all_to_all", "rail_aligned", groups, domain=inside)
    time, _ = closed("all_to_all", "rail_aligned", shape[2], table, shape[3])
    piece = 4 * 2**20 / INNER if shape[2] > inside else 0.0
    assert time == same(transfer + piece)


@pytest.mark.parametrize("shape", EVEN)
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *(("all_reduce", "ring"), ("all_gather", "ring"), ("broadcast", "ring")),
        *(("all_to_all", "direct"), ("all_reduce", "one_shot"), ("gather", "direct")),
    ],
)
def test_bytes_on_the_busiest_link_of_each_level(collective, algorithm, shape):
    _, topology, groups, inside = laid_out(*shape, "fat-tree")
    members = shape[2]
    rings = algorithm == "ring"
    laid = channels(groups, inside, collective == "broadcast") if rings else groups
    loads = link_loads(topology, collective, algorithm, SIZE * len(groups) / len(laid), laid)
    codes = COLLECTIVES.index(collective), ALGORITHMS.index(algorithm)
    below = 1.0
    for level, above in enumerate((inside, members)):
        if above == below:
            continue
        expected = level_load(*codes, SIZE, members, below, float(above), below, level == 0)
        # in a fat tree uplinks carry a whole leaf: the devices' links are those of full bandwidth
        device = topology.link_bandwidth == (INNER, OUTER)[level]
        busiest = loads[(topology.link_dimension == level) & device].max()
        if rings and collective == "broadcast" and level == 0:
            # Elsewhere each member takes one channel from its adapter; in the root's node some do
            # not, and get all of S from their neighbour.
            assert expected * (1 - 1e-9) <= busiest <= SIZE * (1 + 1e-9)
        else:
            assert expected == same(busiest)
        below = float(above)


@pytest.mark.parametrize("over", [2.0, 4.0])
def test_oversubscription(over):
    # All devices send at once, so a leaf's uplinks leave each of them B / o.
    table, topology = two_levels(8, 4, over=over)
    everyone = [list(range(32))]
    transfer, _ = scheduled(topology, "all_to_all", "direct", everyone)
    assert closed("all_to_all", "direct", 32, table)[0] == same(transfer)


@pytest.mark.parametrize("members", [9, 12, 15])
def test_uneven_groups(members):
    # On nodes of eight; q ranks in the second node, whose ports are the bottleneck.
    table, topology = two_levels(8, 2)
    group = list(range(members))
    for collective in ("all_gather", "all_to_all", "reduce_scatter"):
        transfer, latency = scheduled(topology, collective, "direct", group)
        time, hops = closed(collective, "direct", members, table)
        assert time == same(transfer)
        assert hops >= latency * (1 - 1e-9)
    # rings: as many channels as the second node has ports; each leaves through one of its own
    ports = members - 8
    rings = [
        [*np.roll(range(8), shift), *(8 + np.roll(range(ports), shift))] for shift in range(ports)
    ]
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        transfer, latency = scheduled(topology, collective, "ring", rings, 1 / ports)
        assert closed(collective, "ring", members, table) == (same(transfer), same(latency))
    # halving-doubling: what the second node lacks has to come in through its ports
    time, _ = closed("all_gather", "halving_doubling", members, table)
    assert time == same(SIZE * (1 - 1 / 8) / INNER + 8 / members * SIZE / ports / OUTER)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_a_bounded_outermost_level_holds_every_group(collective):
    # Groups larger than all devices, or beyond the last level, lie on the outermost level.
    free, _ = two_levels(8, 2)
    bounded = free._replace(levels=free.levels.copy())
    bounded.levels[1].domains = 2
    for members, stride in ((64, 1), (8, 8), (4, 64), (2, 1024)):
        for algorithm in ("ring", "direct", "halving_doubling", "hierarchical"):
            if algorithm in ALGORITHMS_OF[collective]:
                group = collective, algorithm, members
                assert closed(*group, bounded, stride) == closed(*group, free, stride)


# Fully connected -------------------------------------------------------------------------------


@pytest.mark.parametrize("members", range(2, 17))
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *(("all_reduce", name) for name in ("direct", "one_shot", "two_shot")),
        *((name, "direct") for name in ("all_gather", "reduce_scatter", "broadcast")),
        *((name, "direct") for name in ("gather", "scatter")),
    ],
)
def test_direct_exchange_where_all_are_connected(collective, algorithm, members):
    table, topology = one_level("fully-connected", members)
    transfer, latency = scheduled(topology, collective, algorithm, range(members))
    assert closed(collective, algorithm, members, table) == (same(transfer), same(latency))


@pytest.mark.parametrize("members", [3, 4, 6])
def test_a_part_of_a_mesh_has_its_own_links(members):
    table, topology = one_level("fully-connected", 8)
    for collective in ("all_gather", "all_to_all", "gather"):
        transfer, _ = scheduled(topology, collective, "direct", range(members))
        assert closed(collective, "direct", members, table)[0] == same(transfer)
    transfer, _ = scheduled(topology, "point_to_point", "direct", [0, 5])
    assert closed("point_to_point", "direct", 2, table)[0] == same(transfer)


@pytest.mark.parametrize("members", [2, 3, 5, 7, 11, 13])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_rings_use_every_link_of_a_mesh(collective, members):
    # n-1 rings, each with another step from rank to rank, have no link in common (n prime).
    table, topology = one_level("fully-connected", members)
    step = np.arange(1, members)[:, None]
    rings = step * np.arange(members) % members
    transfer, latency = scheduled(topology, collective, "ring", rings, 1 / (members - 1))
    assert closed(collective, "ring", members, table) == (same(transfer), same(latency))


def bit_orders(members):
    """Orders of 2^k ranks whose k partners differ: every link in each step, in one order.

    Partner of a step is the rank xor a power of x in GF(2^k): the powers run through all
    differences (Singer cycle).
    """
    bits = members.bit_length() - 1
    polynomial = {2: 0b111, 3: 0b1011, 4: 0b10011}[bits]
    powers = [1]
    while len(powers) < members - 1:
        following = powers[-1] << 1
        powers.append(following ^ polynomial if following >= members else following)
    orders = []
    for first in range(members - 1):
        base = [powers[(first + bit) % (members - 1)] for bit in range(bits)]
        orders.append(
            [
                int(
                    np.bitwise_xor.reduce([base[bit] for bit in range(bits) if p >> bit & 1] or [0])
                )
                for p in range(members)
            ]
        )
    return orders


@pytest.mark.parametrize("members", [4, 8, 16])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *((name, "halving_doubling") for name in ("all_reduce", "all_gather", "reduce_scatter")),
        *((name, "recursive_doubling") for name in ("all_reduce", "broadcast", "gather")),
    ],
)
def test_doubling_uses_every_link_of_a_mesh(collective, algorithm, members):
    # With n-1 channels in different orders; one channel alone has one link at a time.
    table, topology = one_level("fully-connected", members)
    time, hops = closed(collective, algorithm, members, table)
    orders = bit_orders(members)
    assert (time, hops) == tuple(
        map(same, scheduled(topology, collective, algorithm, orders, 1 / (members - 1)))
    )
    alone, _ = scheduled(topology, collective, algorithm, orders[0])
    assert alone == same((members - 1) * time)


# Rings, tori, meshes ---------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("algorithm", ["ring", "bidirectional_ring"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_rings_on_a_ring(collective, algorithm, members):
    table, topology = one_level("ring", members)
    transfer, latency = scheduled(topology, collective, algorithm, range(members))
    assert closed(collective, algorithm, members, table) == (same(transfer), same(latency))


@pytest.mark.parametrize("members", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("algorithm", ["ring", "bidirectional_ring"])
def test_rings_on_a_line(algorithm, members):
    # The way back takes the other sense of the links, so one ring already uses both. Its steps are
    # those of two chains; the schedule sends the whole way back in every step.
    table, topology = one_level("mesh", members)
    transfer, latency = scheduled(topology, "all_gather", algorithm, range(members))
    time, hops = closed("all_gather", algorithm, members, table)
    assert time == same(transfer)
    assert hops == same((members - 1) * US)
    assert hops <= latency * (1 + 1e-9)


def detour(side, closed=True):
    """Bytes of the busiest link over those of all links, in a ring with all ties clockwise."""
    return 1 + 2 / side if closed and side > 2 and side % 2 == 0 else 1.0


TORI = [("ring", 1), ("torus", 2), ("mesh", 1), ("mesh", 2)]
EXCHANGES = [
    *(("all_reduce", "direct"), ("all_reduce", "one_shot"), ("all_reduce", "two_shot")),
    *(("all_gather", "direct"), ("reduce_scatter", "direct"), ("all_to_all", "direct")),
]


@pytest.mark.parametrize(
    ("kind", "dimensions"), [("ring", 1), ("torus", 2), ("mesh", 1), ("mesh", 2)]
)
@pytest.mark.parametrize("side", [2, 3, 4, 5, 6])
@pytest.mark.parametrize(("collective", "algorithm"), EXCHANGES)
def test_exchange_on_tori(collective, algorithm, side, kind, dimensions):
    # Exact, but for even closed sides: the closed form sends half of the bytes between opposite
    # ends either way, the routes of a topology all of them one way, 1 + 2/side of that.
    members = side**dimensions
    table, topology = one_level(kind, members, dimensions)
    time, hops = closed(collective, algorithm, members, table)
    transfer, latency = scheduled(topology, collective, algorithm, range(members))
    assert transfer == same(time * detour(side, kind != "mesh"))
    least = math.log2(members) * US if collective == "all_to_all" else 0.0
    assert hops == same(max(latency, least))


@pytest.mark.parametrize(("members", "factor"), [(4, 1.0), (8, detour(8))])
def test_exchange_within_one_dimension_of_a_torus(members, factor):
    # A row of an 8 x 8 torus, half of one or a closed one: a line or a ring of its own.
    table, topology = one_level("torus", 64, 2)
    time, _ = closed("all_to_all", "direct", members, table)
    transfer, _ = scheduled(topology, "all_to_all", "direct", range(members))
    assert transfer == same(time * factor)


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize(
    "algorithm", ["direct", "ring", "bidirectional_ring", "recursive_doubling"]
)
def test_groups_that_interleave_on_a_ring_share_its_links(algorithm, stride):
    members = 16 // stride
    table, topology = one_level("ring", 16)
    time, _ = closed("all_gather", algorithm, members, table, stride)
    groups = every_group(16, members, stride)
    transfer, _ = scheduled(topology, "all_gather", algorithm, groups)
    assert transfer == same(time * (detour(members) if algorithm == "direct" else 1.0))


@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_buckets_on_a_torus_are_rings_in_all_dimensions_and_both_senses(collective, side):
    # Four hierarchies of a quarter each: x first or y first, one sense or the other.
    members = side * side
    table, topology = one_level("torus", members, 2)
    square = np.arange(members).reshape(side, side)
    groups = [
        sense.ravel() for sense in (square, square.T, square[::-1, ::-1], square.T[::-1, ::-1])
    ]
    shape = topology, collective, "hierarchical"
    latency = scheduled_time(*shape, 0.0, groups, domain=side)
    whole = scheduled_time(*shape, SIZE / 4, groups, domain=side)
    time, hops = closed(collective, "bidirectional_ring", members, table)
    assert (time, hops) == (same(whole - latency), same(latency))


def far_first(members):
    """Order in which neighbours in the group are far apart: bits of the position reversed."""
    bits = members.bit_length() - 1
    return [int(f"{position:0{bits}b}"[::-1], 2) for position in range(members)]


@pytest.mark.parametrize(
    ("kind", "members", "dimensions"),
    [
        ("ring", 4, 1),
        ("ring", 8, 1),
        ("ring", 16, 1),
        ("mesh", 8, 1),
        ("torus", 16, 2),
        ("mesh", 16, 2),
    ],
)
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        *((name, "halving_doubling") for name in ("all_reduce", "all_gather", "reduce_scatter")),
        *((name, "recursive_doubling") for name in ("all_reduce", "all_gather", "broadcast")),
        *((name, "recursive_doubling") for name in ("gather", "scatter")),
    ],
)
def test_doubling_on_tori(collective, algorithm, kind, members, dimensions):
    # A message over distance d loads d links; halving sends the long ones to the neighbour.
    table, topology = one_level(kind, members, dimensions)
    group = far_first(members) if algorithm == "halving_doubling" else list(range(members))
    transfer, latency = scheduled(topology, collective, algorithm, group)
    assert closed(collective, algorithm, members, table) == (same(transfer), same(latency))


@pytest.mark.parametrize("members", [3, 5, 6, 7, 12])
@pytest.mark.parametrize("algorithm", ["halving_doubling", "recursive_doubling"])
def test_folds_on_a_ring(algorithm, members):
    # No power of two: distances between powers of two, so only about; halving-doubling of the
    # schedule also sends its long messages far.
    table, topology = one_level("ring", members)
    transfer, _ = scheduled(topology, "all_reduce", algorithm, range(members))
    time, _ = closed("all_reduce", algorithm, members, table)
    assert 0.4 * transfer <= time <= 1.65 * transfer


@pytest.mark.parametrize(
    ("kind", "dimensions"), [("ring", 1), ("torus", 2), ("mesh", 1), ("mesh", 2)]
)
@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize("collective", ["broadcast", "gather", "scatter"])
def test_a_root_has_all_its_links(collective, side, kind, dimensions):
    # At best; routes along x first, then y leave some idle: at most one of all links is used.
    members = side**dimensions
    table, topology = one_level(kind, members, dimensions)
    transfer, latency = scheduled(topology, collective, "direct", range(members))
    time, hops = closed(collective, "direct", members, table)
    assert time <= transfer * (1 + 1e-9) <= 2.2 * time
    assert hops == same(latency)


def test_a_message_to_the_neighbour():
    for kind, members, dimensions in (
        ("ring", 2, 1),
        ("ring", 8, 1),
        ("torus", 4, 2),
        ("mesh", 9, 2),
    ):
        table, topology = one_level(kind, members, dimensions)
        transfer, latency = scheduled(topology, "point_to_point", "direct", [0, 1])
        assert closed("point_to_point", "direct", 2, table) == (same(transfer), same(latency))


# Everything ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        *itertools.product(["switch", "fully-connected", "ring", "mesh"], [2, 3, 6, 8, 9, 16]),
        *(("torus", members) for members in (9, 16)),
    ],
)
def test_never_below_what_has_to_cross_the_middle(kind, members):
    # All-to-all, and all that every rank must receive: no closed form beats the bisection.
    dimensions = 2 if kind == "torus" else 1
    table, topology = one_level(kind, members, dimensions)
    half = members // 2
    across = topology.bisection_bandwidth()
    for collective, names in ALGORITHMS_OF.items():
        pieces = {"all_to_all": half * (members - half) / members}
        bytes_over = pieces.get(collective, half / members) * SIZE
        for algorithm in names:
            if algorithm.startswith("in_network") or collective in ("gather", "point_to_point"):
                continue
            time, _ = closed(collective, algorithm, members, table)
            assert time >= bytes_over / across * (1 - 1e-9), (collective, algorithm)


def test_profiles_without_overheads_agree():
    # The same through labelled profiles: level latencies and bandwidths arrive alike in both.
    hardware = load_hardware("dgx-h100")
    table = table_of(hardware.system.network, NO_OVERHEAD, "ideal")
    topology = Topology.from_hardware(hardware, 32)
    for collective, algorithm in itertools.product(
        ("all_gather", "reduce_scatter"), ("direct", "hierarchical")
    ):
        options = {"domain": 8} if algorithm == "hierarchical" else {}
        transfer, latency = scheduled(topology, collective, algorithm, range(32), **options)
        time, hops = closed(collective, algorithm, 32, table)
        assert (time, hops) == (same(transfer), same(latency))


def test_every_closed_form_has_a_schedule():
    for collective, names in ALGORITHMS_OF.items():
        lacking = set(names) - set(available(collective))
        allowed = {"recursive_doubling"} if collective == "reduce_scatter" else set()
        if collective == "multicast":  # a schedule of a multicast has no domains
            allowed = {"hierarchical"}
        if collective == "all_reduce":  # a schedule knows one reducing switch, not one per node
            allowed = {"in_network_tree"}
        assert lacking <= allowed, collective
