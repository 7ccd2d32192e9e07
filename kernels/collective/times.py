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
    is_pairwise,
    traffic,
)
from perfmodel.kernels.collective.choice import (
    AUTO,
    SIMPLE_ONLY,
    algorithm_time,
    library_choice,
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
    "algorithm_time",
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
    time = np.empty(size.shape[0])
    for row in range(size.shape[0]):
        time[row] = collective_time(kind[row], size[row], members[row], stride[row], network)
    return time


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
    time = np.zeros(size.shape[0])
    for row in range(size.shape[0]):
        if members[row] <= 1 or size[row] <= 0.0:
            continue
        time[row] = collective_time(ALL_REDUCE, size[row], members[row], stride[row], network)
        for shot in (ONE_SHOT, TWO_SHOT):
            trial = algorithm_time(
                ALL_REDUCE, shot, LOW_LATENCY, size[row], members[row], stride[row], network
            )
            time[row] = min(time[row], trial)
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
    time = np.zeros(size.shape[0])
    algorithm = np.full(size.shape[0], -1, np.int8)
    protocol = np.full(size.shape[0], -1, np.int8)
    for row in range(size.shape[0]):
        if members[row] > 1 and size[row] > 0.0:
            algorithm[row], protocol[row], time[row] = library_choice(
                kind[row], size[row], members[row], stride[row], network
            )
    return time, algorithm, protocol


@jit
def algorithm_times(kind, algorithm, protocol, size, members, stride, network):
    """Times of given algorithms and protocols, column by column; see `algorithm_time`.

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
    time = np.zeros(size.shape[0])
    taken = np.full(size.shape[0], -1, np.int8)
    for row in range(size.shape[0]):
        if members[row] <= 1 or size[row] <= 0.0:
            continue
        taken[row] = protocol[row]
        time[row] = np.inf
        for candidate in range(3):
            if protocol[row] != AUTO and candidate != protocol[row]:
                continue
            if algorithm[row] in SIMPLE_ONLY and candidate != SIMPLE:
                continue
            if is_pairwise(kind[row]) and candidate == LOW_LATENCY_128:
                continue
            trial = algorithm_time(
                kind[row], algorithm[row], candidate, size[row], members[row], stride[row], network
            )
            if trial < time[row]:
                time[row] = trial
                taken[row] = candidate
    return time, taken
