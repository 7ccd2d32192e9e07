"""What an algorithm sends over each level of a network, and over how many hops.

Letters
    S   size in the nccl-tests convention [B]
    n   members of the group
    c   members inside one domain of the level below
    C   members inside one domain of this level; p = ceil(C / c) positions
    q   members in the least filled domain of the level below: its ports

All groups of one shape run at the same time, so the bandwidth per device is what a
group has: a domain that holds c members of a group has c ports for it. Sources of the
loads: docs/collectives.md.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit
from perfmodel.kernels.collective_hierarchy import (
    ADAPTER,
    BANDWIDTH,
    DIMENSIONS,
    FULLY_CONNECTED,
    HOP,
    LINK_CLASS,
    LOCAL_COPY_FRACTION,
    LOW_LATENCY_128_FRACTION,
    LOW_LATENCY_128_HOP,
    LOW_LATENCY_FRACTION,
    LOW_LATENCY_HOP,
    MESSAGE_LATENCY,
    PAIRWISE_FRACTION,
    PAIRWISE_PIPELINE_LATENCY,
    PIPELINE_LATENCY,
    SHOT_FRACTION,
    SIZE,
    TOPOLOGY,
    TORUS,
    TUNED_BANDWIDTH,
    domain_of_level,
    fewest_inside,
    forwarding,
    link_share,
    neighbour_share,
)

ALL_REDUCE = 0
ALL_GATHER = 1
REDUCE_SCATTER = 2
ALL_TO_ALL = 3
BROADCAST = 4
POINT_TO_POINT = 5
MULTICAST = 6
GATHER = 7
SCATTER = 8

RING = 0
BIDIRECTIONAL_RING = 1
DIRECT = 2
HALVING_DOUBLING = 3
RECURSIVE_DOUBLING = 4
DOUBLE_BINARY_TREE = 5
HIERARCHICAL = 6
IN_NETWORK = 7
ONE_SHOT = 8
TWO_SHOT = 9
RAIL_ALIGNED = 10

TREE_FRACTION = 0.92  # bandwidth of a tree / of a ring: NCCL src/graph/tuning.cc
PAIRWISE_PIECE = 4 * 2**20  # largest piece that a rail-mate forwards at once [B]: PXN buffers


@jit
def traffic(kind, size, members):
    """Bytes that every member sends in the bandwidth-optimal algorithm.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` ... ``SCATTER``.
    size : float
        S [B].
    members : int
        n >= 1.

    Returns
    -------
    float
        [B]: 2 (n-1)/n S for all-reduce, (n-1)/n S for all-gather, reduce-scatter,
        all-to-all and, at the root, gather and scatter; S for the others.

    Notes
    -----
    Lower bounds and the ring that reaches them: Patarasuk & Yuan 2009,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    theorem 1; the factors are those of nccl-tests, doc/PERFORMANCE.md.
    """
    if members <= 1:
        return 0.0
    if kind == ALL_REDUCE:
        return 2.0 * (members - 1) / members * size
    if kind in (BROADCAST, MULTICAST, POINT_TO_POINT):
        return size
    return (members - 1) / members * size


@jit
def is_pairwise(kind):
    """Whether a library sends point to point (all-to-all, gather, scatter, a message)."""
    return kind in (ALL_TO_ALL, POINT_TO_POINT, GATHER, SCATTER)


@jit
def is_pipelined(algorithm):
    """Whether chunks flow through all levels at once (the slowest level sets the pace)."""
    return algorithm not in (HALVING_DOUBLING, RECURSIVE_DOUBLING, HIERARCHICAL)


@jit
def level_load(kind, algorithm, size, members, below, inside, ports):
    """Bytes per device that cross a level [B].

    Parameters
    ----------
    kind, algorithm : int
    size : float
        S [B].
    members : int
        n.
    below, inside : float
        c and C.
    ports : float
        q.

    Returns
    -------
    float
        Bytes through the busiest device's link into the level.

    Notes
    -----
    Rings and trees cross each domain's border once per channel, and channels leave
    through different ports (NCCL); an inner level carries 1 - c/C of the ring. Direct
    exchange pays for every pair: (C-c)/n S. Halving-doubling and hierarchies send
    S (1/c - 1/C) per pass (Thakur, Rabenseifner & Gropp 2005). Recursive doubling of an
    all-reduce sends S per step.
    """
    last = inside >= members
    passes = 2.0 if kind == ALL_REDUCE else 1.0
    if kind == POINT_TO_POINT:
        return size
    if kind == ALL_TO_ALL:
        if algorithm in (HIERARCHICAL, RAIL_ALIGNED):
            return size * (1.0 - below / inside)
        return size * ((members - ports if last else inside - below) / members)
    if kind in (GATHER, SCATTER):
        return size * (inside - below) / members
    tree_like = kind in (BROADCAST, MULTICAST)
    if algorithm == ONE_SHOT:
        return size * (inside - below)
    if algorithm in (DIRECT, TWO_SHOT):
        if tree_like:
            return size * (inside - below)
        return passes * size * ((members - ports if last else inside - below) / members)
    if algorithm == RECURSIVE_DOUBLING:
        if kind in (ALL_GATHER, REDUCE_SCATTER):
            return size * (inside - below) / members
        return size * math.ceil(math.log2(inside / below))
    if algorithm in (HALVING_DOUBLING, HIERARCHICAL):
        if tree_like:
            return size / ports
        load = passes * size * (1.0 / ports - 1.0 / max(inside, ports))
        positions = math.ceil(inside / below)
        if algorithm == HALVING_DOUBLING and 2.0 ** math.floor(math.log2(positions)) < positions:
            load += passes * size / ports  # the odd ones hand their part over, and get it back
        return load
    load = traffic(kind, size, members) / ports
    if not last:
        load *= 1.0 - below / inside
    if algorithm == DOUBLE_BINARY_TREE:
        load /= TREE_FRACTION
    return load


@jit
def level_steps(kind, algorithm, positions, row, innermost):
    """Hops of an algorithm on one level, in all its passes.

    Parameters
    ----------
    kind, algorithm : int
    positions : float
        p, >= 1.
    row : float64[COLUMNS]
        The level.
    innermost : bool
        Level 0: NCCL chains the ranks of a node and makes trees of nodes.

    Returns
    -------
    float

    Notes
    -----
    Ring: p - 1 (on a torus of k dimensions, k (p^(1/k) - 1): buckets, one dimension after
    the other); trees: a chain of p ranks inside a node, log2(p) above; direct
    exchange: 1. All-to-all: peers work in parallel, log2(p) fits the measured growth.
    """
    if positions <= 1.0:
        return 0.0
    passes = 2.0 if kind == ALL_REDUCE else 1.0
    if kind == POINT_TO_POINT:
        return 1.0
    if kind == ALL_TO_ALL:
        return math.log2(positions)
    if algorithm == ONE_SHOT:
        return 1.0
    if algorithm in (DIRECT, TWO_SHOT):
        return passes
    if algorithm == HALVING_DOUBLING:
        full = math.floor(math.log2(positions))
        odd = 2.0 if 2.0**full < positions else 0.0
        return passes * (full + odd)
    if algorithm == RECURSIVE_DOUBLING:
        return math.ceil(math.log2(positions))  # one pass also for all-reduce
    ring = positions - 1.0
    if row[TOPOLOGY] == TORUS:
        ring = row[DIMENSIONS] * (positions ** (1.0 / row[DIMENSIONS]) - 1.0)
    if algorithm == DOUBLE_BINARY_TREE and not innermost:
        return passes * min(ring, math.ceil(math.log2(positions)))
    return passes * ring


@jit
def level_share(kind, algorithm, row, positions, spacing):
    """Fraction of a device's bandwidth on a level that an algorithm uses."""
    if kind == POINT_TO_POINT:
        return neighbour_share(row)
    pairwise = is_pairwise(kind)
    share = link_share(row, positions, spacing, pairwise)
    if row[TOPOLOGY] == TORUS:
        if algorithm == RING:
            share *= 0.5  # one sense of rotation uses half of the links
        elif algorithm != BIDIRECTIONAL_RING:
            share /= forwarding(row, positions)
    elif pairwise:
        share /= forwarding(row, positions)
    if pairwise:
        share *= row[PAIRWISE_FRACTION]
    return share


@jit
def network_cost(kind, algorithm, size, members, stride, network):
    """Times that an algorithm spends on links and hops, before any protocol.

    Parameters
    ----------
    kind, algorithm : int
    size : float
        S [B].
    members, stride : int
        n > 1; ranks r, r + stride, ...
    network : float64[levels, COLUMNS]

    Returns
    -------
    low_transfer, middle_transfer : float
        Bytes over the bandwidth of the two low-latency protocols, slowest level
        (pipelined) or all levels [s].
    filled : float
        Bytes over the achievable bandwidth, with the cost of filling the pipeline [s].
    low, middle, simple : float
        Sum of the hop latencies on the critical path, by protocol [s].
    tuned : float
        Bytes over the bandwidth that a library's table believes [s].
    inside : float
        Members per domain of the levels within a node.
    beyond : bool
        Whether the group crosses adapters.
    """
    pairwise = is_pairwise(kind)
    shot = algorithm in (ONE_SHOT, TWO_SHOT)
    own_copy = 0.0
    if not shot and kind not in (BROADCAST, MULTICAST, POINT_TO_POINT):
        own_copy = network[0, LOCAL_COPY_FRACTION] * size / members
    pipelined = is_pipelined(algorithm)
    direct = algorithm in (DIRECT, ONE_SHOT, TWO_SHOT) and kind != ALL_TO_ALL

    filled = own_copy / network[0, BANDWIDTH]
    low_transfer = filled / network[0, LOW_LATENCY_FRACTION]
    middle_transfer = filled / max(network[0, LOW_LATENCY_128_FRACTION], 1e-9)
    tuned = 0.0
    low = 0.0
    middle = 0.0
    simple = 0.0
    slowest_low = 0.0
    slowest_middle = 0.0
    slowest_simple = 0.0
    crossed = 0
    node = 1.0
    beyond = False

    domain = 1.0
    below = 1.0
    ports = 1.0
    for level in range(network.shape[0]):
        row = network[level]
        above, inside = domain_of_level(network, level, members, stride, domain)
        if inside <= below:
            domain = above
            continue
        positions = math.ceil(inside / below)
        spacing = max(1.0, stride / domain)
        share = level_share(kind, algorithm, row, positions, spacing)
        load = level_load(kind, algorithm, size, members, below, inside, ports)
        if row[TUNED_BANDWIDTH] > 0.0:
            tuned = max(tuned, load / (share * row[TUNED_BANDWIDTH]))
        if level == 0:
            load += own_copy
        time = load / (share * row[BANDWIDTH])
        latency = row[PAIRWISE_PIPELINE_LATENCY] if pairwise else row[PIPELINE_LATENCY]
        fill = math.log2(1.0 + positions) * latency
        with_fill = time + 2.0 * math.sqrt(fill * time)
        low_time = time / row[SHOT_FRACTION if shot else LOW_LATENCY_FRACTION]
        middle_time = time / max(row[LOW_LATENCY_128_FRACTION], 1e-9)
        if pipelined:
            low_transfer = max(low_transfer, low_time)
            middle_transfer = max(middle_transfer, middle_time)
            filled = max(filled, with_fill)
        else:
            low_transfer += low_time
            middle_transfer += middle_time
            filled += with_fill

        hops = level_steps(kind, algorithm, positions, row, level == 0)
        if direct:  # every message goes straight to its target
            low = max(low, hops * row[LOW_LATENCY_HOP])
            middle = max(middle, hops * row[LOW_LATENCY_128_HOP])
            simple = max(simple, hops * row[HOP])
        else:
            low += hops * row[LOW_LATENCY_HOP]
            middle += hops * row[LOW_LATENCY_128_HOP]
            simple += hops * row[HOP]
        slowest_low = max(slowest_low, row[LOW_LATENCY_HOP])
        slowest_middle = max(slowest_middle, row[LOW_LATENCY_128_HOP])
        slowest_simple = max(slowest_simple, row[HOP])
        crossed += 1
        if row[LINK_CLASS] == ADAPTER:
            beyond = True
            if pairwise and kind != POINT_TO_POINT:
                peers = members - ports
                if algorithm in (HIERARCHICAL, RAIL_ALIGNED):
                    peers = positions - 1.0
                messages = peers * row[MESSAGE_LATENCY]
                low += messages
                middle += messages
                simple += messages
            if algorithm == RAIL_ALIGNED:
                piece = min(load, PAIRWISE_PIECE) / network[0, BANDWIDTH]
                filled += piece
                low_transfer += piece
        else:
            node = inside

        ports = fewest_inside(float(members), inside)
        below = inside
        domain = above
        if inside >= members:
            break
    if crossed > 1 and (algorithm in (RING, BIDIRECTIONAL_RING)) and not pairwise:
        # Every rank waits for its neighbour, so all steps last as long as the slowest hop
        # (16 to 512 ranks over adapters: about 4 us per rank; SimAI nic_ratio.csv).
        steps = (2.0 if kind == ALL_REDUCE else 1.0) * (members - 1.0)
        low = steps * slowest_low
        middle = steps * slowest_middle
        simple = steps * slowest_simple
    return low_transfer, middle_transfer, filled, low, middle, simple, tuned, node, beyond


@jit
def serves_all_pairs(members, network):
    """Whether a group is a whole fully connected level: direct exchange has all links."""
    size = network[0, SIZE]
    return network[0, TOPOLOGY] == FULLY_CONNECTED and size > 2.0 and members == size
