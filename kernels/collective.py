"""Times of collectives on a hierarchical network.

An algorithm says how many hops it makes and which bytes it sends over each level
(`kernels.collective_algorithms`); a protocol says what a hop and a byte cost (here);
a library says which of them runs (`kernels.collective_tuning`, or the fastest).

Letters
    S   size in the nccl-tests convention [B]
    n   members of the group
    T   transfer time: bytes per device / achievable bandwidth [s]
    F   latency that fills the pipeline of a level [s]
    H   sum of the latencies of the hops on the critical path [s]
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.collective_algorithms import (
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
    level_load,
    level_share,
    network_cost,
    serves_all_pairs,
    traffic,
)
from perfmodel.kernels.collective_hierarchy import (
    BANDWIDTH,
    BASE_LATENCY,
    HOP,
    IN_NETWORK_BANDWIDTH,
    IN_NETWORK_BASE,
    IN_NETWORK_PIPELINE_LATENCY,
    LOW_LATENCY_128_BASE,
    LOW_LATENCY_128_FRACTION,
    LOW_LATENCY_LIMIT,
    PAIRWISE_BASE,
    PAIRWISE_SIMPLE_BASE,
    PAIRWISE_SPREAD_LATENCY,
    SIMPLE_BASE,
    SIZE,
    SPREAD_LATENCY,
    TOPOLOGY,
    TORUS,
    TUNED_LOW_LATENCY_BANDWIDTH,
    fewest_inside,
    members_inside,
)
from perfmodel.kernels.collective_tuning import (
    LOW_LATENCY,
    LOW_LATENCY_128,
    SIMPLE,
    tree_correction,
    tuned_choice,
)

__all__ = [
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
    "traffic",
]

AUTO = -1
# Bytes that one thread block of a low-latency ring takes per rank before a second one
# joins: 512 threads of 8 B (NCCL src/include/comm.h, NCCL_LL_THREAD_THRESHOLD).
BLOCK_BYTES = 4096.0
PAIRWISE_BLOCK_BYTES = 8192.0
# Largest message between two peers in the low-latency protocol (NCCL_P2P_LL_THRESHOLD).
PAIRWISE_LOW_LATENCY_LIMIT = 16384.0


@jit
def spread(bytes_per_block_unit):
    """Share of the cost of many thread blocks, 0 (one block) ... 1: a smooth step."""
    square = bytes_per_block_unit * bytes_per_block_unit
    return square / (1.0 + square)


@jit
def protocol_time(protocol, kind, size, members, cost, network):
    """Time of an algorithm under a protocol.

    Parameters
    ----------
    protocol : int
        ``LOW_LATENCY``, ``LOW_LATENCY_128`` or ``SIMPLE``.
    kind : int
    size : float
        S [B].
    members : int
        n > 1.
    cost : tuple
        What `network_cost` returns.
    network : float64[levels, COLUMNS]

    Returns
    -------
    float
        [s].

    Notes
    -----
    Low latency (a flag with every word)          base + H + spread + max(T / f)
    Low latency 128 (a flag per 128 bytes)        base + H + max(T / f)
    Simple (chunks and fences)                    base + H + max(T + 2 sqrt(F T))

    ``2 sqrt(F T)`` is what filling a pipeline costs at the best chunk size: k
    chunks over s stages of latency a take ``(s + k) (a + T / k)``, at least
    ``(sqrt(F) + sqrt(T))**2`` with ``F = s a`` (Johnsson & Ho 1989, "Optimum
    broadcasting and personalized communication in hypercubes"); H holds the F.
    """
    low_transfer, middle_transfer, filled, low, middle, simple = cost[:6]
    facts = network[0]
    if is_pairwise(kind):
        if protocol == SIMPLE:
            return facts[PAIRWISE_SIMPLE_BASE] + low + filled
        piece = size if kind == POINT_TO_POINT else size / members
        extra = facts[PAIRWISE_SPREAD_LATENCY] * spread(piece / PAIRWISE_BLOCK_BYTES)
        return facts[PAIRWISE_BASE] + low + extra + low_transfer
    if protocol == LOW_LATENCY:
        extra = facts[SPREAD_LATENCY] * spread(size / (BLOCK_BYTES * members))
        return facts[BASE_LATENCY] + low + extra + low_transfer
    if protocol == LOW_LATENCY_128:
        if facts[LOW_LATENCY_128_FRACTION] <= 0.0:
            return np.inf
        return facts[LOW_LATENCY_128_BASE] + middle + middle_transfer
    return facts[SIMPLE_BASE] + simple + filled


@jit
def in_network_time(kind, size, members, stride, network):
    """Time where switches reduce and copy; infinite where none does.

    Parameters
    ----------
    kind : int
        All-reduce, all-gather, reduce-scatter, broadcast or multicast.
    size : float
        S [B].
    members, stride : int
    network : float64[levels, COLUMNS]

    Returns
    -------
    float
        [s].

    Notes
    -----
    On a scale-up switch every device serves the reducing reads of its peers (S) and
    receives the multicast (S/n): S (1 + 1/p) for all-reduce; (p-1)/p S for all-gather
    and reduce-scatter, S for broadcast (NVLink SHARP: Klenk et al. 2020, "An in-network
    architecture for accelerating shared-memory multiprocessor collectives"). Levels
    above reduce too (SHARP) or run a tree over the ports.
    """
    best = 0.0
    latency = 0.0
    reduces = False
    domain = 1.0
    below = 1.0
    ports = 1.0
    for level in range(network.shape[0]):
        row = network[level]
        outermost = level == network.shape[0] - 1
        above = domain * row[SIZE]
        inside = float(members) if outermost else members_inside(members, stride, above)
        if inside <= below:
            domain = above
            continue
        positions = math.ceil(inside / below)
        if row[IN_NETWORK_BANDWIDTH] > 0.0:
            reduces = True
            share = (positions - 1.0) / positions
            if kind == ALL_REDUCE:
                share = 1.0 + 1.0 / positions if level == 0 else 1.0
            elif kind in (BROADCAST, MULTICAST):
                share = 1.0
            time = share * size / ports / row[IN_NETWORK_BANDWIDTH]
            fill = row[IN_NETWORK_PIPELINE_LATENCY]
        else:
            spacing = max(1.0, stride / domain)
            tree = DOUBLE_BINARY_TREE
            bandwidth = level_share(kind, tree, row, positions, spacing) * row[BANDWIDTH]
            time = level_load(kind, tree, size, members, below, inside, ports) / bandwidth
            fill = math.log2(1.0 + positions) * row[HOP]
            latency += (2.0 if kind == ALL_REDUCE else 1.0) * fill
        best = max(best, time + 2.0 * math.sqrt(fill * time))
        ports = fewest_inside(float(members), inside)
        below = inside
        domain = above
        if inside >= members:
            break
    if not reduces:
        return np.inf
    return network[0, IN_NETWORK_BASE] + latency + best


@jit
def algorithm_time(kind, algorithm, protocol, size, members, stride, network):
    """Time of one algorithm, with one protocol or the fastest (``AUTO``).

    Parameters
    ----------
    kind, algorithm : int
    protocol : int
        ``LOW_LATENCY``, ``LOW_LATENCY_128``, ``SIMPLE`` or ``AUTO``.
    size : float
        S [B].
    members, stride : int
    network : float64[levels, COLUMNS]

    Returns
    -------
    float
        [s]; infinite where the network lacks what the algorithm or protocol needs.
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    if algorithm == IN_NETWORK:
        return in_network_time(kind, size, members, stride, network)
    cost = network_cost(kind, algorithm, size, members, stride, network)
    if protocol != AUTO:
        return protocol_time(protocol, kind, size, members, cost, network)
    best = np.inf
    for candidate in range(3):
        if is_pairwise(kind) and candidate == LOW_LATENCY_128:
            continue
        best = min(best, protocol_time(candidate, kind, size, members, cost, network))
    return best


@jit
def allows_low_latency(size, members, stride, network):
    """Whether a message is small enough for the flag protocols on all levels it crosses."""
    domain = 1.0
    below = 1.0
    for level in range(network.shape[0]):
        row = network[level]
        above = domain * row[SIZE]
        last = level == network.shape[0] - 1
        inside = float(members) if last else members_inside(members, stride, above)
        if inside > below and 0.0 < row[LOW_LATENCY_LIMIT] < size:
            return False
        below = inside
        domain = above
        if inside >= members:
            break
    return True


@jit
def fastest_choice(kind, size, members, stride, network):
    """Choose the fastest of what a library without a table has: ring, tree, switch, direct.

    Returns
    -------
    algorithm, protocol : int
    time : float
        [s].
    """
    best = np.inf
    algorithm = RING
    protocol = SIMPLE
    flags = allows_low_latency(size, members, stride, network)
    pairwise = is_pairwise(kind)
    for trial in range(4):
        if trial == 0:
            candidate = DIRECT if pairwise else RING
            if not pairwise and network[0, TOPOLOGY] == TORUS:
                candidate = BIDIRECTIONAL_RING
        elif pairwise:
            break
        elif trial == 1:
            candidate = DOUBLE_BINARY_TREE
            if kind != ALL_REDUCE and kind != BROADCAST and kind != MULTICAST:
                continue
        elif trial == 2:
            candidate = TWO_SHOT if kind == ALL_REDUCE else DIRECT
            reduces = kind in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
            if not reduces or not serves_all_pairs(members, network):
                continue
        else:
            candidate = IN_NETWORK
            time = in_network_time(kind, size, members, stride, network)
            if time < best:
                best = time
                algorithm = candidate
                protocol = SIMPLE
            continue
        cost = network_cost(kind, candidate, size, members, stride, network)
        for p in range(3):
            if (p != SIMPLE and not flags) or (pairwise and p == LOW_LATENCY_128):
                continue
            time = protocol_time(p, kind, size, members, cost, network)
            if time < best:
                best = time
                algorithm = candidate
                protocol = p
    return algorithm, protocol, best


@jit
def slower(cost, reached):
    """Costs of a tree that reaches a part of its bandwidth: what NCCL corrects for."""
    low, middle, filled = cost[0] / reached, cost[1] / reached, cost[2] / reached
    return low, middle, filled, cost[3], cost[4], cost[5], cost[6], cost[7], cost[8]


@jit
def library_choice(kind, size, members, stride, network):
    """Choose algorithm and protocol as the device's library does, and time them.

    Parameters
    ----------
    kind : int
    size : float
        S [B], > 0.
    members, stride : int
        n > 1.
    network : float64[levels, COLUMNS]

    Returns
    -------
    algorithm, protocol : int
    time : float
        [s].
    """
    if network[0, TUNED_LOW_LATENCY_BANDWIDTH] <= 0.0:
        return fastest_choice(kind, size, members, stride, network)
    if is_pairwise(kind):
        cost = network_cost(kind, DIRECT, size, members, stride, network)
        piece = size if kind == POINT_TO_POINT else size / members
        protocol = SIMPLE
        if piece <= PAIRWISE_LOW_LATENCY_LIMIT and not cost[8]:
            protocol = LOW_LATENCY
        return DIRECT, protocol, protocol_time(protocol, kind, size, members, cost, network)
    cost = network_cost(kind, RING, size, members, stride, network)
    algorithm, protocol = tuned_choice(kind, size, members, cost[7], cost[8], cost[6], network)
    if algorithm == IN_NETWORK:
        time = in_network_time(kind, size, members, stride, network)
        return algorithm, protocol, time
    if algorithm == DOUBLE_BINARY_TREE:
        cost = slower(
            network_cost(kind, algorithm, size, members, stride, network),
            tree_correction(protocol, size),
        )
    return algorithm, protocol, protocol_time(protocol, kind, size, members, cost, network)


@jit
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
    network : float64[levels, COLUMNS]
        See :mod:`perfmodel.kernels.collective_hierarchy`.

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
    network : float64[levels, COLUMNS]

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
    network : float64[levels, COLUMNS]

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
            if algorithm[row] == IN_NETWORK and candidate != SIMPLE:
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
