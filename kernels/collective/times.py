"""Times of collectives on a hierarchical network.

An algorithm says how many hops it makes and which bytes it sends over each level
(`kernels.collective.algorithms`); a protocol says what a hop and a byte cost
(`kernels.collective.protocols`); a library says which of them runs
(`kernels.collective.choice`). Sizes follow nccl-tests.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.collective.algorithms import (
    AGGREGATED_TREES,
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
    IN_NETWORK_TREE,
    MULTICAST,
    ONE_SHOT,
    POINT_TO_POINT,
    RAIL_ALIGNED,
    RECURSIVE_DOUBLING,
    REDUCE_SCATTER,
    RING,
    SCATTER,
    TWO_SHOT,
    traffic,
)
from perfmodel.kernels.collective.choice import library_choice, protocol_choice
from perfmodel.kernels.collective.protocols import shot_time
from perfmodel.kernels.collective.remembered import (
    WIDTH,
    remembered_choice,
    remembered_cost,
    slots_for,
)
from perfmodel.kernels.collective.tuning import LOW_LATENCY, LOW_LATENCY_128, SIMPLE

__all__ = [
    "AGGREGATED_TREES",
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "BIDIRECTIONAL_RING",
    "BROADCAST",
    "DIRECT",
    "DOUBLE_BINARY_TREE",
    "GATHER",
    "HALVING_DOUBLING",
    "HIERARCHICAL",
    "IN_NETWORK",
    "IN_NETWORK_TREE",
    "LOW_LATENCY",
    "LOW_LATENCY_128",
    "MULTICAST",
    "ONE_SHOT",
    "POINT_TO_POINT",
    "RAIL_ALIGNED",
    "RECURSIVE_DOUBLING",
    "REDUCE_SCATTER",
    "RING",
    "SCATTER",
    "SIMPLE",
    "TWO_SHOT",
    "algorithm_times",
    "collective_choices",
    "collective_time",
    "collective_times",
    "serving_all_reduce_times",
    "traffic",
]


@jit_lean
def collective_time(kind, size, members, stride, network):
    """Completion time of one collective, all groups of its shape at work.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` ... ``SCATTER``.
    size : float
        S [B], nccl-tests convention: all-reduce, the buffer of a rank;
        all-gather, the whole output; reduce-scatter, the whole input;
        all-to-all, the whole send buffer of a rank; gather and scatter, the whole
        buffer of the root; otherwise the message.
    members : int
        n >= 1; ranks r, r + stride, ..., r + (n-1) stride.
    stride : int
        >= 1, in the numbering whose innermost network dimension is contiguous.
    network : Network
        See :mod:`perfmodel.kernels.collective.table`.

    Returns
    -------
    float
        [s]; 0 for a single member or an empty message.
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    return library_choice(kind, size, members, stride, network)[2]


@jit
def collective_times(kind, size, members, stride, network):
    """Completion times of many collectives, column by column.

    Parameters
    ----------
    kind : int64[rows]
    size : float64[rows]
        [B].
    members : int64[rows]
    stride : int64[rows]
    network : Network

    Returns
    -------
    float64[rows]
        [s].
    """
    return collective_choices(kind, size, members, stride, network)[0]


@jit
def serving_all_reduce_times(size, members, stride, network):
    """Times of all-reduces as serving engines run them: the fastest of what they have.

    Engines keep kernels of their own for small buffers, in which a device reads the
    buffers of its peers at once (``ONE_SHOT``) or a part of each (``TWO_SHOT``), and call
    the library for others.

    Parameters
    ----------
    size : float64[rows]
        [B].
    members, stride : int64[rows]
    network : Network

    Returns
    -------
    float64[rows]
        [s].
    """
    rows = size.shape[0]
    time = np.empty(rows)
    memo = np.zeros((slots_for(rows), WIDTH))
    for row in range(rows):
        time[row] = 0.0
        if members[row] <= 1 or size[row] <= 0.0:
            continue
        group = members[row], stride[row], network, memo
        time[row] = remembered_choice(ALL_REDUCE, size[row], *group)[2]
        for shot in (ONE_SHOT, TWO_SHOT):
            cost = remembered_cost(ALL_REDUCE, shot, size[row], *group)
            time[row] = min(time[row], shot_time(size[row], cost, network))
    return time


@jit
def collective_choices(kind, size, members, stride, network):
    """As `collective_times`, with the algorithm and the protocol that run.

    Returns
    -------
    time : float64[rows]
        [s].
    algorithm, protocol : int8[rows]
        -1 where nothing runs (a single member, an empty message).
    """
    rows = size.shape[0]
    time = np.empty(rows)
    algorithm, protocol = np.empty(rows, np.int8), np.empty(rows, np.int8)
    memo = np.zeros((slots_for(rows), WIDTH))
    for row in range(rows):
        algorithm[row], protocol[row], time[row] = -1, -1, 0.0
        if members[row] > 1 and size[row] > 0.0:
            algorithm[row], protocol[row], time[row] = remembered_choice(
                kind[row], size[row], members[row], stride[row], network, memo
            )
    return time, algorithm, protocol


@jit
def algorithm_times(kind, algorithm, protocol, size, members, stride, network):
    """Times of given algorithms and protocols, column by column; see `protocol_choice`.

    Parameters
    ----------
    kind, algorithm, protocol : int64[rows]
    size : float64[rows]
        [B].
    members, stride : int64[rows]
    network : Network

    Returns
    -------
    time : float64[rows]
        [s].
    protocol : int8[rows]
        The protocol itself, or the fastest one where it was ``AUTO``; -1 where nothing runs.
    """
    rows = size.shape[0]
    time, taken = np.empty(rows), np.empty(rows, np.int8)
    memo = np.zeros((slots_for(rows), WIDTH))
    for row in range(rows):
        taken[row], time[row] = -1, 0.0
        if members[row] <= 1 or size[row] <= 0.0:
            continue
        group = members[row], stride[row], network, memo
        cost = remembered_cost(kind[row], algorithm[row], size[row], *group)
        taken[row], time[row] = protocol_choice(
            kind[row], algorithm[row], protocol[row], size[row], members[row], cost, network
        )
    return time, taken
