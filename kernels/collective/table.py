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
from perfmodel.kernels.records import record_types

_RECORDS = record_types(__file__)

# What kernels know of one level: `network.levels[l].bandwidth`.
LEVEL = _RECORDS["LEVEL"]

# What holds for the whole network: `network.facts.simple_base`.
FACTS = _RECORDS["FACTS"]


# What a library of collectives carries; `perfmodel.compute.library.CollectiveLibrary` says
# what each is. Protocols in the order low latency, low latency 128, simple.
LIBRARY = _RECORDS["LIBRARY"]


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
