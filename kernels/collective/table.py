"""How a communication group lies on the levels of a network, and what a level carries.

Letters
    l   network level, innermost first
    n   members of the group
    c_l members of the group inside one domain of level l; c_{-1} = 1
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit

# Columns of a network table: one row per level, innermost first, float64.
SIZE = 0  # domains of the level below that this level joins; 0: unbounded
BANDWIDTH = 1  # achievable, per device and direction, oversubscription included [B/s]
TOPOLOGY = 2  # one of the codes below
DIMENSIONS = 3  # of a ring, torus or mesh; 1 otherwise
WRAPS = 4  # 1: a ring or torus closes on itself, 0: a mesh does not
LINK_CLASS = 5  # one of the codes below
IRREGULAR_LINKS = 6  # links that serve a group of more than half, but not all, of a mesh
LOW_LATENCY_HOP = 7  # one hop of the protocols, by protocol [s]
LOW_LATENCY_128_HOP = 8
HOP = 9
PIPELINE_LATENCY = 10  # time scale of the fill of the pipeline, simple protocol [s]
PAIRWISE_PIPELINE_LATENCY = 11  # the same, pairwise exchange [s]
PAIRWISE_FRACTION = 12  # bandwidth of pairwise exchange / BANDWIDTH
IN_NETWORK_BANDWIDTH = 13  # achievable when the switch reduces [B/s]; 0: it cannot
IN_NETWORK_PIPELINE_LATENCY = 14  # time scale of its pipeline [s]
MESSAGE_LATENCY = 15  # per further peer of an all-to-all [s]
LOW_LATENCY_LIMIT = 16  # largest size of the low-latency protocols [B]; 0: none
# What a library believes of the level when it chooses.
TUNED_BANDWIDTH = 17  # [B/s]
LOW_LATENCY_FRACTION = 18  # bandwidth of a protocol / BANDWIDTH
LOW_LATENCY_128_FRACTION = 19  # 0 on level 0: the protocol is not there
# Facts of the whole network: row 0 is read.
BASE_LATENCY = 20  # launch and synchronisation, by protocol [s]
LOW_LATENCY_128_BASE = 21
SIMPLE_BASE = 22
IN_NETWORK_BASE = 23
PAIRWISE_BASE = 24
PAIRWISE_SIMPLE_BASE = 25
SPREAD_LATENCY = 26  # a low-latency collective over many thread blocks against one [s]
PAIRWISE_SPREAD_LATENCY = 27
LOCAL_COPY_FRACTION = 28  # bandwidth of the link / bandwidth of the copy to oneself
TUNED_LOW_LATENCY_BANDWIDTH = 29  # 0: the library takes the fastest, no table
TUNED_IN_NETWORK_FRACTION = 30  # of TUNED_BANDWIDTH; 0: the switch does not reduce
SHOT_BASE = 31  # launch and barrier of one kernel that reads its peers [s]
SHOT_FRACTION = 32  # bandwidth of such reads / BANDWIDTH
COLUMNS = 33

# Topologies: a fat tree is a switch with oversubscription, a ring a torus of one dimension.
SWITCH = 0
FULLY_CONNECTED = 1
TORUS = 2

# Link classes, with the hop latencies that NCCL's tables give them.
DEVICE_LINK = 0
BUS = 1
ADAPTER = 2

UNBOUNDED_SIDE = 16.0  # positions per dimension assumed for a torus of unknown size


@jit
def members_inside(members, stride, domain):
    """Count the members of a group inside one domain of ``domain`` devices.

    Parameters
    ----------
    members : int
        Ranks of the group, >= 1.
    stride : int
        Distance of neighbouring ranks, >= 1.
    domain : float
        Devices of the domain; 0 stands for all devices.

    Returns
    -------
    float
        Members in the best filled domain, 1 ... members.
    """
    if domain == 0.0:
        return float(members)
    inside = math.floor(domain / stride)
    if inside < 1.0:
        return 1.0
    if inside > members:
        return float(members)
    return inside


@jit
def domain_of_level(network, level, members, stride, below):
    """Devices of a domain of a level, and the members of a group inside one.

    Parameters
    ----------
    network : float64[levels, COLUMNS]
    level : int
    members, stride : int
    below : float
        Devices of a domain of the level below; 1 for the innermost.

    Returns
    -------
    domain, inside : float
        The outermost level holds all members, whatever its size.
    """
    domain = below * network[level, SIZE]
    if level == network.shape[0] - 1:
        return domain, float(members)
    return domain, members_inside(members, stride, domain)


@jit
def fewest_inside(members, inside):
    """Count the members in the least filled of the domains with ``inside`` each.

    Twelve ranks on nodes of eight lie as 8 + 4: the four are the bottleneck.
    """
    rest = members % inside
    if rest == 0.0:
        return inside
    return rest


@jit
def torus_share(positions, spacing, size, dimensions, wraps):
    """Fraction of a torus' links per device that serve a group.

    A group of ``positions`` devices, ``spacing`` apart in a numbering that
    fills one dimension after the other, uses the dimensions over which it
    extends. A dimension that it does not close, or that does not wrap, gives
    half: the ring becomes a line. Groups that interleave in the first
    dimension share its links.

    Parameters
    ----------
    positions : float
        Members of the group on this level, >= 2.
    spacing : float
        Distance of neighbouring members on this level, >= 1.
    size : float
        Devices of the torus; 0: unbounded.
    dimensions : float
        1, 2 or 3.
    wraps : float
        1 for a ring or torus, 0 for a line or mesh.

    Returns
    -------
    float
        0 ... 1.

    Notes
    -----
    Bucket algorithms over all dimensions at once: Sack & Gropp 2012,
    "Faster topology-aware collective algorithms through non-minimal
    communication"; use on TPU: Jouppi et al. 2023, "TPU v4", section 2.
    """
    side = UNBOUNDED_SIDE
    if size > 0.0:
        side = size ** (1.0 / dimensions)
    share = 0.0
    first = 0.0
    below = 1.0
    for _ in range(int(dimensions)):
        above = below * side
        if spacing < above * (1.0 - 1e-9) and spacing * positions > below * (1.0 + 1e-9):
            closed = wraps > 0.0 and spacing * positions >= above * (1.0 - 1e-9)
            part = 1.0 if closed else 0.5
            if first == 0.0:
                part /= max(1.0, spacing / below)
                first = part
            share += part
        below = above
    if share == 0.0:
        share = 0.5
    return share / dimensions


@jit
def link_share(row, positions, spacing, pairwise):
    """Fraction of a device's bandwidth on a level that a group can use.

    Parameters
    ----------
    row : float64[COLUMNS]
        The level's row of the network table.
    positions : float
        Domains of the level below that the group occupies, >= 2.
    spacing : float
        Their distance, >= 1.
    pairwise : bool
        Whether all pairs exchange (all-to-all): each has at least its own link.

    Returns
    -------
    float
        0 ... 1; a switch gives 1.

    Notes
    -----
    Fully connected, N devices with N-1 links each: a group of g reaches its
    peers directly over g-1 links. Groups of more than half of the mesh, but
    not all of it, fall to ``IRREGULAR_LINKS`` (RCCL finds one ring: 5 to 7 of
    8 MI355X reach 47 GB/s, 61 in all-to-all, 8 reach 396; mit-orcd/amd-benchmarks).
    """
    topology = row[TOPOLOGY]
    size = row[SIZE]
    if topology == FULLY_CONNECTED and size > 2.0:
        if positions >= size:
            return 1.0
        links = positions - 1.0
        if positions > 0.5 * size and row[IRREGULAR_LINKS] > 0.0:
            links = min(links, row[IRREGULAR_LINKS])
            if pairwise:
                links = max(links, 1.0)
        return links / (size - 1.0)
    if topology == TORUS:
        return torus_share(positions, spacing, size, row[DIMENSIONS], row[WRAPS])
    return 1.0


@jit
def neighbour_share(row):
    """Fraction of a device's bandwidth that one neighbour can receive.

    One of the N-1 links of a fully connected level, one of the 2 k links of a
    k-dimensional torus (both along a closed side of two), all of a switch port.
    """
    if row[TOPOLOGY] == FULLY_CONNECTED and row[SIZE] > 2.0:
        return 1.0 / (row[SIZE] - 1.0)
    if row[TOPOLOGY] == TORUS:
        if row[WRAPS] > 0.0 and abs(row[SIZE] - 2.0 ** row[DIMENSIONS]) < 1e-9:
            return 1.0 / row[DIMENSIONS]
        return 0.5 / row[DIMENSIONS]
    return 1.0
