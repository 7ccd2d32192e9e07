"""Networks and algorithms that the tests of collectives price."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.collective import table as column
from perfmodel.kernels.collective.times import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
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


def realistic_network() -> np.ndarray:
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


def tuned(table: np.ndarray) -> np.ndarray:
    """The same network under a library with NCCL's table."""
    table = table.copy()
    table[0, column.TUNED_BANDWIDTH] = 360e9
    table[1, column.TUNED_BANDWIDTH] = 50e9
    table[0, column.TUNED_LOW_LATENCY_BANDWIDTH] = 141e9
    table[0, column.TUNED_IN_NETWORK_FRACTION] = 0.85
    return table
