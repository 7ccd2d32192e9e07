"""Properties of the collective kernels, and times checked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfmodel.kernels.collective import table as column
from perfmodel.kernels.collective.times import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    AUTO,
    BIDIRECTIONAL_RING,
    BROADCAST,
    DIRECT,
    DOUBLE_BINARY_TREE,
    GATHER,
    HALVING_DOUBLING,
    HIERARCHICAL,
    IN_NETWORK,
    LOW_LATENCY,
    LOW_LATENCY_128,
    MULTICAST,
    ONE_SHOT,
    POINT_TO_POINT,
    RAIL_ALIGNED,
    RECURSIVE_DOUBLING,
    REDUCE_SCATTER,
    RING,
    SCATTER,
    SIMPLE,
    TWO_SHOT,
    algorithm_time,
    algorithm_times,
    collective_choices,
    collective_time,
    collective_times,
    serving_all_reduce_times,
    traffic,
)

KINDS = (
    *(ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST),
    *(POINT_TO_POINT, MULTICAST, GATHER, SCATTER),
)
ALGORITHMS = {
    ALL_REDUCE: (
        *(RING, BIDIRECTIONAL_RING, DIRECT, HALVING_DOUBLING, RECURSIVE_DOUBLING),
        *(DOUBLE_BINARY_TREE, HIERARCHICAL, IN_NETWORK, ONE_SHOT, TWO_SHOT),
    ),
    ALL_GATHER: (RING, DIRECT, HALVING_DOUBLING, RECURSIVE_DOUBLING, HIERARCHICAL, IN_NETWORK),
    ALL_TO_ALL: (DIRECT, HIERARCHICAL, RAIL_ALIGNED),
    BROADCAST: (RING, DIRECT, RECURSIVE_DOUBLING, DOUBLE_BINARY_TREE, HIERARCHICAL, IN_NETWORK),
    GATHER: (DIRECT, RECURSIVE_DOUBLING),
}
EVERY = [(kind, algorithm) for kind, names in ALGORITHMS.items() for algorithm in names]
PROTOCOLS = (LOW_LATENCY, LOW_LATENCY_128, SIMPLE)
MIB = 2.0**20
INNER, OUTER = 400e9, 50e9


def level(
    size: int,
    bandwidth: float,
    topology: int = column.SWITCH,
    latency: float = 1e-6,
    scale_out: bool = False,
    **others: float,
) -> np.ndarray:
    """One row of a network table with full efficiency."""
    row = np.zeros(column.COLUMNS)
    row[column.SIZE] = size
    row[column.BANDWIDTH] = bandwidth
    row[column.TOPOLOGY] = topology
    row[column.DIMENSIONS] = 1
    row[column.LOW_LATENCY_HOP] = latency
    row[column.LOW_LATENCY_128_HOP] = latency
    row[column.HOP] = latency
    row[column.LOW_LATENCY_FRACTION] = 1.0
    row[column.PAIRWISE_FRACTION] = 1.0
    row[column.SHOT_FRACTION] = 1.0
    row[column.LINK_CLASS] = column.ADAPTER if scale_out else column.DEVICE_LINK
    for name, value in others.items():
        row[getattr(column, name)] = value
    return row


def nodes_of_eight(**inner: float) -> np.ndarray:
    """Switched nodes of eight with one adapter per device, unbounded fat tree."""
    return np.array(
        [
            level(8, INNER, **inner),
            level(0, OUTER, latency=3e-6, scale_out=True),
        ]
    )


@pytest.fixture
def realistic() -> np.ndarray:
    """Like an H100 node: protocols, pipeline fill, copies and switch reduction."""
    table = nodes_of_eight(
        PIPELINE_LATENCY=1e-6,
        IN_NETWORK_BANDWIDTH=330e9,
        IN_NETWORK_PIPELINE_LATENCY=5e-6,
        PAIRWISE_PIPELINE_LATENCY=5e-7,
        BASE_LATENCY=5e-6,
        LOW_LATENCY_128_BASE=1.5e-5,
        SIMPLE_BASE=1.4e-5,
        IN_NETWORK_BASE=2.5e-5,
        PAIRWISE_BASE=6e-6,
        PAIRWISE_SIMPLE_BASE=1.2e-5,
        SPREAD_LATENCY=2e-6,
        PAIRWISE_SPREAD_LATENCY=2e-6,
        LOCAL_COPY_FRACTION=0.5,
        LOW_LATENCY_128_FRACTION=0.9,
    )
    table[1, column.LOW_LATENCY_128_FRACTION] = 0.93
    table[:, column.LOW_LATENCY_FRACTION] = 0.4
    table[:, column.LOW_LATENCY_HOP] *= 0.8
    table[1, column.LOW_LATENCY_LIMIT] = 8 * MIB
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_one_member_or_nothing_to_send_takes_no_time(kind, realistic):
    assert collective_time(kind, 1e9, 1, 1, realistic) == 0.0
    assert collective_time(kind, 0.0, 8, 1, realistic) == 0.0


def test_ring_all_reduce_in_a_node_by_hand():
    # 2 (n-1) steps of latency + S / (n B), Patarasuk & Yuan 2009: n = 4, S = 4e8 B, B = 400e9 B/s
    expected = 6 * (1e-6 + 4e8 / 4 / 400e9)
    assert collective_time(ALL_REDUCE, 4e8, 4, 1, nodes_of_eight()) == pytest.approx(expected)


def test_all_reduce_over_two_nodes_by_hand():
    # Ring of 16, 8 ports per node: 2 * 15/16 * 8e9 / 8 B over each 50 GB/s adapter = 37.5 ms;
    # its 30 steps last as long as the adapter's hop. A tree has 14 hops of a chain inside and 2
    # outside, but reaches 0.92 of the bandwidth.
    table = nodes_of_eight()
    ring = algorithm_time(ALL_REDUCE, RING, SIMPLE, 8e9, 16, 1, table)
    assert ring == pytest.approx(37.5e-3 + 30 * 3e-6, rel=1e-9)
    tree = algorithm_time(ALL_REDUCE, DOUBLE_BINARY_TREE, SIMPLE, 8e9, 16, 1, table)
    assert tree == pytest.approx(37.5e-3 / 0.92 + 14e-6 + 2 * 3e-6, rel=1e-9)
    assert collective_time(ALL_REDUCE, 8e9, 16, 1, table) == min(ring, tree)


def test_all_to_all_over_two_nodes_by_hand():
    # 8 of 16 peers are in the other node: 1.6e9 * 8/16 / 50e9 = 16 ms, log2 hops 3 us + 3 * 1 us
    time = collective_time(ALL_TO_ALL, 1.6e9, 16, 1, nodes_of_eight())
    assert time == pytest.approx(16e-3 + 6e-6, rel=1e-9)


def test_algorithms_over_two_nodes_by_hand():
    # S = 1.6e9, 16 members, 8 inside: S (1/c - 1/C) per pass on each level (Thakur et al. 2005)
    table = nodes_of_eight()
    inside, outside = 1.6e9 * (1 - 1 / 8) / INNER, 1.6e9 * (1 / 8 - 1 / 16) / OUTER
    expected = {
        HALVING_DOUBLING: 2 * (inside + outside) + 2 * (3e-6 + 3e-6),
        HIERARCHICAL: 2 * (inside + outside) + 2 * (7e-6 + 3e-6),
        # three steps inside and one outside, the whole buffer each
        RECURSIVE_DOUBLING: 3 * 1.6e9 / INNER + 1.6e9 / OUTER + 3e-6 + 3e-6,
        # eight of sixteen parts, twice
        DIRECT: 2 * 8 / 16 * 1.6e9 / OUTER + 6e-6,
    }
    for algorithm, seconds in expected.items():
        time = algorithm_time(ALL_REDUCE, algorithm, SIMPLE, 1.6e9, 16, 1, table)
        assert time == pytest.approx(seconds, rel=1e-9), algorithm


def test_kernels_of_serving_engines_by_hand():
    # One kernel reads whole buffers or parts of them, with a base of its own and one protocol.
    table = nodes_of_eight(SHOT_BASE=2e-6, SHOT_FRACTION=0.5, BASE_LATENCY=9e-6, SIMPLE_BASE=9e-6)
    table[1, column.SHOT_FRACTION] = 0.5
    expected = {
        # the whole buffer to eight ranks beyond the adapter, both levels at once
        ONE_SHOT: 2e-6 + 8 * 1.6e9 / OUTER / 0.5 + 3e-6,
        # eight of sixteen parts, twice
        TWO_SHOT: 2e-6 + 2 * 8 / 16 * 1.6e9 / OUTER / 0.5 + 6e-6,
    }
    for algorithm, seconds in expected.items():
        shape = (1.6e9, 16, 1, table)
        time = algorithm_time(ALL_REDUCE, algorithm, LOW_LATENCY, *shape)
        assert time == pytest.approx(seconds, rel=1e-9), algorithm
        assert algorithm_time(ALL_REDUCE, algorithm, AUTO, *shape) == time
        assert algorithm_time(ALL_REDUCE, algorithm, SIMPLE, *shape) == math.inf


def test_engines_take_the_fastest(realistic):
    realistic[:, column.SHOT_FRACTION] = 0.6
    realistic[0, column.SHOT_BASE] = 2e-6
    sizes = np.array([1e3, 2e6, 1e9, 0.0])
    rows = np.ones(4, np.int64)
    times = serving_all_reduce_times(sizes, 8 * rows, rows, realistic)
    small, middle = (
        algorithm_time(ALL_REDUCE, shot, AUTO, size, 8, 1, realistic)
        for shot, size in ((ONE_SHOT, 1e3), (TWO_SHOT, 2e6))
    )
    assert times[:2].tolist() == [small, middle]
    assert times[2] == collective_time(ALL_REDUCE, 1e9, 8, 1, realistic)
    assert times[3] == 0.0


def test_halving_doubling_folds_odd_members():
    # five ranks: two steps for four of them, and one before and one after for the fifth
    table = nodes_of_eight()[:1]
    time = algorithm_time(REDUCE_SCATTER, HALVING_DOUBLING, SIMPLE, 4e8, 5, 1, table)
    # In blocks of S/5: all but one, then (backwards from the all-gather) the pairs with the fifth's
    # block hold 2 and 3, then one: 4 + 3 + 2 + 1.
    assert time == pytest.approx(4e8 * 10 / 5 / INNER + 4e-6)
    # An all-reduce: S to the partner and back, 2 (1 - 1/4) S between; one fold on either side.
    whole = algorithm_time(ALL_REDUCE, HALVING_DOUBLING, SIMPLE, 4e8, 5, 1, table)
    assert whole == pytest.approx(4e8 * 3.5 / INNER + 6e-6)
    # Recursive doubling of five: S in every one of 2 + 2 steps.
    doubled = algorithm_time(ALL_REDUCE, RECURSIVE_DOUBLING, SIMPLE, 4e8, 5, 1, table)
    assert doubled == pytest.approx(4 * (4e8 / INNER + 1e-6))


def test_all_to_all_by_rails_sends_fewer_messages():
    # tensor-parallel striding: groups of 16 ranks 2 apart have 4 members in each of 4 nodes
    table = nodes_of_eight()
    table[1, column.MESSAGE_LATENCY] = 1e-6
    direct = algorithm_time(ALL_TO_ALL, DIRECT, SIMPLE, 16e3, 16, 2, table)
    # log2 hops, 12 messages beyond the node, 12/16 of the buffer over the adapter
    assert direct == pytest.approx(2e-6 + 6e-6 + 12e-6 + 12e3 / OUTER)
    staged = algorithm_time(ALL_TO_ALL, HIERARCHICAL, SIMPLE, 16e3, 16, 2, table)
    # first inside the node (3/4 of the buffer), then one message to each other node
    assert staged == pytest.approx(2e-6 + 6e-6 + 3e-6 + 12e3 / INNER + 12e3 / OUTER)
    rails = algorithm_time(ALL_TO_ALL, RAIL_ALIGNED, SIMPLE, 16e3, 16, 2, table)
    # both at the same time, but for the first piece
    assert rails == pytest.approx(2e-6 + 6e-6 + 3e-6 + 12e3 / OUTER + 12e3 / INNER)
    large = [
        algorithm_time(ALL_TO_ALL, algorithm, SIMPLE, 1e9, 16, 2, table)
        for algorithm in (RAIL_ALIGNED, HIERARCHICAL)
    ]
    assert large[0] < large[1]


def test_gather_and_scatter_are_bound_by_the_port_of_the_root():
    table = nodes_of_eight()
    for kind in (GATHER, SCATTER):
        time = algorithm_time(kind, DIRECT, SIMPLE, 8e8, 8, 1, table)
        assert time == pytest.approx(7 / 8 * 8e8 / INNER + 1e-6)


@pytest.mark.parametrize("members", [2, 3, 8, 16, 40])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_reduce_scatter_and_all_gather_make_a_ring_all_reduce(members, size):
    table = nodes_of_eight()[:1]
    table[0, column.SIZE] = 0
    parts = sum(
        collective_time(kind, size, members, 1, table) for kind in (REDUCE_SCATTER, ALL_GATHER)
    )
    whole = collective_time(ALL_REDUCE, size, members, 1, table)
    assert whole == pytest.approx(parts, rel=1e-12)
    assert traffic(ALL_REDUCE, size, members) == pytest.approx(
        traffic(REDUCE_SCATTER, size, members) + traffic(ALL_GATHER, size, members)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [2, 3, 8, 12, 64])
@pytest.mark.parametrize("stride", [1, 2, 8])
def test_never_beats_the_bandwidth_bound(kind, members, stride):
    table = nodes_of_eight()
    for size in (1e4, 1e7, 1e10):
        bound = traffic(kind, size, members) / INNER
        assert collective_time(kind, size, members, stride, table) >= bound


@pytest.mark.parametrize("kind", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER])
def test_bytes_between_nodes_meet_the_hierarchical_bound(kind):
    # m nodes of 8 must exchange (m-1)/m of every shard of S/8 through each adapter.
    passes = 2 if kind == ALL_REDUCE else 1
    for nodes in (2, 4, 16):
        bound = passes * (nodes - 1) / nodes * 1e9 / 8 / OUTER
        assert collective_time(kind, 1e9, 8 * nodes, 1, nodes_of_eight()) >= bound


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_no_algorithm_beats_what_must_cross_a_border(kind, algorithm, realistic):
    # Bytes that every port must carry at least: (m-1)/m S of m nodes through 8 ports each, and
    # the whole result into every rank (Chan et al. 2007, table 1).
    for nodes in (1, 2, 4, 16):
        members = 8 * nodes
        for size in (1e4, 1e6, 1e9):
            if nodes == 1:
                least = (1 - 1 / members) * size / INNER
            elif kind == ALL_TO_ALL:  # every rank's own bytes leave through its own port
                least = (members - 8) / members * size / OUTER
            else:
                least = (1 - 1 / nodes) * size / 8 / OUTER
            for protocol in PROTOCOLS:
                time = algorithm_time(kind, algorithm, protocol, size, members, 1, realistic)
                assert time >= least


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
@pytest.mark.parametrize(("members", "stride"), [(2, 1), (8, 1), (16, 1), (64, 8), (12, 1)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_algorithm_grows_with_size(kind, algorithm, members, stride, protocol, realistic):
    times = [
        algorithm_time(kind, algorithm, protocol, 2.0**e, members, stride, realistic)
        for e in range(8, 36)
    ]
    assert all(a <= b for a, b in itertools.pairwise(times))


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_every_algorithm_gains_from_bandwidth_and_lower_latency(kind, algorithm, realistic):
    faster = realistic.copy()
    faster[:, [column.BANDWIDTH, column.IN_NETWORK_BANDWIDTH]] *= 2
    sooner = realistic.copy()
    sooner[:, [column.LOW_LATENCY_HOP, column.LOW_LATENCY_128_HOP, column.HOP]] /= 2
    for members, stride in ((2, 1), (8, 1), (24, 1), (64, 4)):
        for size in (1e3, 1e6, 1e9):
            group = (size, members, stride)
            base = algorithm_time(kind, algorithm, AUTO, *group, realistic)
            assert algorithm_time(kind, algorithm, AUTO, *group, faster) <= base
            assert algorithm_time(kind, algorithm, AUTO, *group, sooner) <= base


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("members", "stride"), [(2, 1), (8, 1), (16, 1), (64, 8), (12, 1)])
def test_time_grows_with_size(kind, members, stride, realistic):
    times = [collective_time(kind, 2.0**e, members, stride, realistic) for e in range(8, 36)]
    assert all(a <= b for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [2, 8, 64])
def test_more_bandwidth_is_never_slower_and_helps_large_messages(kind, members, realistic):
    faster = realistic.copy()
    faster[:, [column.BANDWIDTH, column.IN_NETWORK_BANDWIDTH]] *= 2
    for size in (1e3, 1e6, 1e9):
        slow = collective_time(kind, size, members, 1, realistic)
        fast = collective_time(kind, size, members, 1, faster)
        assert fast <= slow
    assert fast < 0.7 * slow


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [2, 4, 8, 32])
def test_a_larger_stride_is_never_faster(kind, members, realistic):
    # Below that a tree over nodes may beat the chain that NCCL makes of a node.
    smallest = 1e6 if kind in (ALL_REDUCE, BROADCAST, MULTICAST) else 1e3
    for size in (smallest, 1e7, 1e8, 1e10):
        times = [
            collective_time(kind, size, members, stride, realistic) for stride in (1, 2, 4, 8, 16)
        ]
        assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_inside_the_first_level_does_not_see_the_others(kind, realistic):
    for members in (2, 5, 8):
        inside = collective_time(kind, 1e8, members, 1, realistic)
        assert inside == collective_time(kind, 1e8, members, 1, realistic[:1])


@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_size_one_change_nothing(kind, realistic):
    padded = np.array([realistic[0], level(1, 1.0), realistic[1]])
    for members, stride in ((8, 1), (32, 1), (16, 8)):
        assert collective_time(kind, 1e8, members, stride, padded) == collective_time(
            kind, 1e8, members, stride, realistic
        )


def test_switch_reduction_helps_large_groups_only(realistic):
    without = realistic.copy()
    without[:, column.IN_NETWORK_BANDWIDTH] = 0.0
    ratio = [
        collective_time(ALL_REDUCE, 1e9, n, 1, realistic)
        / collective_time(ALL_REDUCE, 1e9, n, 1, without)
        for n in (2, 8)
    ]
    # Bytes 1 + 1/n against 2 (n-1)/n: no gain for two, 1.75 / 1.125 for eight.
    assert ratio[0] == 1.0
    assert ratio[1] < 0.9


def test_partial_groups_of_a_mesh_use_their_own_links():
    mesh = np.array([level(8, 70e9, column.FULLY_CONNECTED, latency=0.0)])
    whole = collective_time(ALL_GATHER, 8e9, 8, 1, mesh) * 8 / 7
    for members in (2, 3, 4):
        part = collective_time(ALL_GATHER, 8e9, members, 1, mesh) * members / (members - 1)
        assert part == pytest.approx(whole * 7 / (members - 1))
    mesh[0, column.IRREGULAR_LINKS] = 0.8
    cliff = collective_time(ALL_GATHER, 8e9, 6, 1, mesh) * 6 / 5
    assert cliff == pytest.approx(whole * 7 / 0.8)


def test_torus_gives_a_ring_the_links_of_its_dimensions():
    torus = level(64, 60e9, column.TORUS, latency=0.0, DIMENSIONS=3, WRAPS=1)[None]
    line, ring, plane, cube = (
        collective_time(ALL_GATHER, 6e9, n, 1, torus) * n / (n - 1) * 60e9 / 6e9
        for n in (2, 4, 16, 64)
    )
    assert (line, ring, plane, cube) == pytest.approx((6, 3, 1.5, 1))
    assert collective_time(POINT_TO_POINT, 6e9, 2, 1, torus) == pytest.approx(6 * 6 / 60)


def test_all_to_all_on_a_ring_is_bound_by_forwarding():
    ring = level(16, 20e9, column.TORUS, latency=0.0, WRAPS=1)[None]
    # Half of the ring sends 8 x 8 pieces of S/16 to the other half, and over two links of 10 GB/s
    # each way at that: no all-to-all takes less. (4 links per byte, on average over all positions.)
    expected = 8 * 8 * 1e9 / 16 / 20e9
    assert collective_time(ALL_TO_ALL, 1e9, 16, 1, ring) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("members", "stride", "expected"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 64, 1), (4, 2, 4)]
)
def test_members_inside_a_node(members, stride, expected):
    assert column.members_inside(members, stride, 8.0) == expected


def test_the_least_filled_node_has_the_fewest_ports():
    # 12 ranks on nodes of eight lie as 8 + 4
    even = collective_time(ALL_GATHER, 1e9, 16, 1, nodes_of_eight())
    uneven = collective_time(ALL_GATHER, 1e9, 12, 1, nodes_of_eight())
    assert uneven > 1.9 * even * (11 / 12) / (15 / 16)


def tuned(table: np.ndarray) -> np.ndarray:
    """The same network under a library with NCCL's table."""
    table = table.copy()
    table[0, column.TUNED_BANDWIDTH] = 360e9
    table[1, column.TUNED_BANDWIDTH] = 50e9
    table[0, column.TUNED_LOW_LATENCY_BANDWIDTH] = 141e9
    table[0, column.TUNED_IN_NETWORK_FRACTION] = 0.85
    return table


def test_choices_follow_the_table_of_the_library(realistic):
    # By hand from NCCL 2.28, src/graph/tuning.cc, four ranks of H100 (ring 360 GB/s, LL 141 GB/s):
    # LL 6.6 + 3 * 0.6 = 8.4 us and S * 3/4 / 141 GB/s; LL128 19.7 us and / 331 GB/s; simple 18.6 us
    # and / 360 GB/s. So LL up to 10.2 us / (0.75 (1/141 - 1/360)) = 3.15 MB, then simple.
    network = tuned(realistic)
    sizes = np.array([3.1e6, 3.2e6, 1e9])
    rows = np.ones(3, np.int64)
    _, algorithm, protocol = collective_choices(ALL_GATHER * rows, sizes, 4 * rows, rows, network)
    assert algorithm.tolist() == [RING, RING, RING]
    assert protocol.tolist() == [LOW_LATENCY, SIMPLE, SIMPLE]
    # Eight ranks: LL 10.8, LL128 27.3, simple 32.2 us; LL up to 16.5 / (0.875 (1/141 - 1/331.2))
    # = 4.63 MB, LL128 up to 4.9 / (0.875 (1/331.2 - 1/360)) = 23.2 MB.
    sizes = np.array([4.6e6, 4.7e6, 23e6, 23.4e6])
    rows = np.ones(4, np.int64)
    _, _, protocol = collective_choices(ALL_GATHER * rows, sizes, 8 * rows, rows, network)
    assert protocol.tolist() == [LOW_LATENCY, LOW_LATENCY_128, LOW_LATENCY_128, SIMPLE]
    # All-reduce of eight: the switch at 25 us and S / (360 * 0.85 * 5/6 = 255 GB/s) beats LL,
    # 15 us and S * 1.75 / 141 GB/s, from 10 / (1.75/141 - 1/255) = 1.18 MB on.
    sizes = np.array([1.1e6, 1.2e6])
    rows = np.ones(2, np.int64)
    _, algorithm, protocol = collective_choices(ALL_REDUCE * rows, sizes, 8 * rows, rows, network)
    assert algorithm.tolist() == [RING, IN_NETWORK]
    assert protocol.tolist() == [LOW_LATENCY, SIMPLE]


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_has_the_time_of_its_algorithm(kind, realistic):
    random = np.random.default_rng(5)
    for network in (realistic, tuned(realistic)):
        for members, stride in ((2, 1), (8, 1), (5, 1), (32, 1), (16, 8)):
            for size in 10 ** random.uniform(3, 10, 6):
                group = (size, members, stride, network)
                (time,), (algorithm,), (protocol,) = collective_choices(
                    np.array([kind]),
                    *(np.array([value]) for value in group[:3]),
                    network,
                )
                alone = algorithm_time(kind, algorithm, protocol, *group)
                if network is realistic or algorithm != DOUBLE_BINARY_TREE:
                    assert time == pytest.approx(alone, rel=1e-12)
                else:  # NCCL corrects trees at middle sizes
                    assert alone <= time <= 2.6 * alone


@pytest.mark.parametrize("kind", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER])
def test_a_whole_mesh_exchanges_small_messages_directly(kind):
    mesh = np.array([level(8, 500e9, column.FULLY_CONNECTED)])
    passes = 2 if kind == ALL_REDUCE else 1
    assert collective_time(kind, 8.0, 8, 1, mesh) == pytest.approx(passes * 1e-6, rel=1e-3)
    assert collective_time(kind, 8.0, 4, 1, mesh) == pytest.approx(3 * passes * 1e-6, rel=1e-3)


def test_one_sense_of_rotation_has_half_of_a_ring():
    ring = level(16, 20e9, column.TORUS, latency=0.0, WRAPS=1)[None]
    both, one = (
        algorithm_time(ALL_GATHER, algorithm, SIMPLE, 1e9, 16, 1, ring)
        for algorithm in (BIDIRECTIONAL_RING, RING)
    )
    assert one == pytest.approx(2 * both)
    assert collective_time(ALL_GATHER, 1e9, 16, 1, ring) == both


def test_buckets_pass_one_dimension_after_the_other():
    torus = level(64, 60e9, column.TORUS, DIMENSIONS=3, WRAPS=1)[None]
    # three dimensions of four: 9 hops, not 63
    assert collective_time(ALL_GATHER, 8.0, 64, 1, torus) == pytest.approx(9e-6, rel=1e-3)


def test_in_network_needs_a_switch_that_reduces(realistic):
    without = realistic.copy()
    without[:, column.IN_NETWORK_BANDWIDTH] = 0.0
    assert algorithm_time(ALL_REDUCE, IN_NETWORK, SIMPLE, 1e6, 8, 1, without) == math.inf
    assert algorithm_time(ALL_REDUCE, IN_NETWORK, SIMPLE, 1e6, 8, 1, realistic) < math.inf


def test_many_thread_blocks_cost_a_step(realistic):
    # 4096 B per rank and block: half of the step where a second block joins, all of it far beyond
    narrow, half, wide = (
        algorithm_time(ALL_GATHER, RING, LOW_LATENCY, size, 8, 1, realistic)
        - size * (7 / 8 + 0.5 / 8) / INNER / 0.4
        for size in (1.0, 8 * 4096.0, 8 * 4096.0 * 100)
    )
    assert half - narrow == pytest.approx(1e-6, rel=1e-6)
    assert wide - narrow == pytest.approx(2e-6, rel=1e-3)


def test_named_algorithms_equal_scalars(realistic):
    random = np.random.default_rng(4)
    picks = [EVERY[i] for i in random.integers(0, len(EVERY), 200)]
    kind, algorithm = (np.array(column) for column in zip(*picks, strict=True))
    protocol = random.integers(-1, 3, 200)
    group = (10 ** random.uniform(2, 10, 200), random.integers(1, 70, 200))
    stride = random.integers(1, 12, 200)
    times, taken = algorithm_times(kind, algorithm, protocol, *group, stride, realistic)
    for row in range(200):
        shape = (group[0][row], group[1][row], stride[row], realistic)
        if group[1][row] == 1:
            assert (times[row], taken[row]) == (0.0, -1)
            continue
        if np.isfinite(times[row]):
            alone = algorithm_time(kind[row], algorithm[row], taken[row], *shape)
            assert times[row] == alone
            least = algorithm_time(kind[row], algorithm[row], protocol[row], *shape)
            assert times[row] == least or protocol[row] >= 0


def test_columns_equal_scalars(realistic):
    random = np.random.default_rng(3)
    rows = 300
    kind = random.integers(0, 9, rows)
    size = 10 ** random.uniform(2, 10, rows)
    members = random.integers(1, 100, rows)
    stride = random.integers(1, 20, rows)
    times = collective_times(kind, size, members, stride, realistic)
    expected = [
        collective_time(*row, realistic) for row in zip(kind, size, members, stride, strict=True)
    ]
    np.testing.assert_array_equal(times, expected)
    assert all(math.isfinite(time) for time in times)
