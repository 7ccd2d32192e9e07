"""What does not depend on the size of a collective, kept for others of its kind and group.

A column of collectives has few kinds and groups, and many sizes: their algorithms' costs, and
what a library believes of them, are worked out once.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.collective.algorithms import DIRECT, RING, is_pairwise
from perfmodel.kernels.collective.choice import (
    algorithm_cost,
    fastest_choice,
    pairwise_protocol,
    tabled_time,
)
from perfmodel.kernels.collective.cost import Cost, Filling
from perfmodel.kernels.collective.protocols import protocol_time
from perfmodel.kernels.collective.tuning import (
    CANDIDATES,
    Beliefs,
    tuned_beliefs,
    tuned_choice,
)

MOST_SLOTS = 4096  # a power of two
PROBES = 8  # slots looked at before one is given up
# What a slot remembers: whom of, whether its costs hold for all sizes, costs and beliefs.
CODE, MEMBERS, STRIDE, STEADY, COST = range(5)
BEYOND = COST + 11
LATENCY = COST + 12
TRANSFER = LATENCY + CANDIDATES
PLATEAU = TRANSFER + CANDIDATES
WIDTH = PLATEAU + 1


@jit_lean
def slots_for(rows):
    """Return how many slots are worth while for some rows: a power of two."""
    slots = 8
    while slots < 2 * rows and slots < MOST_SLOTS:
        slots *= 2
    return slots


@jit_lean
def recall(kind, algorithm, members, stride, network, memo):
    """Return the slot of an algorithm of a collective and group, filled where it was not.

    Parameters
    ----------
    kind, algorithm : int
    members, stride : int
        n > 1.
    network : Network
    memo : float64[slots, WIDTH]
        Slots of zeros are free.

    Returns
    -------
    int
    """
    code = 1 + 16 * kind + algorithm
    home = code * 2477 + members * 661 + stride * 40503
    home = (home ^ home >> 11) & (memo.shape[0] - 1)
    slot = home
    for _ in range(PROBES):
        if memo[slot, CODE] == code and (
            memo[slot, MEMBERS] == members and memo[slot, STRIDE] == stride
        ):
            return slot
        if memo[slot, CODE] == 0.0:
            break
        slot = (slot + 1) & (memo.shape[0] - 1)
    else:
        slot = home
    fill_slot(kind, algorithm, members, stride, network, memo, slot)
    memo[slot, CODE] = code
    return slot


@jit_lean
def fill_slot(kind, algorithm, members, stride, network, memo, slot):
    """Work out what a slot remembers; see `recall`."""
    cost = algorithm_cost(kind, algorithm, 1.0, members, stride, network)
    memo[slot, MEMBERS] = members
    memo[slot, STRIDE] = stride
    memo[slot, STEADY] = cost.crossing_transfer <= 0.0
    kept = (
        cost.low_latency_transfer,
        cost.low_latency_128_transfer,
        cost.filling.transfer,
        cost.filling.fill,
        cost.filling.other_transfer,
        cost.filling.other_fill,
        cost.low_latency_hops,
        cost.low_latency_128_hops,
        cost.simple_hops,
        cost.tuned_transfer,
        cost.node,
        1.0 if cost.beyond else 0.0,
    )
    for field in range(12):
        memo[slot, COST + field] = kept[field]
    tuned = network.facts.tuned_low_latency_bandwidth > 0.0
    if tuned and algorithm == RING and not is_pairwise(kind):
        beliefs = tuned_beliefs(kind, members, cost, network)
        for field in range(CANDIDATES):
            memo[slot, LATENCY + field] = beliefs.latency[field]
            memo[slot, TRANSFER + field] = beliefs.transfer[field]
        memo[slot, PLATEAU] = beliefs.plateau


@jit_lean
def cost_of(memo, slot):
    """Return the costs that a slot remembers."""
    return Cost(
        memo[slot, COST],
        memo[slot, COST + 1],
        Filling(
            memo[slot, COST + 2],
            memo[slot, COST + 3],
            memo[slot, COST + 4],
            memo[slot, COST + 5],
        ),
        0.0,
        memo[slot, COST + 6],
        memo[slot, COST + 7],
        memo[slot, COST + 8],
        memo[slot, COST + 9],
        memo[slot, COST + 10],
        memo[slot, BEYOND] > 0.0,
    )


@jit_lean
def beliefs_of(memo, slot):
    """Return what a slot of a ring remembers of a library's beliefs."""
    return Beliefs(
        (
            memo[slot, LATENCY],
            memo[slot, LATENCY + 1],
            memo[slot, LATENCY + 2],
            memo[slot, LATENCY + 3],
            memo[slot, LATENCY + 4],
            memo[slot, LATENCY + 5],
            memo[slot, LATENCY + 6],
            memo[slot, LATENCY + 7],
        ),
        (
            memo[slot, TRANSFER],
            memo[slot, TRANSFER + 1],
            memo[slot, TRANSFER + 2],
            memo[slot, TRANSFER + 3],
            memo[slot, TRANSFER + 4],
            memo[slot, TRANSFER + 5],
            memo[slot, TRANSFER + 6],
            memo[slot, TRANSFER + 7],
        ),
        memo[slot, PLATEAU],
    )


@jit_lean
def remembered_cost(kind, algorithm, size, members, stride, network, memo):
    """As `algorithm_cost`; of another size of a kind and group that has come up, remembered."""
    slot = recall(kind, algorithm, members, stride, network, memo)
    if memo[slot, STEADY] > 0.0:
        return cost_of(memo, slot)
    return algorithm_cost(kind, algorithm, size, members, stride, network)


@jit_lean
def remembered_choice(kind, size, members, stride, network, memo):
    """As `library_choice`, with what is remembered."""
    if network.facts.tuned_low_latency_bandwidth <= 0.0:
        return fastest_choice(kind, size, members, stride, network)
    if is_pairwise(kind):
        cost = remembered_cost(kind, DIRECT, size, members, stride, network, memo)
        protocol = pairwise_protocol(kind, size, members, cost.beyond, network.library)
        return DIRECT, protocol, protocol_time(protocol, kind, size, members, cost, network)
    slot = recall(kind, RING, members, stride, network, memo)
    beliefs = beliefs_of(memo, slot)
    beyond = memo[slot, BEYOND] > 0.0
    algorithm, protocol = tuned_choice(kind, size, beyond, beliefs, network.library)
    if algorithm == RING and memo[slot, STEADY] > 0.0:
        cost = cost_of(memo, slot)
    else:
        cost = remembered_cost(kind, algorithm, size, members, stride, network, memo)
    return algorithm, protocol, tabled_time(kind, algorithm, protocol, size, members, cost, network)
