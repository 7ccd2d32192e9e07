"""What a protocol pays for the hops and bytes of an algorithm.

Letters
    S   size in the nccl-tests convention [B]
    n   members of the group
    T   transfer time: bytes per device / achievable bandwidth [s]
    F   latency that fills the pipeline of a level [s]
    H   sum of the latencies of the hops on the critical path [s]
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.collective.algorithms import (
    ALL_REDUCE,
    BROADCAST,
    DOUBLE_BINARY_TREE,
    IN_NETWORK_TREE,
    MULTICAST,
    POINT_TO_POINT,
    is_pairwise,
    level_load,
    level_share,
    traffic,
)
from perfmodel.kernels.collective.cost import Cost, Filling, filled_transfer, longest
from perfmodel.kernels.collective.table import (
    domain_of_level,
    fewest_inside,
)
from perfmodel.kernels.collective.tuning import LOW_LATENCY, LOW_LATENCY_128, SIMPLE


@jit_lean
def spread(bytes_per_block_unit):
    """Share of the cost of many thread blocks, 0 (one block) ... 1: a smooth step."""
    square = bytes_per_block_unit * bytes_per_block_unit
    return square / (1.0 + square)


@jit_lean
def shot_time(size, cost, network):
    """Time of one kernel that reads the buffers of its peers, as serving engines launch it.

    Parameters
    ----------
    size : float
        S [B].
    cost : Cost
    network : Network

    Returns
    -------
    float
        base + H + max(T / f) [s], peers being met by flags.
    """
    return network.facts.shot_base + cost.low_latency_hops + size * cost.low_latency_transfer


@jit_lean
def protocol_time(protocol, kind, size, members, cost, network):
    """Time of an algorithm under a protocol.

    Parameters
    ----------
    protocol : int
        ``LOW_LATENCY``, ``LOW_LATENCY_128`` or ``SIMPLE``.
    kind : int
    size : float
        S [B].
    members : int
        n > 1.
    cost : Cost
    network : Network

    Returns
    -------
    float
        [s].

    Notes
    -----
    Low latency (a flag with every word)          base + H + spread + max(T / f)
    Low latency 128 (a flag per 128 bytes)        base + H + max(T / f)
    Simple (chunks and fences)                    base + H + max(T + 2 sqrt(F T))

    ``2 sqrt(F T)`` is what filling a pipeline costs at the best chunk size: k
    chunks over s stages of latency a take ``(s + k) (a + T / k)``, at least
    ``(sqrt(F) + sqrt(T))**2`` with ``F = s a`` (Johnsson & Ho 1989, "Optimum
    broadcasting and personalized communication in hypercubes"); H holds the F.
    """
    facts = network.facts
    if is_pairwise(kind):
        if protocol == SIMPLE:
            return facts.pairwise_simple_base + cost.low_latency_hops + filled_transfer(size, cost)
        piece = size if kind == POINT_TO_POINT else size / members
        extra = facts.pairwise_spread_latency * spread(piece / network.library.pairwise_block_bytes)
        transfer = size * cost.low_latency_transfer
        return facts.pairwise_base + cost.low_latency_hops + extra + transfer
    if protocol == LOW_LATENCY:
        extra = facts.spread_latency * spread(size / (network.library.block_bytes * members))
        transfer = size * cost.low_latency_transfer
        return facts.low_latency_base + cost.low_latency_hops + extra + transfer
    if protocol == LOW_LATENCY_128:
        if network.levels[0].low_latency_128_fraction <= 0.0:
            return np.inf
        transfer = size * cost.low_latency_128_transfer
        return facts.low_latency_128_base + cost.low_latency_128_hops + transfer
    return facts.simple_base + cost.simple_hops + filled_transfer(size, cost)


@jit_lean
def in_network_time(kind, size, members, stride, trees, network):
    """Time where switches reduce and copy [s]; parameters as of `in_network_cost`."""
    cost = in_network_cost(kind, size, members, stride, trees, network)
    return cost.simple_hops + filled_transfer(size, cost)


@jit_lean
def in_network_cost(kind, size, members, stride, trees, network):
    """Costs where switches reduce and copy: those of the last protocol, the launch among them.

    Parameters
    ----------
    kind : int
        All-reduce, all-gather, reduce-scatter, broadcast or multicast.
    size : float
        S [B].
    members, stride : int
    trees : bool
        Only the innermost switch reduces, trees join what it serves: an all-reduce (NCCL's
        NVLS tree); else every switch does that can, and trees join the others.
    network : Network

    Returns
    -------
    Cost
        Infinite where no switch does.

    Notes
    -----
    On a scale-up switch every device serves the reducing reads of its peers (S) and
    receives the multicast (S/n): S (1 + 1/p) for all-reduce; (p-1)/p S for all-gather
    and reduce-scatter, S for broadcast (NVLink SHARP: Klenk et al. 2020, "An in-network
    architecture for accelerating shared-memory multiprocessor collectives"). Levels
    above reduce too (SHARP) or run a tree over the ports. NVLS trees of NCCL are cut into
    fewer channels than the links could fill: at most ``perChMaxNVLSTreeBws`` of the traffic
    of a ring for every member of a node (src/graph/tuning.cc), two H100 nodes 461 GB/s.
    """
    filling = Filling(0.0, 0.0, 0.0, 0.0)
    filled = 0.0
    crossing = False
    latency = 0.0
    reduces = False
    carried = 0.0
    domain = 1.0
    below = 1.0
    ports = 1.0
    root_size = math.sqrt(size)
    for level in range(network.levels.shape[0]):
        row = network.levels[level]
        above, inside = domain_of_level(network, level, members, stride, domain)
        if inside <= below:
            domain = above
            continue
        positions = math.ceil(inside / below)
        if row.in_network_bandwidth > 0.0 and not (trees and level > 0):
            reduces = True
            share = (positions - 1.0) / positions
            if kind == ALL_REDUCE:
                share = 1.0 + 1.0 / positions if level == 0 else 1.0
            elif kind in (BROADCAST, MULTICAST):
                share = 1.0
            load = share / ports
            time = load / row.in_network_bandwidth
            fill = row.in_network_pipeline_latency
        else:
            spacing = max(1.0, stride / domain)
            tree = IN_NETWORK_TREE if trees else DOUBLE_BINARY_TREE
            bandwidth = level_share(kind, tree, row, positions, spacing) * row.bandwidth
            load = level_load(kind, tree, 1.0, members, below, inside, ports, level == 0)
            time = load / bandwidth
            fill = math.log2(1.0 + positions) * row.simple_hop
            latency += (2.0 if kind == ALL_REDUCE else 1.0) * fill
        if row.bus > 0:
            carried += load
            time = max(time, carried / network.levels[row.bus - 1].bandwidth)
        if trees and level > 0:
            facts = network.facts
            pair = inside / below <= 2.0
            most = facts.in_network_pair_bandwidth if pair else facts.in_network_tree_bandwidth
            if most > 0.0:
                time = max(time, traffic(kind, 1.0, members) / (ports * most))
        fills = 2.0 * math.sqrt(fill * time)
        filling, crowded = longest(filling, time, fills)
        crossing = crossing or crowded
        filled = max(filled, size * time + root_size * fills)
        ports = fewest_inside(float(members), inside)
        below = inside
        domain = above
        if inside >= members:
            break
    base = network.facts.in_network_base if reduces else np.inf
    if not crossing:
        filled = 0.0
    return Cost(0.0, 0.0, filling, filled, 0.0, 0.0, base + latency, 0.0, below, False)
