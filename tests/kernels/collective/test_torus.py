"""Collectives on rings, tori and meshes: dimensions, forwarding and the share of links."""

from __future__ import annotations

import pytest

from perfmodel.kernels.collective import table as column
from perfmodel.kernels.collective.times import (
    ALL_GATHER,
    ALL_TO_ALL,
    BIDIRECTIONAL_RING,
    POINT_TO_POINT,
    RING,
    SIMPLE,
    collective_time,
)
from tests.kernels.collective.networks import algorithm_time, level, network_of


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
