"""Properties of the collective kernels, and times checked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from perfmodel.kernels import collective_hierarchy as column
from perfmodel.kernels.collective import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    POINT_TO_POINT,
    REDUCE_SCATTER,
    collective_time,
    collective_times,
    traffic,
)

KINDS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, POINT_TO_POINT)
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
    row[column.HOP] = latency
    row[column.LOW_LATENCY_FRACTION] = 1.0
    row[column.ALL_TO_ALL_FRACTION] = 1.0
    row[column.SCALE_OUT] = scale_out
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
        IN_NETWORK_LATENCY=1e-5,
        BASE_LATENCY=5e-6,
        LOCAL_COPY_FRACTION=0.5,
    )
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
    # hops: 14 of the chain at the pace of the network, 2 of the tree, 3 us each.
    time = collective_time(ALL_REDUCE, 8e9, 16, 1, nodes_of_eight())
    # the fastest protocol here is the low-latency one at full rate: 14 * 1 us + 2 * 3 us
    assert time == pytest.approx(37.5e-3 + 20e-6, rel=1e-9)


def test_all_to_all_over_two_nodes_by_hand():
    # 8 of 16 peers are in the other node: 1.6e9 * 8/16 / 50e9 = 16 ms, log2 hops 3 us + 3 * 1 us
    time = collective_time(ALL_TO_ALL, 1.6e9, 16, 1, nodes_of_eight())
    assert time == pytest.approx(16e-3 + 6e-6, rel=1e-9)


@pytest.mark.parametrize("members", [2, 3, 8, 16, 40])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_reduce_scatter_and_all_gather_make_a_ring_all_reduce(members, size):
    table = nodes_of_eight()[:1]
    table[0, column.SIZE] = 0
    parts = sum(
        collective_time(kind, size, members, 1, table) for kind in (REDUCE_SCATTER, ALL_GATHER)
    )
    whole = collective_time(ALL_REDUCE, size, members, 1, table)
    if members <= column.LONGEST_CHAIN:
        assert whole == pytest.approx(parts, rel=1e-12)
    else:  # trees save latency, the bytes are the same
        saved = parts - whole
        assert 0.0 <= saved <= 2 * members * 1e-6
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
    smallest = 1e6 if kind in (ALL_REDUCE, BROADCAST) else 1e3
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
    # 16 positions: 4 links per byte on average over a device's two directions
    expected = 15 / 16 * 1e9 * 4 / 20e9
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


def test_columns_equal_scalars(realistic):
    random = np.random.default_rng(3)
    rows = 300
    kind = random.integers(0, 6, rows)
    size = 10 ** random.uniform(2, 10, rows)
    members = random.integers(1, 100, rows)
    stride = random.integers(1, 20, rows)
    times = collective_times(kind, size, members, stride, realistic)
    expected = [
        collective_time(*row, realistic) for row in zip(kind, size, members, stride, strict=True)
    ]
    np.testing.assert_array_equal(times, expected)
    assert all(math.isfinite(time) for time in times)
