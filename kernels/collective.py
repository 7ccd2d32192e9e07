"""Times of collectives on a hierarchical network.

Letters
    S   size in the nccl-tests convention [B]
    n   members of the group
    c   members inside one domain of a level
    T   transfer time of a level: its bytes per device / its bandwidth [s]
    F   latency that fills the pipeline of a level [s]
    H   sum of the latencies of the hops on the critical path [s]

All groups of one shape run at the same time, so the bandwidth per device is
what a group has: a domain that holds c members of a group has c ports for it.
The levels work as one pipeline; the slowest one sets the pace, the others add
latency only.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.collective_hierarchy import (
    ALL_TO_ALL_FRACTION,
    BANDWIDTH,
    BASE_LATENCY,
    HOP,
    IN_NETWORK_BANDWIDTH,
    IN_NETWORK_LATENCY,
    LOCAL_COPY_FRACTION,
    LONGEST_CHAIN,
    LOW_LATENCY_FRACTION,
    LOW_LATENCY_HOP,
    LOW_LATENCY_LIMIT,
    MESSAGE_LATENCY,
    PIPELINE_LATENCY,
    SCALE_OUT,
    SIZE,
    fewest_inside,
    forwarding,
    link_share,
    members_inside,
    neighbour_share,
)

ALL_REDUCE = 0
ALL_GATHER = 1
REDUCE_SCATTER = 2
ALL_TO_ALL = 3
BROADCAST = 4
POINT_TO_POINT = 5


@jit
def traffic(kind, size, members):
    """Bytes that every member sends in the bandwidth-optimal algorithm.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` ... ``POINT_TO_POINT``.
    size : float
        S [B].
    members : int
        n >= 1.

    Returns
    -------
    float
        [B]: 2 (n-1)/n S for all-reduce, (n-1)/n S for all-gather,
        reduce-scatter and all-to-all, S for broadcast and point to point.

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
    if kind in (BROADCAST, POINT_TO_POINT):
        return size
    return (members - 1) / members * size


@jit
def hops_of_level(kind, positions, chained):
    """Latency-bearing hops of a collective on one level.

    Parameters
    ----------
    kind : int
        The collective.
    positions : float
        Domains of the level below that the group joins on this level, >= 1.
    chained : bool
        Whether the first ``LONGEST_CHAIN`` positions form a chain (innermost
        level); above them, and on outer levels, trees do the all-reduce.

    Returns
    -------
    float
        Hops in one direction; an all-reduce passes them twice.

    Notes
    -----
    NCCL, src/graph/tuning.cc: a ring has n-1 steps; a tree passes the node's
    chain, then log2(nodes). All-to-all: peers work in parallel, log2 fits
    the measured growth from 2 to 8 GPUs (0.5-1.5 us).
    """
    if positions <= 1.0:
        return 0.0
    if kind == POINT_TO_POINT:
        return 1.0
    if kind == ALL_TO_ALL:
        return math.log2(positions)
    ring = positions - 1.0
    if kind in (ALL_GATHER, REDUCE_SCATTER):
        return ring
    if not chained:
        return min(ring, math.ceil(math.log2(positions)))
    if positions <= LONGEST_CHAIN:
        return ring
    return LONGEST_CHAIN - 1.0 + math.ceil(math.log2(positions / LONGEST_CHAIN))


@jit
def collective_time(kind, size, members, stride, network):
    """Completion time of one collective, all groups of its shape at work.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` ... ``POINT_TO_POINT``.
    size : float
        S [B], nccl-tests convention: all-reduce, the buffer of a rank;
        all-gather, the whole output; reduce-scatter, the whole input;
        all-to-all, the whole send buffer of a rank; otherwise the message.
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

    Notes
    -----
    The fastest of

    * the low-latency protocol,  ``base + H_low + max(T) / f``,
    * the bandwidth protocol,    ``base + H + max(T + 2 sqrt(F T))``,
    * for all-reduce, reduction in the switch, the same form with S (1 + 1/c)
      bytes on a scale-up switch (every device sends its buffer to the
      reducing reads of its peers and one share to the multicast).

    ``2 sqrt(F T)`` is what filling a pipeline costs at the best chunk size: k
    chunks over s stages of latency a take ``(s + k) (a + T / k)``, at least
    ``(sqrt(F) + sqrt(T))**2`` with ``F = s a`` (Johnsson & Ho 1989, "Optimum
    broadcasting and personalized communication in hypercubes"); H holds the F.
    A ring over several levels crosses each domain's border once per channel,
    and channels leave through different ports (NCCL), so a level carries
    ``traffic / c`` per device, c the members inside the domain below. See
    docs/collectives.md.
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    sent = traffic(kind, size, members)
    own_copy = 0.0
    if kind != BROADCAST and kind != POINT_TO_POINT:
        own_copy = network[0, LOCAL_COPY_FRACTION] * size / members
    passes = 2.0 if kind == ALL_REDUCE else 1.0

    transfer = own_copy / network[0, BANDWIDTH]
    low_transfer = transfer / network[0, LOW_LATENCY_FRACTION]
    reduced = transfer  # transfer time when switches reduce where they can
    latency = 0.0
    low_latency = 0.0
    reduced_latency = 0.0
    any_reduces = False
    low_latency_allowed = True
    passed = 0.0  # hops on the levels inside

    domain = 1.0  # devices of a domain of the level below
    below = 1.0  # members in it
    ports = 1.0  # members in the least filled one
    levels = network.shape[0]
    for level in range(levels):
        row = network[level]
        outermost = level == levels - 1
        above = domain * row[SIZE]
        inside = float(members) if outermost else members_inside(members, stride, above)
        if inside <= below:
            domain = above
            continue
        positions = math.ceil(inside / below)
        spacing = max(1.0, stride / domain)

        if kind == POINT_TO_POINT:
            share = neighbour_share(row)
            load = sent
        else:
            share = link_share(row, positions, spacing, kind == ALL_TO_ALL)
            if kind == ALL_TO_ALL:
                share *= row[ALL_TO_ALL_FRACTION] / forwarding(row, positions)
                load = size * (inside - 1.0 if level == 0 else members - ports) / members
            else:
                load = sent / ports
                if inside < members:
                    load *= 1.0 - below / inside
        if level == 0:
            load += own_copy
        time = load / (share * row[BANDWIDTH])
        fill = math.log2(1.0 + positions) * row[PIPELINE_LATENCY]
        filled = time + 2.0 * math.sqrt(fill * time)
        transfer = max(transfer, filled)
        low_transfer = max(low_transfer, time / row[LOW_LATENCY_FRACTION])

        hops = passes * hops_of_level(kind, positions, level == 0)
        if kind in (ALL_GATHER, REDUCE_SCATTER):
            hops *= math.ceil(members / inside)  # the ring passes every domain
        if row[SCALE_OUT] > 0.0:
            if kind != ALL_TO_ALL:  # a ring steps as slowly as its slowest hop
                latency = max(latency, passed * row[HOP])
            if row[LOW_LATENCY_LIMIT] > 0.0 and size > row[LOW_LATENCY_LIMIT]:
                low_latency_allowed = False
        if kind == POINT_TO_POINT:  # neighbours exchange at the same time
            latency = 0.0
            low_latency = 0.0
        latency += hops * row[HOP]
        low_latency += hops * row[LOW_LATENCY_HOP]
        passed += hops
        if kind == ALL_TO_ALL and level > 0:
            messages = (members - ports) * row[MESSAGE_LATENCY]
            latency += messages
            low_latency += messages

        if kind == ALL_REDUCE and row[IN_NETWORK_BANDWIDTH] > 0.0:
            any_reduces = True
            part = size * (1.0 + 1.0 / positions) if level == 0 else size / ports
            time = part / row[IN_NETWORK_BANDWIDTH]
            fill = row[IN_NETWORK_LATENCY]
            reduced = max(reduced, time + 2.0 * math.sqrt(fill * time))
            reduced_latency += fill
        elif kind == ALL_REDUCE:
            reduced = max(reduced, filled)
            reduced_latency += hops * row[HOP]

        ports = fewest_inside(float(members), inside)
        below = inside
        domain = above
        if inside >= members:
            break

    best = latency + transfer
    if low_latency_allowed:
        best = min(best, low_latency + low_transfer)
    if any_reduces:
        best = min(best, reduced_latency + reduced)
    return network[0, BASE_LATENCY] + best


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
