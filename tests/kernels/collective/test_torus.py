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
    algorithm_time,
    collective_time,
)
from tests.kernels.collective.networks import level


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
