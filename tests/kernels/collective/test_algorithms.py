"""Single algorithms of collectives by hand: what each sends, folds and loads."""

from __future__ import annotations

import pytest

from perfmodel.kernels.collective.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DIRECT,
    DOUBLE_BINARY_TREE,
    GATHER,
    HALVING_DOUBLING,
    HIERARCHICAL,
    RAIL_ALIGNED,
    RECURSIVE_DOUBLING,
    REDUCE_SCATTER,
    RING,
    SCATTER,
)
from perfmodel.kernels.collective.times import collective_time
from perfmodel.kernels.collective.tuning import LOW_LATENCY, SIMPLE
from tests.kernels.collective.networks import (
    INNER,
    OUTER,
    algorithm_time,
    innermost,
    nodes_of_eight,
)


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


def test_halving_doubling_folds_odd_members():
    # five ranks: two steps for four of them, and one before and one after for the fifth
    table = innermost(nodes_of_eight())
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
    table.levels[1].message_latency = 1e-6
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


def test_many_thread_blocks_cost_a_step(realistic):
    # 4096 B per rank and block: half of the step where a second block joins, all of it far beyond
    narrow, half, wide = (
        algorithm_time(ALL_GATHER, RING, LOW_LATENCY, size, 8, 1, realistic)
        - size * (7 / 8 + 0.5 / 8) / INNER / 0.4
        for size in (1.0, 8 * 4096.0, 8 * 4096.0 * 100)
    )
    assert half - narrow == pytest.approx(1e-6, rel=1e-6)
    assert wide - narrow == pytest.approx(2e-6, rel=1e-3)
