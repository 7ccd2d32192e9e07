"""Which algorithm and protocol a library takes: NCCL's own table of beliefs.

NCCL compares ``latency + size / bandwidth`` of its algorithms and protocols, with
constants that it carries (`perfmodel/compute/libraries/nccl.toml`). Its beliefs are not
always what is fastest: the times jump where it changes its mind, which is what measured
curves show.

Letters
    n   members
    c   members per node
    m   nodes
    W   time of a byte at the ring bandwidth that NCCL believes [s/B]
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.collective.algorithms import (
    AGGREGATED_TREES,
    ALL_GATHER,
    ALL_REDUCE,
    DOUBLE_BINARY_TREE,
    IN_NETWORK,
    IN_NETWORK_TREE,
    REDUCE_SCATTER,
    RING,
    TREE_FRACTION,
    traffic,
)
from perfmodel.kernels.collective.table import (
    ADAPTER,
)

LOW_LATENCY = 0
LOW_LATENCY_128 = 1
SIMPLE = 2


@jit_lean
def size_class(size):
    """Power of two of a size over 64 B, rounded down: where trees are looked up."""
    return math.frexp(max(size, 64.0) / 64.0)[1] - 1


@jit_lean
def tree_correction(protocol, power, library):
    """Fraction of its bandwidth that NCCL grants a tree at a `size_class`."""
    correction = library.tree_correction
    if power >= correction.shape[1]:
        return 1.0
    return correction[protocol, power]


@jit_lean
def in_network_tree_belief(ring_bytes, node, nodes, doublings, network):
    """Time that NCCL believes an all-reduce by trees over reducing switches to take.

    Parameters
    ----------
    ring_bytes : float
        What a ring sends, over S.
    node, nodes : float
        c and m.
    doublings : float
        log2(m), rounded down.
    network : Network

    Returns
    -------
    latency : float
        [s]; infinite where no switch reduces, and of nodes with fewer than three members.
    transfer : float
        Of a byte [s/B].

    Notes
    -----
    NCCL 2.28, src/graph/tuning.cc, NCCL_ALGO_NVLS_TREE: the traffic of a ring at what c heads
    get of the switch, whose two operations are pipelined, of the adapters, twice that of two
    nodes, and of their channels (``perChMaxNVLSTreeBws``); log2(m) hops there and back.
    """
    library = network.library
    facts = network.facts
    switch = facts.tuned_in_network_fraction * network.levels[0].tuned_bandwidth
    if switch <= 0.0 or node < 3.0:
        return np.inf, 0.0
    bandwidth = 2.0 * switch * (node - 1.0) / node
    for level in range(network.levels.shape[0]):
        row = network.levels[level]
        if row.link_class == ADAPTER:
            adapters = node * row.tuned_bandwidth * (2.0 if nodes <= 2.0 else 1.0)
            bandwidth = min(bandwidth, adapters)
            break
    most = facts.in_network_pair_bandwidth if nodes <= 2.0 else facts.in_network_tree_bandwidth
    if most > 0.0:
        bandwidth = min(bandwidth, node * most)
    latency = library.in_network_latency + 2.0 * doublings * library.in_network_tree_hop
    return latency, ring_bytes / bandwidth


class Beliefs(NamedTuple):
    """What NCCL believes of a group: times ``latency + transfer S`` of its `CANDIDATES`."""

    latency: tuple[float, ...]  # [s]; infinite: not there
    transfer: tuple[float, ...]  # [s/B]
    plateau: float  # size from which rings of the last protocol are slower [B]


CANDIDATES = 8
FIRST_TREE = 4
ALGORITHM_OF = (RING, RING, RING, AGGREGATED_TREES, *3 * (DOUBLE_BINARY_TREE,), IN_NETWORK)
PROTOCOL_OF = (*range(3), SIMPLE, *range(3), SIMPLE)


@jit_lean
def ring_belief(protocol, inner, within, across, alone, beyond, ring_time, capped, network):
    """Latency and time of a byte that NCCL believes of a ring with a protocol.

    Parameters
    ----------
    protocol, inner : int
        And the link class inside a node.
    within, across : float
        Steps inside nodes and between them.
    alone, beyond : bool
        Whether a rank is alone in its node, and the group crosses adapters.
    ring_time, capped : float
        W, and the least of it with the first protocol [s/B].
    network : Network

    Returns
    -------
    latency, transfer : float
        [s], [s/B].
    """
    library = network.library
    if protocol == LOW_LATENCY_128 and network.levels[0].low_latency_128_fraction <= 0.0:
        return np.inf, 0.0
    hop = library.ring_hop[inner, protocol]
    if beyond:
        hop = max(hop, library.post_overhead * (3.0 if protocol == SIMPLE else 1.0))
    latency = library.ring_base[protocol] + within * hop
    latency += across * (
        library.tree_hop[ADAPTER, protocol] if alone else library.ring_hop[ADAPTER, protocol]
    )
    if protocol == LOW_LATENCY:
        return latency, max(ring_time / library.low_latency_share, capped)
    if protocol == LOW_LATENCY_128:
        return latency, ring_time / library.low_latency_128_share
    return latency, ring_time


@jit_lean
def tree_belief(protocol, inner, within, doublings, beyond, tree_time, capped, network):
    """As `ring_belief`, of trees: chains of some steps within nodes, doublings between them."""
    library = network.library
    if protocol == LOW_LATENCY_128 and network.levels[0].low_latency_128_fraction <= 0.0:
        return np.inf, 0.0
    latency = library.tree_base[protocol] + 2.0 * within * library.tree_hop[inner, protocol]
    if beyond:
        latency += 2.0 * doublings * library.tree_hop[ADAPTER, protocol]
    if protocol == LOW_LATENCY:
        return latency, max(tree_time / library.tree_low_latency_share, capped)
    if protocol == LOW_LATENCY_128:
        return latency, tree_time / library.tree_low_latency_128_share[1 if beyond else 0]
    return latency, tree_time


@jit_lean
def tuned_beliefs(kind, members, cost, network):
    """Times that NCCL believes rings, trees, reducing switches and both to take.

    Parameters
    ----------
    kind : int
        A collective that runs on rings: not pairwise.
    members : int
        n > 1.
    cost : Cost
        Of a ring.
    network : Network
        ``TUNED_LOW_LATENCY_BANDWIDTH`` is above 0.

    Returns
    -------
    Beliefs

    Notes
    -----
    NCCL 2.28, src/graph/tuning.cc, ncclTopoTuneModel.
    """
    library = network.library
    facts = network.facts
    beyond = cost.beyond
    inner = network.levels[0].link_class
    if inner == ADAPTER:
        inner = 0
    node = cost.node if beyond else float(members)
    nodes = math.ceil(members / node) if beyond else 1.0
    reduces = kind == ALL_REDUCE
    steps = 2.0 * (members - 1.0) if reduces else members - 1.0
    across = 0.0
    if beyond:
        across = min(2.0 * nodes if reduces else nodes - 1.0, steps)
    low_bandwidth = facts.tuned_low_latency_bandwidth
    if beyond:
        low_bandwidth = library.low_latency_across[0 if nodes <= 2.0 else 1]
    ring_bytes = traffic(kind, 1.0, members)
    # A rank alone in its node has none beside it to hide behind.
    alone = beyond and node <= 1.0

    ring_time = cost.tuned_transfer
    ring = inner, steps - across, across, alone, beyond, ring_time, ring_bytes / low_bandwidth
    low, low_byte = ring_belief(LOW_LATENCY, *ring, network)
    middle, middle_byte = ring_belief(LOW_LATENCY_128, *ring, network)
    simple, simple_byte = ring_belief(SIMPLE, *ring, network)
    plateau = library.plateau_chunk * 16.0 * members if beyond and reduces else np.inf

    doublings = math.floor(math.log2(nodes)) if beyond else 0.0
    # Trees, and aggregated ones in NCCL's count, send n / (n-1) times what a ring does.
    tree_time = ring_time * members / (members - 1.0)
    aggregated, aggregated_byte = np.inf, 0.0
    if kind in (ALL_GATHER, REDUCE_SCATTER) and alone:
        aggregated = library.aggregated_base + members * library.aggregated_member
        aggregated += doublings * library.aggregated_hop
        aggregated_byte = tree_time / library.aggregated_share

    low_tree = middle_tree = simple_tree = switch = np.inf
    low_tree_byte = middle_tree_byte = simple_tree_byte = switch_byte = 0.0
    if reduces:
        tree = inner, node - 1.0, doublings, beyond, tree_time / TREE_FRACTION, 2.0 / low_bandwidth
        low_tree, low_tree_byte = tree_belief(LOW_LATENCY, *tree, network)
        middle_tree, middle_tree_byte = tree_belief(LOW_LATENCY_128, *tree, network)
        simple_tree, simple_tree_byte = tree_belief(SIMPLE, *tree, network)
        in_network = facts.tuned_in_network_fraction * network.levels[0].tuned_bandwidth
        if beyond:
            switch, switch_byte = in_network_tree_belief(
                ring_bytes, node, nodes, doublings, network
            )
        elif in_network > 0.0 and members > 2:
            switch = library.in_network_latency
            heads = min(1.0, members / library.in_network_heads)
            switch_byte = 1.0 / (in_network * heads * library.in_network_ratio)
    return Beliefs(
        (low, middle, simple, aggregated, low_tree, middle_tree, simple_tree, switch),
        (
            low_byte,
            middle_byte,
            simple_byte,
            aggregated_byte,
            low_tree_byte,
            middle_tree_byte,
            simple_tree_byte,
            switch_byte,
        ),
        plateau,
    )


@jit_lean
def tuned_choice(kind, size, beyond, beliefs, library):
    """Choose as NCCL does between rings, trees, reducing switches and both, and protocols.

    Parameters
    ----------
    kind : int
        As of `tuned_beliefs`.
    size : float
        S [B].
    beyond : bool
        Whether the group crosses adapters.
    beliefs : Beliefs
    library : record of LIBRARY

    Returns
    -------
    algorithm, protocol : int

    Notes
    -----
    NCCL 2.28, src/graph/tuning.cc, ncclTopoGetAlgoTime.
    """
    best = np.inf
    taken = SIMPLE
    for candidate in range(FIRST_TREE):
        time = size * beliefs.transfer[candidate]
        slowed = candidate == SIMPLE and size >= beliefs.plateau
        time += beliefs.latency[candidate] * (library.ring_plateau if slowed else 1.0)
        if time < best:
            best = time
            taken = candidate
    if kind != ALL_REDUCE:
        return ALGORITHM_OF[taken], PROTOCOL_OF[taken]
    power = size_class(size)
    for candidate in range(FIRST_TREE, CANDIDATES):
        time = size * beliefs.transfer[candidate]
        if candidate < CANDIDATES - 1:
            time /= tree_correction(PROTOCOL_OF[candidate], power, library)
        time += beliefs.latency[candidate]
        if time < best:
            best = time
            taken = candidate
    algorithm = ALGORITHM_OF[taken]
    if beyond and algorithm == IN_NETWORK:
        algorithm = IN_NETWORK_TREE
    return algorithm, PROTOCOL_OF[taken]
