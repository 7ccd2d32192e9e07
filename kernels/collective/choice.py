"""What a collective takes with a given algorithm, and which one a library takes.

A column of collectives has few kinds and groups, and many sizes: what does not depend on the size,
their algorithms' costs and what a library believes of them, is worked out once and kept.
"""

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
from perfmodel.kernels.collective.cost import (
    Cost,
    Filling,
    filled_transfer,
    network_cost,
    serves_all_pairs,
    slower,
)
from perfmodel.kernels.collective.protocols import (
    in_network_cost,
    in_network_time,
    protocol_time,
    shot_time,
)
from perfmodel.kernels.collective.table import (
    TORUS,
    domain_of_level,
)
from perfmodel.kernels.collective.tuning import (
    CANDIDATES,
    LOW_LATENCY,
    LOW_LATENCY_128,
    SIMPLE,
    Beliefs,
    size_class,
    tree_correction,
    tuned_beliefs,
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
def algorithm_cost(kind, algorithm, size, members, stride, network):
    """Costs of any algorithm; parameters as of `network_cost`."""
    if algorithm in (IN_NETWORK, IN_NETWORK_TREE):
        trees = algorithm == IN_NETWORK_TREE
        return in_network_cost(kind, size, members, stride, trees, network)
    return network_cost(kind, algorithm, size, members, stride, network)


@jit_lean
def cost_time(kind, algorithm, protocol, size, members, cost, network):
    """Time of an algorithm with a protocol [s], from its `algorithm_cost`."""
    if algorithm in (IN_NETWORK, IN_NETWORK_TREE):
        return cost.simple_hops + filled_transfer(size, cost)
    if algorithm in (ONE_SHOT, TWO_SHOT):
        return shot_time(size, cost, network)
    return protocol_time(protocol, kind, size, members, cost, network)


@jit_lean
def has_protocol(kind, algorithm, protocol):
    """Whether libraries have an algorithm with a protocol."""
    if algorithm in SIMPLE_ONLY:
        return protocol == SIMPLE
    if algorithm in (ONE_SHOT, TWO_SHOT):
        return protocol == LOW_LATENCY
    return protocol != LOW_LATENCY_128 or not is_pairwise(kind)


@jit_lean
def protocol_choice(kind, algorithm, protocol, size, members, cost, network):
    """Return the protocol of an algorithm and its time: the one given, or the fastest (``AUTO``).

    Parameters
    ----------
    kind, algorithm : int
    protocol : int
        ``LOW_LATENCY``, ``LOW_LATENCY_128``, ``SIMPLE`` or ``AUTO``.
    size : float
        S [B].
    members : int
    cost : Cost
        From `algorithm_cost`.
    network : Network

    Returns
    -------
    protocol : int
    time : float
        [s]; infinite where the network lacks what the algorithm or protocol needs.
    """
    best = np.inf
    taken = protocol
    for candidate in range(3):
        if protocol in (AUTO, candidate) and has_protocol(kind, algorithm, candidate):
            time = cost_time(kind, algorithm, candidate, size, members, cost, network)
            if time < best:
                best = time
                taken = candidate
    return taken, best


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
def pairwise_protocol(kind, size, members, beyond, library):
    """Return the protocol that a library with a table takes for messages between pairs."""
    piece = size if kind == POINT_TO_POINT else size / members
    return LOW_LATENCY if piece <= library.pairwise_low_latency_limit and not beyond else SIMPLE


@jit_lean
def tabled_time(kind, algorithm, protocol, size, members, cost, network):
    """Time of what a library with a table takes [s], from its `algorithm_cost`."""
    if algorithm == DOUBLE_BINARY_TREE:
        cost = slower(cost, tree_correction(protocol, size_class(size), network.library))
    return cost_time(kind, algorithm, protocol, size, members, cost, network)


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
        protocol = pairwise_protocol(kind, size, members, cost.beyond, network.library)
        return DIRECT, protocol, protocol_time(protocol, kind, size, members, cost, network)
    cost = network_cost(kind, RING, size, members, stride, network)
    beliefs = tuned_beliefs(kind, members, cost, network)
    algorithm, protocol = tuned_choice(kind, size, cost.beyond, beliefs, network.library)
    if algorithm != RING:
        cost = algorithm_cost(kind, algorithm, size, members, stride, network)
    return algorithm, protocol, tabled_time(kind, algorithm, protocol, size, members, cost, network)


MOST_SLOTS = 4096  # a power of two
PROBES = 8  # slots looked at before one is given up
# What a slot holds: whom of, whether its costs hold for all sizes, costs and beliefs.
CODE, MEMBERS, STRIDE, STEADY, COST = range(5)
BEYOND = COST + 11
LATENCY = COST + 12
TRANSFER = LATENCY + CANDIDATES
PLATEAU = TRANSFER + CANDIDATES
WIDTH = PLATEAU + 1


@jit_lean
def slots_for(rows):
    """Return how many slots are worth while for some rows: a power of two."""
    slots = 8
    while slots < 2 * rows and slots < MOST_SLOTS:
        slots *= 2
    return slots


@jit_lean
def recall(kind, algorithm, members, stride, network, memo):
    """Return the slot of an algorithm of a collective and group, filled where it was not.

    Parameters
    ----------
    kind, algorithm : int
    members, stride : int
        n > 1.
    network : Network
    memo : float64[slots, WIDTH]
        Slots of zeros are free.

    Returns
    -------
    int
    """
    code = 1 + 16 * kind + algorithm
    home = code * 2477 + members * 661 + stride * 40503
    home = (home ^ home >> 11) & (memo.shape[0] - 1)
    slot = home
    for _ in range(PROBES):
        if memo[slot, CODE] == code and (
            memo[slot, MEMBERS] == members and memo[slot, STRIDE] == stride
        ):
            return slot
        if memo[slot, CODE] == 0.0:
            break
        slot = (slot + 1) & (memo.shape[0] - 1)
    else:
        slot = home
    fill_slot(kind, algorithm, members, stride, network, memo, slot)
    memo[slot, CODE] = code
    return slot


@jit_lean
def fill_slot(kind, algorithm, members, stride, network, memo, slot):
    """Work out what a slot holds; see `recall`."""
    cost = algorithm_cost(kind, algorithm, 1.0, members, stride, network)
    memo[slot, MEMBERS] = members
    memo[slot, STRIDE] = stride
    memo[slot, STEADY] = cost.crossing_transfer <= 0.0
    kept = (
        cost.low_latency_transfer,
        cost.low_latency_128_transfer,
        cost.filling.transfer,
        cost.filling.fill,
        cost.filling.other_transfer,
        cost.filling.other_fill,
        cost.low_latency_hops,
        cost.low_latency_128_hops,
        cost.simple_hops,
        cost.tuned_transfer,
        cost.node,
        1.0 if cost.beyond else 0.0,
    )
    for field in range(12):
        memo[slot, COST + field] = kept[field]
    tuned = network.facts.tuned_low_latency_bandwidth > 0.0
    if tuned and algorithm == RING and not is_pairwise(kind):
        beliefs = tuned_beliefs(kind, members, cost, network)
        for field in range(CANDIDATES):
            memo[slot, LATENCY + field] = beliefs.latency[field]
            memo[slot, TRANSFER + field] = beliefs.transfer[field]
        memo[slot, PLATEAU] = beliefs.plateau


@jit_lean
def cost_of(memo, slot):
    """Return the costs that a slot holds."""
    return Cost(
        memo[slot, COST],
        memo[slot, COST + 1],
        Filling(
            memo[slot, COST + 2],
            memo[slot, COST + 3],
            memo[slot, COST + 4],
            memo[slot, COST + 5],
        ),
        0.0,
        memo[slot, COST + 6],
        memo[slot, COST + 7],
        memo[slot, COST + 8],
        memo[slot, COST + 9],
        memo[slot, COST + 10],
        memo[slot, BEYOND] > 0.0,
    )


@jit_lean
def beliefs_of(memo, slot):
    """Return what a slot of a ring holds of a library's beliefs."""
    return Beliefs(
        (
            memo[slot, LATENCY],
            memo[slot, LATENCY + 1],
            memo[slot, LATENCY + 2],
            memo[slot, LATENCY + 3],
            memo[slot, LATENCY + 4],
            memo[slot, LATENCY + 5],
            memo[slot, LATENCY + 6],
            memo[slot, LATENCY + 7],
        ),
        (
            memo[slot, TRANSFER],
            memo[slot, TRANSFER + 1],
            memo[slot, TRANSFER + 2],
            memo[slot, TRANSFER + 3],
            memo[slot, TRANSFER + 4],
            memo[slot, TRANSFER + 5],
            memo[slot, TRANSFER + 6],
            memo[slot, TRANSFER + 7],
        ),
        memo[slot, PLATEAU],
    )


@jit_lean
def memoised_cost(kind, algorithm, size, members, stride, network, memo):
    """As `algorithm_cost`; of another size of a kind and group that has come up, from its slot."""
    slot = recall(kind, algorithm, members, stride, network, memo)
    if memo[slot, STEADY] > 0.0:
        return cost_of(memo, slot)
    return algorithm_cost(kind, algorithm, size, members, stride, network)


@jit_lean
def memoised_choice(kind, size, members, stride, network, memo):
    """As `library_choice`, with what slots hold."""
    if network.facts.tuned_low_latency_bandwidth <= 0.0:
        return fastest_choice(kind, size, members, stride, network)
    if is_pairwise(kind):
        cost = memoised_cost(kind, DIRECT, size, members, stride, network, memo)
        protocol = pairwise_protocol(kind, size, members, cost.beyond, network.library)
        return DIRECT, protocol, protocol_time(protocol, kind, size, members, cost, network)
    slot = recall(kind, RING, members, stride, network, memo)
    beliefs = beliefs_of(memo, slot)
    beyond = memo[slot, BEYOND] > 0.0
    algorithm, protocol = tuned_choice(kind, size, beyond, beliefs, network.library)
    if algorithm == RING and memo[slot, STEADY] > 0.0:
        cost = cost_of(memo, slot)
    else:
        cost = memoised_cost(kind, algorithm, size, members, stride, network, memo)
    return algorithm, protocol, tabled_time(kind, algorithm, protocol, size, members, cost, network)
