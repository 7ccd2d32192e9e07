"""What a collective takes with a given algorithm, and which one a library takes."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.collective.algorithms import (
    AGGREGATED_TREES,
    ALL_GATHER,
    ALL_REDUCE,
    BIDIRECTIONAL_RING,
    BROADCAST,
    DIRECT,
    DOUBLE_BINARY_TREE,
    IN_NETWORK,
    IN_NETWORK_TREE,
    MULTICAST,
    ONE_SHOT,
    POINT_TO_POINT,
    REDUCE_SCATTER,
    RING,
    TWO_SHOT,
    is_pairwise,
)
from perfmodel.kernels.collective.cost import Cost, network_cost, serves_all_pairs
from perfmodel.kernels.collective.protocols import in_network_time, protocol_time, shot_time
from perfmodel.kernels.collective.table import (
    TORUS,
    domain_of_level,
)
from perfmodel.kernels.collective.tuning import (
    LOW_LATENCY,
    LOW_LATENCY_128,
    SIMPLE,
    size_class,
    tree_correction,
    tuned_choice,
)

AUTO = -1
SIMPLE_ONLY = (IN_NETWORK, IN_NETWORK_TREE, AGGREGATED_TREES)
"""Algorithms that libraries have with one protocol only (NCCL, src/graph/tuning.cc)."""


@jit_lean
def allows_low_latency(size, members, stride, network):
    """Whether a message is small enough for the flag protocols on all levels it crosses."""
    domain = 1.0
    below = 1.0
    for level in range(network.levels.shape[0]):
        row = network.levels[level]
        above, inside = domain_of_level(network, level, members, stride, domain)
        if inside > below and 0.0 < row.low_latency_limit < size:
            return False
        below = inside
        domain = above
        if inside >= members:
            break
    return True


@jit_lean
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
    network : Network

    Returns
    -------
    float
        [s]; infinite where the network lacks what the algorithm or protocol needs.
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    if algorithm in (IN_NETWORK, IN_NETWORK_TREE):
        trees = algorithm == IN_NETWORK_TREE
        return in_network_time(kind, size, members, stride, trees, network)
    cost = network_cost(kind, algorithm, size, members, stride, network)
    if algorithm == AGGREGATED_TREES:
        return protocol_time(SIMPLE, kind, size, members, cost, network)
    if algorithm in (ONE_SHOT, TWO_SHOT):
        return shot_time(LOW_LATENCY if protocol == AUTO else protocol, cost, network)
    if protocol != AUTO:
        return protocol_time(protocol, kind, size, members, cost, network)
    best = np.inf
    for candidate in range(3):
        if is_pairwise(kind) and candidate == LOW_LATENCY_128:
            continue
        best = min(best, protocol_time(candidate, kind, size, members, cost, network))
    return best


@jit_lean
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
            if not pairwise and network.levels[0].topology == TORUS:
                candidate = BIDIRECTIONAL_RING
        elif pairwise:
            break
        elif trial == 1:
            candidate = DOUBLE_BINARY_TREE
            if kind != ALL_REDUCE and kind != BROADCAST and kind != MULTICAST:
                continue
        elif trial == 2:
            candidate = DIRECT
            reduces = kind in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
            if not reduces or not serves_all_pairs(members, network):
                continue
        else:
            candidate = IN_NETWORK
            time = in_network_time(kind, size, members, stride, False, network)
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


@jit_lean
def slower(cost, reached):
    """Costs of a tree that reaches a part of its bandwidth: what NCCL corrects for."""
    return Cost(
        cost.low_latency_transfer / reached,
        cost.low_latency_128_transfer / reached,
        cost.simple_transfer / reached,
        cost.low_latency_hops,
        cost.low_latency_128_hops,
        cost.simple_hops,
        cost.tuned_transfer,
        cost.node,
        cost.beyond,
    )


@jit_lean
def library_choice(kind, size, members, stride, network):
    """Choose algorithm and protocol as the device's library does, and time them.

    Parameters
    ----------
    kind : int
    size : float
        S [B], > 0.
    members, stride : int
        n > 1.
    network : Network

    Returns
    -------
    algorithm, protocol : int
    time : float
        [s].
    """
    if network.facts.tuned_low_latency_bandwidth <= 0.0:
        return fastest_choice(kind, size, members, stride, network)
    if is_pairwise(kind):
        cost = network_cost(kind, DIRECT, size, members, stride, network)
        piece = size if kind == POINT_TO_POINT else size / members
        protocol = SIMPLE
        if piece <= network.library.pairwise_low_latency_limit and not cost.beyond:
            protocol = LOW_LATENCY
        return DIRECT, protocol, protocol_time(protocol, kind, size, members, cost, network)
    cost = network_cost(kind, RING, size, members, stride, network)
    algorithm, protocol = tuned_choice(
        kind, size, members, cost.node, cost.beyond, cost.tuned_transfer, network
    )
    if algorithm in (IN_NETWORK, IN_NETWORK_TREE):
        trees = algorithm == IN_NETWORK_TREE
        time = in_network_time(kind, size, members, stride, trees, network)
        return algorithm, protocol, time
    if algorithm == AGGREGATED_TREES:
        cost = network_cost(kind, algorithm, size, members, stride, network)
    if algorithm == DOUBLE_BINARY_TREE:
        cost = slower(
            network_cost(kind, algorithm, size, members, stride, network),
            tree_correction(protocol, size_class(size), network.library),
        )
    return algorithm, protocol, protocol_time(protocol, kind, size, members, cost, network)
