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

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.collective.table import (
    TORUS,
    link_share,
    members_inside,
    neighbour_share,
)
from perfmodel.kernels.collective.torus import (
    DOUBLING,
    EXCHANGE,
    GROWING,
    HALVING,
    ONE_WAY,
    torus_diameter,
    torus_hops,
    traffic_share,
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
IN_NETWORK_TREE = 11
AGGREGATED_TREES = 12

TREE_FRACTION = 0.92  # bandwidth of a tree / of a ring: NCCL src/graph/tuning.cc


@jit_lean
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


@jit_lean
def is_pairwise(kind):
    """Whether a library sends point to point (all-to-all, gather, scatter, a message)."""
    return kind in (ALL_TO_ALL, POINT_TO_POINT, GATHER, SCATTER)


@jit_lean
def is_pipelined(algorithm):
    """Whether chunks flow through all levels at once (the slowest level sets the pace)."""
    stepwise = (HALVING_DOUBLING, RECURSIVE_DOUBLING, HIERARCHICAL, AGGREGATED_TREES)
    return algorithm not in stepwise


@jit_lean
def is_power_of_two(count):
    """Whether a whole number is 1, 2, 4, 8, ..."""
    return int(count) & (int(count) - 1) == 0


@jit_lean
def doubling_steps(kind, positions, members, below):
    """Steps of recursive doubling on a level.

    log2(p), rounded up. An all-reduce of n members, n no power of two, folds the rest in
    and out, floor(log2(n)) + 2 steps: one more, on the innermost level that the group
    crosses (Thakur, Rabenseifner & Gropp 2005). An all-gather needs none: Bruck et al. 1997.
    """
    steps = math.ceil(math.log2(positions))
    if kind == ALL_REDUCE and below <= 1.0 and not is_power_of_two(members):
        steps += 1
    return steps


@jit_lean
def folded_halving(kind, positions):
    """Bytes of halving-doubling over S, p = k + r with k the power of two below.

    All-reduce: r members hand S over and get S back, 2 (1 - 1/k) S in between. All-gather
    (and its dual): one block, the blocks of a doubling in which r places have two, and the
    p - 1 others at last (Thakur, Rabenseifner & Gropp 2005).
    """
    bits = math.floor(math.log2(positions))
    core = 2.0**bits
    if kind == ALL_REDUCE:
        return 4.0 - 2.0 / core
    rest = positions - core
    full = math.floor(math.log2(rest))  # up to here all places that meet have two blocks
    doubled = 2.0 ** (full + 1.0) - 1.0 + (bits - 1.0 - full) * rest
    return 1.0 + (core - 1.0 + doubled) / positions


@jit_lean
def tree_traffic(size, members, positions):
    """Bytes that the busiest domain sends in an all-reduce over two complementary trees.

    Parameters
    ----------
    size : float
        S [B].
    members : int
        n.
    positions : float
        p, domains that the trees join.

    Returns
    -------
    float
        [B]: S over two domains, 3/2 S over three, else 2 (n-1)/n S.

    Notes
    -----
    Each tree carries half of the buffer. Of two domains each is the root of one tree and the
    leaf of the other, S/2 down and S/2 up; of three one is inside both trees, with one child,
    twice S/2 up and once down or the reverse. Of four and more a domain with two children in
    one tree is a leaf of the other: 2 S (Sanders, Speck & Träff 2009), of which NCCL's table
    keeps the 2 (n-1)/n S of a ring.
    """
    if positions <= 2.0:
        return size
    if positions <= 3.0:
        return 1.5 * size
    return traffic(ALL_REDUCE, size, members)


@jit_lean
def level_load(kind, algorithm, size, members, below, inside, ports, chain):
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
    chain : bool
        Trees are chains here, with the traffic of a ring: NCCL's inside a node.

    Returns
    -------
    float
        Bytes through the busiest device's link into the level.

    Notes
    -----
    Rings and trees cross each domain's border once per channel, and channels leave
    through different ports (NCCL); an inner level carries 1 - c/C of the ring. Direct
    exchange pays for every pair: (C-c)/n S. Halving-doubling and hierarchies send
    S (1/c - 1/C) per pass (Thakur, Rabenseifner & Gropp 2005), and so do aggregated trees:
    what travels far is sent first, when it is little (Jeaugey 2025). Recursive doubling of an
    all-reduce sends S per step, a broadcast down a binomial tree too.
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
    positions = math.ceil(inside / below)
    if algorithm == RECURSIVE_DOUBLING or (algorithm == HIERARCHICAL and tree_like):
        if kind in (ALL_GATHER, REDUCE_SCATTER):
            return size * (inside - below) / members
        return size * doubling_steps(kind, positions, members, below)
    if algorithm == HALVING_DOUBLING and not is_power_of_two(positions):
        return size / ports * folded_halving(kind, positions)
    if algorithm in (HALVING_DOUBLING, HIERARCHICAL, AGGREGATED_TREES):
        return passes * size * (1.0 / ports - 1.0 / max(inside, ports))
    load = traffic(kind, size, members) / ports
    tree = algorithm in (DOUBLE_BINARY_TREE, IN_NETWORK_TREE)
    if not last:
        load *= 1.0 - below / inside
    elif tree and kind == ALL_REDUCE and not chain:
        load = tree_traffic(size, members, positions) / ports
    if algorithm == DOUBLE_BINARY_TREE:
        load /= TREE_FRACTION
    return load


@jit_lean
def shared_link_times(kind, algorithm, size, members, stride, below, inside, chain, row):
    """Times on the links of a bus that several devices share.

    Parameters
    ----------
    kind, algorithm : int
    size : float
        S [B].
    members, stride : int
        n; ranks r, r + stride, ...
    below, inside : float
        c and C of the level.
    chain : bool
        As in `level_load`.
    row : record of LEVEL

    Returns
    -------
    slowest : float
        Bytes over bandwidth of the busiest link [s]; 0 where the group stays off all of them.
    longer : float
        What its bytes take there more than on the devices' own links [s].

    Notes
    -----
    A shared link is a level of its own, whose domains are the devices behind it: rings cross it
    once a channel and way, exchanges with every pair that it separates. What a root alone sends
    or takes is on it once, whatever the number of devices behind it.
    """
    slowest = 0.0
    longer = 0.0
    whole = algorithm not in (RING, BIDIRECTIONAL_RING, DOUBLE_BINARY_TREE)
    rooted = kind in (BROADCAST, MULTICAST, GATHER, SCATTER)
    for link in range(row.shared_bandwidth.size):
        bandwidth = row.shared_bandwidth[link]
        if bandwidth <= 0.0:
            continue
        apart = max(below, members_inside(members, stride, row.shared_devices[link]))
        if apart >= inside:
            continue
        load = level_load(kind, algorithm, size, members, apart, inside, apart, chain)
        if rooted and whole:
            load /= apart
        slowest = max(slowest, load / bandwidth)
        longer = max(longer, load / bandwidth - load / row.bandwidth)
    return slowest, longer


@jit_lean
def level_steps(kind, algorithm, positions, spacing, members, below, row, innermost):
    """Hops of an algorithm on one level, in all its passes.

    Parameters
    ----------
    kind, algorithm : int
    positions, spacing : float
        p, >= 1, and their distance, >= 1.
    members : int
        n.
    below : float
        c.
    row : record of LEVEL
        The level.
    innermost : bool
        Level 0: NCCL chains the ranks of a node and makes trees of nodes.

    Returns
    -------
    float

    Notes
    -----
    Ring: p - 1; trees: a chain of p ranks inside a node, log2(p) above; direct exchange: 1.
    Aggregated trees: log2(p), rounded up, for any p (Jeaugey 2025, "PAT: a new algorithm for
    all-gather and reduce-scatter operations at scale", arXiv:2506.20252).
    All-to-all: peers work in parallel, log2(p) fits the measured growth. On a torus messages
    pass from link to link: k (p^(1/k) - 1) of them for rings (buckets, one dimension after the
    other) and for the distances 1 + 2 + 4 + ... of the others, the diameter for direct exchange.
    """
    if positions <= 1.0:
        return 0.0
    passes = 2.0 if kind == ALL_REDUCE else 1.0
    torus = row.topology == TORUS
    if kind == POINT_TO_POINT:
        return 1.0
    if kind == ALL_TO_ALL:
        steps = math.log2(positions)
        return max(steps, torus_diameter(row, positions, spacing)) if torus else steps
    if algorithm in (DIRECT, ONE_SHOT, TWO_SHOT):
        farthest = torus_diameter(row, positions, spacing) if torus else 1.0
        return farthest if algorithm == ONE_SHOT else passes * farthest
    tree_like = kind in (BROADCAST, MULTICAST)
    if algorithm == RECURSIVE_DOUBLING or (algorithm == HIERARCHICAL and tree_like):
        if torus:
            return torus_hops(row, positions, spacing)
        return doubling_steps(kind, positions, members, below)  # one pass also for all-reduce
    if torus:
        return passes * torus_hops(row, positions, spacing)
    if algorithm == HALVING_DOUBLING:
        fold = 0.0 if is_power_of_two(positions) else 2.0  # once before, once after
        return passes * math.floor(math.log2(positions)) + fold
    if algorithm == AGGREGATED_TREES:
        return passes * math.ceil(math.log2(positions))
    if algorithm in (DOUBLE_BINARY_TREE, IN_NETWORK_TREE) and not innermost:
        return passes * math.ceil(math.log2(positions))
    return passes * (positions - 1.0)


@jit_lean
def torus_pattern(kind, algorithm):
    """How an algorithm passes messages over a torus; -1: from neighbour to neighbour."""
    if algorithm == RING and not is_pairwise(kind):
        return ONE_WAY
    if kind == ALL_TO_ALL:
        return EXCHANGE
    rooted = kind in (BROADCAST, MULTICAST, GATHER, SCATTER)
    if algorithm in (DIRECT, ONE_SHOT, TWO_SHOT):
        return -1 if rooted else EXCHANGE  # at the root all links are busy
    if algorithm in (HALVING_DOUBLING, AGGREGATED_TREES):
        return HALVING
    if algorithm == RECURSIVE_DOUBLING or (algorithm == HIERARCHICAL and rooted):
        return GROWING if kind in (ALL_GATHER, REDUCE_SCATTER) else DOUBLING
    return -1


@jit_lean
def level_share(kind, algorithm, row, positions, spacing):
    """Fraction of a device's bandwidth on a level that an algorithm uses."""
    if kind == POINT_TO_POINT:
        return neighbour_share(row)
    pairwise = is_pairwise(kind)
    pattern = torus_pattern(kind, algorithm) if row.topology == TORUS else -1
    if pattern >= 0 and kind in (GATHER, SCATTER):
        share = neighbour_share(row)  # the partners of the root come over one link
    elif pattern >= 0:
        share = traffic_share(pattern, row, positions, spacing)
    else:
        share = link_share(row, positions, spacing, pairwise)
    if pairwise:
        share *= row.pairwise_fraction
    return share
