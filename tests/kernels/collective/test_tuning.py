"""NCCL's own choice of algorithm and protocol from its tables."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.collective.times import (
    ALL_GATHER,
    ALL_REDUCE,
    IN_NETWORK,
    LOW_LATENCY,
    LOW_LATENCY_128,
    RING,
    SIMPLE,
    collective_choices,
)
from tests.kernels.collective.networks import tuned


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


def test_a_rank_alone_in_its_node_hides_no_latency_of_the_network(realistic):
    # ncclTopoTuneModel: with one rank per node, ring hops have the network latency of trees, 5.0,
    # 8.5 and 14 us in place of 2.7, 4.0 and 14. By hand for 16 ranks over adapters of 50 GB/s: LL
    # 81.6 us at 20.4 GB/s, LL128 141.5 us at 46 GB/s, simple 218.4 us at 50 GB/s, over 15/16 of
    # the bytes: LL up to 59.9 / (0.9375 (1/20.4 - 1/46)) = 2.34 MB, LL128 up to
    # 76.9 / (0.9375 (1/46 - 1/50)) = 47.2 MB.
    sizes = np.array([2.3e6, 2.4e6, 47e6, 47.4e6])
    rows = np.ones(4, np.int64)
    _, _, protocol = collective_choices(
        ALL_GATHER * rows, sizes, 16 * rows, 8 * rows, tuned(realistic)
    )
    assert protocol.tolist() == [LOW_LATENCY, LOW_LATENCY_128, LOW_LATENCY_128, SIMPLE]
