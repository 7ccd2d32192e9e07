"""Which algorithm and protocol a library takes: NCCL's own table of beliefs.

NCCL compares ``latency + size / bandwidth`` of its algorithms and protocols, with
constants that it carries (src/graph/tuning.cc of NCCL 2.28; facts, in seconds and as
fractions here). Its beliefs are not always what is fastest: the times jump where it
changes its mind, which is what measured curves show.

Letters
    n   members
    c   members per node
    m   nodes
    W   time of the bytes at the ring bandwidth that NCCL believes [s]
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.collective.algorithms import (
    ALL_REDUCE,
    DOUBLE_BINARY_TREE,
    IN_NETWORK,
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

# Base and hop latencies by protocol (low latency, low latency 128, simple) [s].
RING_BASE = (6.6e-6, 14.0e-6, 8.4e-6)
TREE_BASE = (6.8e-6, 14.0e-6, 8.4e-6)
# One hop by link class (device link, bus, adapter) and protocol [s].
RING_HOP = ((0.6e-6, 1.9e-6, 3.4e-6), (1.0e-6, 2.5e-6, 5.7e-6), (2.7e-6, 4.0e-6, 14.0e-6))
TREE_HOP = ((0.6e-6, 1.25e-6, 4.0e-6), (1.0e-6, 1.9e-6, 4.0e-6), (5.0e-6, 8.5e-6, 14.0e-6))
POST_OVERHEAD = 1.0e-6  # of a message to an adapter; three times for the simple protocol
IN_NETWORK_LATENCY = 25.0e-6
IN_NETWORK_RATIO = 5.0 / 6.0
IN_NETWORK_HEADS = 6.0  # members from which in-network channels fill the links
LOW_LATENCY_SHARE = 0.5  # of the ring bandwidth: every word carries a flag
LOW_LATENCY_128_SHARE = 0.92  # 120 of 128 bytes
TREE_LOW_LATENCY_SHARE = 1.0 / 3.8
TREE_LOW_LATENCY_128_SHARE = (7.0 / 9.0, 120.0 / 128.0)  # one node, several
LOW_LATENCY_ACROSS = (39.0e9, 20.4e9)  # two nodes, more [B/s]
RING_PLATEAU = 1.4  # simple rings over nodes wait for chunks
PLATEAU_CHUNK = 64.0  # bytes per channel and rank from which they do

# By protocol and power of two of the size, from 64 B: what trees reach of their bandwidth.
# fmt: off
TREE_CORRECTION = np.array(
    [
        [1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
         0.5, 0.5, 0.5, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
         0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0],
        [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6,
         0.6, 0.6, 0.6, 0.5, 0.6, 0.7, 0.8, 0.7, 0.8, 0.9, 0.9, 0.9],
    ]
)
# fmt: on


@jit
def tree_correction(protocol, size):
    """Fraction of its bandwidth that NCCL grants a tree at a size [B]."""
    power = int(math.log2(max(size, 64.0) / 64.0))
    if power >= TREE_CORRECTION.shape[1]:
        return 1.0
    return TREE_CORRECTION[protocol, power]


@jit
def tuned_choice(kind, size, members, node, beyond, ring_time, network):
    """Choose as NCCL does between rings, trees and reducing switches, and protocols.

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
        low_bandwidth = LOW_LATENCY_ACROSS[0] if nodes <= 2.0 else LOW_LATENCY_ACROSS[1]
    capped = traffic(kind, size, members) / low_bandwidth

    best = np.inf
    algorithm = RING
    protocol = SIMPLE
    for p in range(3):
        if p == LOW_LATENCY_128 and not has_128:
            continue
        within = RING_HOP[inner][p]
        if beyond:
            within = max(within, POST_OVERHEAD * (3.0 if p == SIMPLE else 1.0))
        latency = RING_BASE[p] + (steps - across) * within + across * RING_HOP[ADAPTER][p]
        time = ring_time
        if p == LOW_LATENCY:
            time = max(ring_time / LOW_LATENCY_SHARE, capped)
        elif p == LOW_LATENCY_128:
            time = ring_time / LOW_LATENCY_128_SHARE
        elif beyond and kind == ALL_REDUCE and size >= PLATEAU_CHUNK * 16.0 * members:
            latency *= RING_PLATEAU
        if latency + time < best:
            best = latency + time
            protocol = p
    if kind != ALL_REDUCE:
        return algorithm, protocol

    for p in range(3):
        if p == LOW_LATENCY_128 and not has_128:
            continue
        latency = TREE_BASE[p] + 2.0 * (node - 1.0) * TREE_HOP[inner][p]
        if beyond:
            latency += 2.0 * math.floor(math.log2(nodes)) * TREE_HOP[ADAPTER][p]
        # A tree sends n / (n-1) times what a ring does.
        time = ring_time * members / (members - 1.0) / TREE_FRACTION
        if p == LOW_LATENCY:
            time = max(time / TREE_LOW_LATENCY_SHARE, 2.0 * size / low_bandwidth)
        elif p == LOW_LATENCY_128:
            time /= TREE_LOW_LATENCY_128_SHARE[1 if beyond else 0]
        time /= tree_correction(p, size)
        if latency + time < best:
            best = latency + time
            algorithm = DOUBLE_BINARY_TREE
            protocol = p

    in_network = network.facts.tuned_in_network_fraction * network.levels[0].tuned_bandwidth
    if in_network > 0.0 and not beyond and members > 2:
        heads = min(1.0, members / IN_NETWORK_HEADS)
        time = IN_NETWORK_LATENCY + size / (in_network * heads * IN_NETWORK_RATIO)
        if time < best:
            algorithm = IN_NETWORK
            protocol = SIMPLE
    return algorithm, protocol
