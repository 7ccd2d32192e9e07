"""What an algorithm costs on all levels of a network together, before any protocol.

Letters
    S   size in the nccl-tests convention [B]
    n   members of the group
"""

from __future__ import annotations

import math
from typing import NamedTuple

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.collective.algorithms import (
    ALL_REDUCE,
    ALL_TO_ALL,
    BIDIRECTIONAL_RING,
    BROADCAST,
    DIRECT,
    HIERARCHICAL,
    MULTICAST,
    ONE_SHOT,
    POINT_TO_POINT,
    RAIL_ALIGNED,
    RING,
    TWO_SHOT,
    is_pairwise,
    is_pipelined,
    level_load,
    level_share,
    level_steps,
    shared_link_times,
)
from perfmodel.kernels.collective.table import (
    ADAPTER,
    FULLY_CONNECTED,
    domain_of_level,
    fewest_inside,
)


class Filling(NamedTuple):
    """The longer of two times of S bytes, ``transfer S + fill sqrt(S)``."""

    transfer: float  # [s/B]
    fill: float  # [s/B^0.5]
    other_transfer: float
    other_fill: float


class Cost(NamedTuple):
    """Times that an algorithm spends on links and hops, before any protocol.

    But for `crossing_transfer` nothing depends on the size.
    """

    low_latency_transfer: float  # 1 / bandwidth, slowest level (pipelined) or all levels [s/B]
    low_latency_128_transfer: float  # the same with its bandwidth [s/B]
    filling: Filling  # the same of the last protocol, with the cost of filling its pipeline
    crossing_transfer: float  # that at the size, where `filling` does not hold for all; else 0 [s]
    low_latency_hops: float  # sum of the hop latencies on the critical path, by protocol [s]
    low_latency_128_hops: float
    simple_hops: float
    tuned_transfer: float  # 1 / the bandwidth that a library's table believes [s/B]
    node: float  # members per domain of the levels within a node
    beyond: bool  # whether the group crosses adapters


@jit_lean
def filled_transfer(size, cost):
    """Time of the bytes, and of filling the pipeline, in the last protocol.

    Parameters
    ----------
    size : float
        S [B].
    cost : Cost

    Returns
    -------
    float
        [s].
    """
    if cost.crossing_transfer > 0.0:
        return cost.crossing_transfer
    root = math.sqrt(size)
    one = cost.filling
    return max(
        size * one.transfer + root * one.fill, size * one.other_transfer + root * one.other_fill
    )


@jit_lean
def slower(cost, reached):
    """Costs of an algorithm that reaches a part of its bandwidth."""
    return Cost(
        cost.low_latency_transfer / reached,
        cost.low_latency_128_transfer / reached,
        Filling(
            cost.filling.transfer / reached,
            cost.filling.fill / reached,
            cost.filling.other_transfer / reached,
            cost.filling.other_fill / reached,
        ),
        cost.crossing_transfer / reached,
        cost.low_latency_hops,
        cost.low_latency_128_hops,
        cost.simple_hops,
        cost.tuned_transfer,
        cost.node,
        cost.beyond,
    )


@jit_lean
def longest(filling, transfer, fill):
    """Take a time in where it is the longest for some sizes.

    Parameters
    ----------
    filling : Filling
    transfer, fill : float
        [s/B], [s/B^0.5].

    Returns
    -------
    filling : Filling
    crowded : bool
        Each of three is the longest for some sizes, perhaps: the third is left out.
    """
    one, one_fill, two, two_fill = filling
    if (transfer <= one and fill <= one_fill) or (transfer <= two and fill <= two_fill):
        return filling, False
    if transfer >= two and fill >= two_fill:
        return Filling(one, one_fill, transfer, fill), False
    if transfer >= one and fill >= one_fill:
        return Filling(transfer, fill, two, two_fill), False
    return filling, True


@jit_lean
def network_cost(kind, algorithm, size, members, stride, network):
    """Times that an algorithm spends on links and hops, before any protocol.

    Parameters
    ----------
    kind, algorithm : int
    size : float
        S [B].
    members, stride : int
        n > 1; ranks r, r + stride, ...
    network : Network

    Returns
    -------
    Cost
    """
    pairwise = is_pairwise(kind)
    shot = algorithm in (ONE_SHOT, TWO_SHOT)
    own_copy = 0.0
    if not shot and kind not in (BROADCAST, MULTICAST, POINT_TO_POINT):
        own_copy = network.facts.local_copy_time / members
    pipelined = is_pipelined(algorithm)
    # RCCL over two nodes has the bandwidth of rings whatever it runs (16 MI355X: 381 GB/s).
    chain = network.facts.tuned_low_latency_bandwidth <= 0.0
    direct = algorithm in (DIRECT, ONE_SHOT, TWO_SHOT) and kind != ALL_TO_ALL

    filling = Filling(own_copy, 0.0, 0.0, 0.0)
    filled = size * own_copy
    crossing = False
    low_transfer = own_copy / network.levels[0].low_latency_fraction
    middle_transfer = own_copy / max(network.levels[0].low_latency_128_fraction, 1e-9)
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

    root_size = math.sqrt(size)
    carried = 0.0  # over the bus, by this level and those inside it, over S
    domain = 1.0
    below = 1.0
    ports = 1.0
    for level in range(network.levels.shape[0]):
        row = network.levels[level]
        above, inside = domain_of_level(network, level, members, stride, domain)
        if inside <= below:
            domain = above
            continue
        positions = math.ceil(inside / below)
        spacing = max(1.0, stride / domain)
        share = level_share(kind, algorithm, row, positions, spacing)
        load = level_load(kind, algorithm, 1.0, members, below, inside, ports, chain or level == 0)
        if row.tuned_bandwidth > 0.0:
            tuned = max(tuned, load / (share * row.tuned_bandwidth))
        time = load / (share * row.bandwidth)
        shared, longer = shared_link_times(
            kind, algorithm, 1.0, members, stride, below, inside, chain or level == 0, row
        )
        tuned = max(tuned, shared)
        time = max(time, shared) if pipelined else time + longer
        if level == 0:  # within the device, whatever part of its links the group has
            time += own_copy
        low_time = time / (row.shot_fraction if shot else row.low_latency_fraction)
        latency = row.pairwise_pipeline_latency if pairwise else row.pipeline_latency
        fill = math.log2(1.0 + positions) * latency
        fills = 2.0 * math.sqrt(fill * time)
        with_fill = size * time + root_size * fills
        middle_time = time / max(row.low_latency_128_fraction, 1e-9)
        if row.bus > 0:  # one link carries what stays on the bus and what goes on to adapters
            bus = network.levels[row.bus - 1]
            carried = load + (carried if pipelined else 0.0)
            bus_share = bus.pairwise_fraction if pairwise else 1.0
            on_bus = carried / (bus_share * bus.bandwidth)
            tuned = max(tuned, carried / (bus_share * bus.tuned_bandwidth))
            latency = bus.pairwise_pipeline_latency if pairwise else bus.pipeline_latency
            fill = math.log2(1.0 + (inside if pipelined else positions)) * latency
            bus_fills = 2.0 * math.sqrt(fill * on_bus)
            with_fill = max(with_fill, size * on_bus + root_size * bus_fills)
            if pipelined:
                filling, crowded = longest(filling, on_bus, bus_fills)
                crossing = crossing or crowded
            else:
                crossing = crossing or (on_bus - time) * (bus_fills - fills) < 0.0
                time = max(time, on_bus)
                fills = max(fills, bus_fills)
            low_time = max(
                low_time, on_bus / (bus.shot_fraction if shot else bus.low_latency_fraction)
            )
        if pipelined:
            low_transfer = max(low_transfer, low_time)
            middle_transfer = max(middle_transfer, middle_time)
            filling, crowded = longest(filling, time, fills)
            crossing = crossing or crowded
            filled = max(filled, with_fill)
        else:
            low_transfer += low_time
            middle_transfer += middle_time
            filling = Filling(filling.transfer + time, filling.fill + fills, 0.0, 0.0)
            filled += with_fill

        hops = level_steps(kind, algorithm, positions, spacing, members, below, row, level == 0)
        if direct:  # every message goes straight to its target
            low = max(low, hops * row.low_latency_hop)
            middle = max(middle, hops * row.low_latency_128_hop)
            simple = max(simple, hops * row.simple_hop)
        else:
            low += hops * row.low_latency_hop
            middle += hops * row.low_latency_128_hop
            simple += hops * row.simple_hop
        slowest_low = max(slowest_low, row.low_latency_hop)
        slowest_middle = max(slowest_middle, row.low_latency_128_hop)
        slowest_simple = max(slowest_simple, row.simple_hop)
        crossed += 1
        if row.link_class == ADAPTER:
            beyond = True
            if pairwise and kind != POINT_TO_POINT:
                peers = members - ports
                if algorithm in (HIERARCHICAL, RAIL_ALIGNED):
                    peers = positions - 1.0
                messages = peers * row.message_latency
                low += messages
                middle += messages
                simple += messages
            if algorithm == RAIL_ALIGNED:
                piece = min(load, network.library.pairwise_piece / size)
                piece /= network.levels[0].bandwidth
                crossing = True
                filled += size * piece
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
    if not crossing:
        filled = 0.0
    return Cost(
        low_transfer,
        middle_transfer,
        filling,
        filled,
        low,
        middle,
        simple,
        tuned,
        node,
        beyond,
    )


@jit_lean
def serves_all_pairs(members, network):
    """Whether a group is a whole fully connected level: direct exchange has all links."""
    size = network.levels[0].domains
    return network.levels[0].topology == FULLY_CONNECTED and size > 2.0 and members == size
