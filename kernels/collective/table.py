"""A network as kernels read it: what each level carries, and what holds for all of them.

Letters
    l   network level, innermost first
    n   members of the group
    c_l members of the group inside one domain of level l; c_{-1} = 1
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.collective.torus import UNBOUNDED_SIDE, slice_links

# What kernels know of one level: `network.levels[l].bandwidth`.
LEVEL = np.dtype(
    [
        ("domains", np.float64),  # of the level below that this level joins; 0: unbounded
        ("bandwidth", np.float64),  # achievable, per device and way, oversubscribed [B/s]
        ("topology", np.int64),  # one of the codes below
        ("dimensions", np.float64),  # of a ring, torus or mesh; 1 otherwise
        ("wraps", np.float64),  # 1: a ring or torus closes on itself, 0: a mesh does not
        ("closing_side", np.float64),  # of a torus in slices: that from which one closes; or 0
        ("link_class", np.int64),  # one of the codes below
        ("irregular_links", np.float64),  # for a group of over half, but not all, of a mesh
        ("low_latency_hop", np.float64),  # one hop of the protocols, by protocol [s]
        ("low_latency_128_hop", np.float64),
        ("simple_hop", np.float64),
        ("pipeline_latency", np.float64),  # time scale of the pipeline's fill, simple [s]
        ("pairwise_pipeline_latency", np.float64),  # the same, pairwise exchange [s]
        ("pairwise_fraction", np.float64),  # bandwidth of pairwise exchange / bandwidth
        ("in_network_bandwidth", np.float64),  # when the switch reduces [B/s]; 0: it cannot
        ("in_network_pipeline_latency", np.float64),  # time scale of its pipeline [s]
        ("message_latency", np.float64),  # per further peer of an all-to-all [s]
        ("low_latency_limit", np.float64),  # largest size of these protocols [B]; 0: none
        ("low_latency_fraction", np.float64),  # bandwidth of a protocol / bandwidth
        ("low_latency_128_fraction", np.float64),  # 0 on level 0: the protocol is not there
        ("shot_fraction", np.float64),  # bandwidth of reads from peers / bandwidth
        ("tuned_bandwidth", np.float64),  # what a library believes when it chooses [B/s]
        # Links that several devices of a bus share, a switch's uplink and that between sockets:
        # devices whose messages to each other stay off one, and what a device has of it [B/s],
        # 0 where there is none.
        ("shared_devices", np.float64, (2,)),
        ("shared_bandwidth", np.float64, (2,)),
        # 1 + the level of the bus that all bytes of this level pass on their way out of the
        # device; 0: they have links of their own.
        ("bus", np.int64),
    ],
    align=True,
)

# What holds for the whole network: `network.facts.simple_base`.
FACTS = np.dtype(
    [
        ("low_latency_base", np.float64),  # launch and synchronisation, by protocol [s]
        ("low_latency_128_base", np.float64),
        ("simple_base", np.float64),
        ("in_network_base", np.float64),
        ("pairwise_base", np.float64),
        ("pairwise_simple_base", np.float64),
        ("shot_base", np.float64),  # of one kernel that reads its peers, with a barrier [s]
        ("spread_latency", np.float64),  # low latency: many thread blocks against one [s]
        ("pairwise_spread_latency", np.float64),
        ("local_copy_time", np.float64),  # of a byte that a rank keeps, copied within it [s/B]
        ("tuned_low_latency_bandwidth", np.float64),  # 0: the library takes the fastest
        ("tuned_in_network_fraction", np.float64),  # of tuned_bandwidth; 0: it has no switch
        # Most that a member of a node carries where trees join reducing switches: of two nodes,
        # of more [B/s of the traffic of a ring]; 0: no limit.
        ("in_network_pair_bandwidth", np.float64),
        ("in_network_tree_bandwidth", np.float64),
    ],
    align=True,
)


# What a library of collectives carries; `perfmodel.compute.library.CollectiveLibrary` says
# what each is. Protocols in the order low latency, low latency 128, simple.
LIBRARY = np.dtype(
    [
        ("ring_base", np.float64, (3,)),  # by protocol [s]
        ("tree_base", np.float64, (3,)),
        ("ring_hop", np.float64, (3, 3)),  # by link class and protocol [s]
        ("tree_hop", np.float64, (3, 3)),
        ("tree_correction", np.float64, (3, 24)),  # by protocol and power of two from 64 B
        ("post_overhead", np.float64),
        ("in_network_latency", np.float64),
        ("in_network_ratio", np.float64),
        ("in_network_heads", np.float64),
        ("in_network_tree_hop", np.float64),
        ("aggregated_base", np.float64),
        ("aggregated_hop", np.float64),
        ("aggregated_member", np.float64),
        ("aggregated_share", np.float64),
        ("low_latency_share", np.float64),
        ("low_latency_128_share", np.float64),
        ("tree_low_latency_share", np.float64),
        ("tree_low_latency_128_share", np.float64, (2,)),  # one node, several
        ("low_latency_across", np.float64, (2,)),  # two nodes, more [B/s]
        ("ring_plateau", np.float64),
        ("plateau_chunk", np.float64),
        ("block_bytes", np.float64),
        ("pairwise_block_bytes", np.float64),
        ("pairwise_low_latency_limit", np.float64),
        ("pairwise_piece", np.float64),
    ],
    align=True,
)


class Network(NamedTuple):
    """The network of a device as `perfmodel.compute.network.network_table` makes it.

    Attributes
    ----------
    levels : record array of `LEVEL`, shape (levels,)
        Innermost first.
    facts : record of `FACTS`
    library : record of `LIBRARY`
    """

    levels: np.recarray
    facts: np.record
    library: np.record


def blank_network(levels: int) -> Network:
    """Return a network of so many levels, all values 0, to fill in."""
    facts, library = (np.zeros(1, kind).view(np.recarray)[0] for kind in (FACTS, LIBRARY))
    return Network(np.zeros(levels, LEVEL).view(np.recarray), facts, library)


# Topologies: a fat tree is a switch with oversubscription, a ring a torus of one dimension.
SWITCH = 0
FULLY_CONNECTED = 1
TORUS = 2

# Link classes, with the hop latencies that NCCL's tables give them.
DEVICE_LINK = 0
BUS = 1
ADAPTER = 2


@jit_lean
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


@jit_lean
def domain_of_level(network, level, members, stride, below):
    """Devices of a domain of a level, and the members of a group inside one.

    Parameters
    ----------
    network : Network
    level : int
    members, stride : int
    below : float
        Devices of a domain of the level below; 1 for the innermost.

    Returns
    -------
    domain, inside : float
        The outermost level holds all members, whatever its size.
    """
    domain = below * network.levels[level].domains
    if level == network.levels.shape[0] - 1:
        return domain, float(members)
    return domain, members_inside(members, stride, domain)


@jit_lean
def fewest_inside(members, inside):
    """Count the members in the least filled of the domains with ``inside`` each.

    Twelve ranks on nodes of eight lie as 8 + 4: the four are the bottleneck.
    """
    rest = members - inside * math.floor(members / inside)
    if rest == 0.0:
        return inside
    return rest


@jit_lean
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


@jit_lean
def link_share(row, positions, spacing, pairwise):
    """Fraction of a device's bandwidth on a level that a group can use.

    Parameters
    ----------
    row : record of LEVEL
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
    topology = row.topology
    size = row.domains
    if topology == FULLY_CONNECTED and size > 2.0:
        if positions >= size:
            return 1.0
        links = positions - 1.0
        if positions > 0.5 * size and row.irregular_links > 0.0:
            links = min(links, row.irregular_links)
            if pairwise:
                links = max(links, 1.0)
        return links / (size - 1.0)
    if topology == TORUS and row.closing_side > 0.0:
        return slice_links(row, positions, spacing) / (2.0 * row.dimensions)
    if topology == TORUS:
        return torus_share(positions, spacing, size, row.dimensions, row.wraps)
    return 1.0


@jit_lean
def neighbour_share(row):
    """Fraction of a device's bandwidth that one neighbour can receive.

    One of the N-1 links of a fully connected level, one of the 2 k links of a
    k-dimensional torus (both along a closed side of two), all of a switch port.
    """
    if row.topology == FULLY_CONNECTED and row.domains > 2.0:
        return 1.0 / (row.domains - 1.0)
    if row.topology == TORUS:
        if row.wraps > 0.0 and abs(row.domains - 2.0**row.dimensions) < 1e-9:
            return 1.0 / row.dimensions
        return 0.5 / row.dimensions
    return 1.0
