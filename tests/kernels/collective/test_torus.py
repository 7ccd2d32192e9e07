"""Collectives on rings, tori and meshes: dimensions, forwarding and the share of links."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.kernels.collective import table as column
from perfmodel.kernels.collective.algorithms import (
    ALL_GATHER,
    ALL_TO_ALL,
    BIDIRECTIONAL_RING,
    POINT_TO_POINT,
    RING,
)
from perfmodel.kernels.collective.times import collective_time
from perfmodel.kernels.collective.torus import (
    DOUBLING,
    EXCHANGE,
    GROWING,
    HALVING,
    ONE_WAY,
    slice_diameter,
    slice_hops,
    slice_links,
    traffic_share,
)
from perfmodel.kernels.collective.tuning import SIMPLE
from tests.kernels.collective.networks import algorithm_time, level, network_of

POWERS = [2**power for power in range(1, 13)]


def torus(dimensions, side, *, closing):
    size = side**dimensions
    options = {"latency": 0.0, "dimensions": dimensions, "wraps": 1, "closing_side": closing}
    return network_of(level(size, 60e9, column.TORUS, **options))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_torus_of_side_four_gives_the_same_links_numbered_or_in_slices(dimensions):
    numbered, sliced = (torus(dimensions, 4, closing=closing) for closing in (0, 4))
    members = 4**dimensions
    for n, stride in itertools.product([2, 4, 8, 16, 32, 64], repeat=2):
        if n * stride <= members:
            one, other = (
                collective_time(ALL_GATHER, 6e9, n, stride, it) for it in (numbered, sliced)
            )
            assert one == pytest.approx(other, rel=1e-12), (n, stride)


def test_each_doubling_adds_a_link_until_a_cube_is_whole():
    row = torus(3, 16, closing=4).levels[0]
    assert [slice_links(row, n, 1) for n in POWERS] == pytest.approx([1, 2, 3, 4, 5, *[6] * 7])
    # Four inside: a ring of four has two links of its own, larger groups share with it.
    assert slice_links(row, 4, 4) == pytest.approx(2)
    assert slice_links(row, 64, 4) == pytest.approx(6 * 6 / 8)
    plane = torus(2, 16, closing=16).levels[0]
    found = [slice_links(plane, n, 1) for n in POWERS[:8]]
    assert found == pytest.approx([1, 2, 2, 2, 3, 3, 3, 4])  # a ring of four from 2 x 2 on
    assert slice_links(plane, 16, 16) == pytest.approx(2)  # one closed side of two
    assert [slice_hops(row, n, 1) for n in (2, 4, 8, 64)] == pytest.approx([1, 2, 3, 9])
    assert slice_diameter(row, 64, 1) == pytest.approx(6)  # half of each closed side of four


@pytest.mark.parametrize(("dimensions", "closing"), [(1, 2), (1, 4), (2, 16), (3, 4)])
@pytest.mark.parametrize("stride", [1, 2, 4, 8, 64])
def test_nothing_jumps_and_no_pattern_has_more_than_the_links(dimensions, closing, stride):
    network = torus(dimensions, 16, closing=closing)
    row = network.levels[0]
    for n in range(2, 300):
        links = slice_links(row, float(n), float(stride))
        assert 0 < links <= 2 * dimensions * (1 + 1e-12)
        assert links <= n - 1 + 1e-12  # a pair has one link, three two
        # A further member: neither much faster nor much slower.
        one, two = (collective_time(ALL_GATHER, 1e9, m, stride, network) for m in (n, n + 1))
        assert 0.84 < two / one < 1.4
        for pattern in (ONE_WAY, EXCHANGE, HALVING, GROWING, DOUBLING):
            share = traffic_share(pattern, row, float(n), float(stride))
            assert 0 < share <= links / (2 * dimensions) * (1 + 1e-9), (n, pattern)


def test_exchange_has_farther_to_go_than_a_ring():
    network = torus(3, 16, closing=4)
    for n in (2, 8, 64, 512):
        ring = algorithm_time(ALL_GATHER, BIDIRECTIONAL_RING, SIMPLE, 1e9, n, 1, network)
        assert collective_time(ALL_TO_ALL, 1e9, n, 1, network) >= ring * (1 - 1e-9)


def test_doubling_a_group_takes_at_most_a_third_off():
    # No more than what a link more explains: from two links to three, where a second side begins
    # behind a closed one; from two to four chips it is 3/4.
    for dimensions, closing in ((2, 16), (3, 4)):
        network = torus(dimensions, 16, closing=closing)
        for stride in (1, 2, 4, 16, 128):
            times = [collective_time(ALL_GATHER, 1e9, n, stride, network) for n in POWERS]
            inside = np.array(times)[np.array(POWERS) * stride <= 16**dimensions]
            assert (inside[1:] / inside[:-1] >= 2 / 3).all()


def test_torus_gives_a_ring_the_links_of_its_dimensions():
    torus = network_of(level(64, 60e9, column.TORUS, latency=0.0, dimensions=3, wraps=1))
    line, ring, plane, cube = (
        collective_time(ALL_GATHER, 6e9, n, 1, torus) * n / (n - 1) * 60e9 / 6e9
        for n in (2, 4, 16, 64)
    )
    assert (line, ring, plane, cube) == pytest.approx((6, 3, 1.5, 1))
    assert collective_time(POINT_TO_POINT, 6e9, 2, 1, torus) == pytest.approx(6 * 6 / 60)


def test_all_to_all_on_a_ring_is_bound_by_forwarding():
    ring = network_of(level(16, 20e9, column.TORUS, latency=0.0, wraps=1))
    # Half of the ring sends 8 x 8 pieces of S/16 to the other half, and over two links of 10 GB/s
    # each way at that: no all-to-all takes less. (4 links per byte, on average over all positions.)
    expected = 8 * 8 * 1e9 / 16 / 20e9
    assert collective_time(ALL_TO_ALL, 1e9, 16, 1, ring) == pytest.approx(expected)


def test_one_sense_of_rotation_has_half_of_a_ring():
    ring = network_of(level(16, 20e9, column.TORUS, latency=0.0, wraps=1))
    both, one = (
        algorithm_time(ALL_GATHER, algorithm, SIMPLE, 1e9, 16, 1, ring)
        for algorithm in (BIDIRECTIONAL_RING, RING)
    )
    assert one == pytest.approx(2 * both)
    assert collective_time(ALL_GATHER, 1e9, 16, 1, ring) == both


def test_buckets_pass_one_dimension_after_the_other():
    torus = network_of(level(64, 60e9, column.TORUS, dimensions=3, wraps=1))
    # three dimensions of four: 9 hops, not 63
    assert collective_time(ALL_GATHER, 8.0, 64, 1, torus) == pytest.approx(9e-6, rel=1e-3)
