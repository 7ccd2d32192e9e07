"""NCCL's own choice of algorithm and protocol from its tables."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.collective.algorithms import (
    AGGREGATED_TREES,
    ALL_GATHER,
    ALL_REDUCE,
    DOUBLE_BINARY_TREE,
    IN_NETWORK,
    IN_NETWORK_TREE,
    REDUCE_SCATTER,
    RING,
)
from perfmodel.kernels.collective.times import collective_choices
from perfmodel.kernels.collective.tuning import LOW_LATENCY, LOW_LATENCY_128, SIMPLE
from tests.kernels.collective.networks import INNER, MIB, OUTER, tuned


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


def test_a_rank_alone_in_its_node_has_aggregated_trees(realistic):
    # ncclTopoTuneModel: with one rank per node, ring hops have the network latency of trees, 5.0,
    # 8.5 and 14 us in place of 2.7, 4.0 and 14. By hand for 16 ranks over adapters of 50 GB/s: LL
    # 81.6 us at 20.4 GB/s, LL128 141.5 us at 46 GB/s, simple 218.4 us at 50 GB/s, over 15/16 of
    # the bytes; PAT 8 + 4 * 4 + 16 * 2.8 = 68.8 us and S / 37.5 GB/s. So PAT up to
    # 72.7 / (1/37.5 - 0.9375/46) = 11.56 MB, LL128 up to 76.9 / (0.9375 (1/46 - 1/50)) = 47.2 MB.
    sizes = np.array([1e3, 11.5e6, 11.6e6, 47e6, 47.4e6])
    rows = np.ones(5, np.int64)
    network = tuned(realistic)
    for kind in (ALL_GATHER, REDUCE_SCATTER):
        group = (kind * rows, sizes, 16 * rows, 8 * rows, network)
        time, algorithm, protocol = collective_choices(*group)
        assert algorithm.tolist() == [AGGREGATED_TREES] * 2 + [RING] * 3
        assert protocol.tolist() == [SIMPLE] * 2 + [LOW_LATENCY_128] * 2 + [SIMPLE]
        # ceil(log2 16) hops, 15/16 of the bytes over the adapter
        hops, alone = 4 * 3e-6, 15 / 16 * 1e3 / OUTER
        assert time[0] == pytest.approx(1.4e-5 + hops + alone + 1e3 / 16 * 0.5 / INNER, rel=1e-6)
    # Two ranks of a node, or an all-reduce: none.
    for kind, members, stride in ((ALL_GATHER, 32, 4), (ALL_GATHER, 8, 1), (ALL_REDUCE, 16, 8)):
        group = (kind * rows, sizes, members * rows, stride * rows, network)
        assert AGGREGATED_TREES not in collective_choices(*group)[1]


def test_all_reduces_over_nodes_join_reducing_switches_by_trees(realistic):
    # By hand from NCCL 2.28: NVLS trees 25 + 2 log2(m) 20.9 us at 2 (n-1)/n S over the least of
    # switches 2 * 360 * 0.85 * 7/8 = 535.5 GB/s, adapters 8 * 50 GB/s, twice that of two nodes,
    # and heads, 8 * 57.7 = 461.6 or 8 * 45.5 = 364 GB/s. Four nodes: 108.6 us. Rings of 32: LL
    # 6.6 + (62 - 8) 1.0 + 8 * 2.7 us, simple 8.4 + (62 - 8) 3.4 + 8 * 14 = 304 us (425.6 from
    # 64 * 16 * 32 B on) at 400 GB/s, so up to 317.0 / (2 * 31/32 (1/364 - 1/400)) = 661.7 MB.
    network = tuned(realistic)
    network.facts.in_network_pair_bandwidth = 57.7e9
    network.facts.in_network_tree_bandwidth = 45.5e9
    sizes = np.array([1e5, 64 * MIB, 6.61e8, 6.63e8])
    rows = np.ones(4, np.int64)
    group = (ALL_REDUCE * rows, sizes, 32 * rows, rows)
    _, algorithm, protocol = collective_choices(*group, network)
    assert algorithm.tolist() == [DOUBLE_BINARY_TREE, IN_NETWORK_TREE, IN_NETWORK_TREE, RING]
    assert protocol.tolist() == [LOW_LATENCY, SIMPLE, SIMPLE, SIMPLE]
    # Over two nodes the trees pass the rings for good.
    group = (ALL_REDUCE * rows, sizes + 64 * MIB, 16 * rows, rows)
    assert set(collective_choices(*group, network)[1]) == {IN_NETWORK_TREE}
    # Two ranks of each node do not use the switch, nor do nodes without one.
    few = (ALL_REDUCE * rows, sizes, 8 * rows, 4 * rows, network)
    assert IN_NETWORK_TREE not in collective_choices(*few)[1]
    network.facts.tuned_in_network_fraction = 0.0
    assert IN_NETWORK_TREE not in collective_choices(*group, network)[1]
