"""Which algorithm and protocol a library takes: NCCL's own table of beliefs.

NCCL compares ``latency + size / bandwidth`` of its algorithms and protocols, with
constants that it carries (`perfmodel/software/libraries/nccl.toml`). Its beliefs are not
always what is fastest: the times jump where it changes its mind, which is what measured
curves show.

Letters
    n   members
    c   members per node
    m   nodes
    W   time of the bytes at the ring bandwidth that NCCL believes [s]
"""

from __future__ import annotations

import math

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
    return int(math.log2(max(size, 64.0) / 64.0))


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
        What a ring sends [B].
    node, nodes : float
        c and m.
    doublings : float
        log2(m), rounded down.
    network : Network

    Returns
    -------
    float
        [s]; infinite where no switch reduces, and of nodes with fewer than three members.

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
        return np.inf
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
    return latency + ring_bytes / bandwidth


@jit_lean
def tuned_choice(kind, size, members, node, beyond, ring_time, network):
    """Choose as NCCL does between rings, trees, reducing switches and both, and protocols.

    Parameters
    ----------
    kind : int
        A collective that runs on rings: not pairwise.
    size : float
        S [B].
    members : int
        n > 1.
    node : float
        c, members per node.
    beyond : bool
        Whether the group crosses adapters.
    ring_time : float
        W [s].
    network : Network
        ``TUNED_LOW_LATENCY_BANDWIDTH`` is above 0.

    Returns
    -------
    algorithm, protocol : int

    Notes
    -----
    NCCL 2.28, src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime.
    """
    library = network.library
    inner = network.levels[0].link_class
    if inner == ADAPTER:
        inner = 0
    nodes = math.ceil(members / node) if beyond else 1.0
    if not beyond:
        node = float(members)
    steps = 2.0 * (members - 1.0) if kind == ALL_REDUCE else members - 1.0
    across = 0.0
    if beyond:
        across = 2.0 * nodes if kind == ALL_REDUCE else nodes - 1.0
        across = min(across, steps)
    has_128 = network.levels[0].low_latency_128_fraction > 0.0
    low_bandwidth = network.facts.tuned_low_latency_bandwidth
    if beyond:
        low_bandwidth = library.low_latency_across[0 if nodes <= 2.0 else 1]
    ring_bytes = traffic(kind, size, members)
    capped = ring_bytes / low_bandwidth
    # A rank alone in its node has none beside it to hide behind.
    alone = beyond and node <= 1.0

    best = np.inf
    algorithm = RING
    protocol = SIMPLE
    for p in range(3):
        if p == LOW_LATENCY_128 and not has_128:
            continue
        within = library.ring_hop[inner, p]
        if beyond:
            within = max(within, library.post_overhead * (3.0 if p == SIMPLE else 1.0))
        latency = library.ring_base[p] + (steps - across) * within
        latency += across * (
            library.tree_hop[ADAPTER, p] if alone else library.ring_hop[ADAPTER, p]
        )
        time = ring_time
        if p == LOW_LATENCY:
            time = max(ring_time / library.low_latency_share, capped)
        elif p == LOW_LATENCY_128:
            time = ring_time / library.low_latency_128_share
        elif beyond and kind == ALL_REDUCE and size >= library.plateau_chunk * 16.0 * members:
            latency *= library.ring_plateau
        if latency + time < best:
            best = latency + time
            protocol = p
    aggregates = kind in (ALL_GATHER, REDUCE_SCATTER) and alone
    if kind != ALL_REDUCE and not aggregates:
        return algorithm, protocol
    doublings = math.floor(math.log2(nodes)) if beyond else 0.0
    # Trees, and aggregated ones in NCCL's count, send n / (n-1) times what a ring does.
    tree_time = ring_time * members / (members - 1.0)
    if aggregates:
        latency = library.aggregated_base + members * library.aggregated_member
        latency += doublings * library.aggregated_hop
        time = tree_time / library.aggregated_share
        if latency + time < best:
            algorithm = AGGREGATED_TREES
            protocol = SIMPLE
    if kind != ALL_REDUCE:
        return algorithm, protocol

    tree_time /= TREE_FRACTION
    power = size_class(size)
    for p in range(3):
        if p == LOW_LATENCY_128 and not has_128:
            continue
        latency = library.tree_base[p] + 2.0 * (node - 1.0) * library.tree_hop[inner, p]
        if beyond:
            latency += 2.0 * doublings * library.tree_hop[ADAPTER, p]
        time = tree_time
        if p == LOW_LATENCY:
            time = max(time / library.tree_low_latency_share, 2.0 * size / low_bandwidth)
        elif p == LOW_LATENCY_128:
            time /= library.tree_low_latency_128_share[1 if beyond else 0]
        time /= tree_correction(p, power, library)
        if latency + time < best:
            best = latency + time
            algorithm = DOUBLE_BINARY_TREE
            protocol = p

    if beyond:
        if in_network_tree_belief(ring_bytes, node, nodes, doublings, network) < best:
            algorithm = IN_NETWORK_TREE
            protocol = SIMPLE
        return algorithm, protocol

    in_network = network.facts.tuned_in_network_fraction * network.levels[0].tuned_bandwidth
    if in_network > 0.0 and members > 2:
        heads = min(1.0, members / library.in_network_heads)
        time = library.in_network_latency + size / (in_network * heads * library.in_network_ratio)
        if time < best:
            algorithm = IN_NETWORK
            protocol = SIMPLE
    return algorithm, protocol
