"""Times of collectives on a hierarchical network.

An algorithm says how many hops it makes and which bytes it sends over each level
(`kernels.collective.algorithms`); a protocol says what a hop and a byte cost
(`kernels.collective.protocols`); a library says which of them runs
(`kernels.collective.choice`). Sizes follow nccl-tests.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean, jit_lean_inline
from perfmodel.kernels.collective.algorithms import (
    ALL_REDUCE,
    IN_NETWORK,
    IN_NETWORK_TREE,
    ONE_SHOT,
    POINT_TO_POINT,
    TWO_SHOT,
    is_pairwise,
    level_load,
    level_share,
    shared_link_times,
)
from perfmodel.kernels.collective.choice import (
    WIDTH,
    library_choice,
    memoised_choice,
    memoised_cost,
    protocol_choice,
    slots_for,
)
from perfmodel.kernels.collective.protocols import shot_time
from perfmodel.kernels.collective.table import domain_of_level, fewest_inside


@jit_lean
def collective_time(kind, size, members, stride, network):
    """Completion time of one collective, all groups of its shape at work.

    Parameters
    ----------
    kind : int
        ``ALL_REDUCE`` ... ``SCATTER``.
    size : float
        S [B], nccl-tests convention: all-reduce, the buffer of a rank;
        all-gather, the whole output; reduce-scatter, the whole input;
        all-to-all, the whole send buffer of a rank; gather and scatter, the whole
        buffer of the root; otherwise the message.
    members : int
        n >= 1; ranks r, r + stride, ..., r + (n-1) stride.
    stride : int
        >= 1, in the numbering whose innermost network dimension is contiguous.
    network : Network
        See :mod:`perfmodel.kernels.collective.table`.

    Returns
    -------
    float
        [s]; 0 for a single member or an empty message.
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    return library_choice(kind, size, members, stride, network)[2]


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
    network : Network

    Returns
    -------
    float64[rows]
        [s].
    """
    return collective_choices(kind, size, members, stride, network)[0]


@jit
def serving_all_reduce_times(size, members, stride, network):
    """Times of all-reduces as serving engines run them: the fastest of what they have.

    Engines keep kernels of their own for small buffers, in which a device reads the
    buffers of its peers at once (``ONE_SHOT``) or a part of each (``TWO_SHOT``), and call
    the library for others.

    Parameters
    ----------
    size : float64[rows]
        [B].
    members, stride : int64[rows]
    network : Network

    Returns
    -------
    float64[rows]
        [s].
    """
    rows = size.shape[0]
    time = np.empty(rows)
    memo = np.zeros((slots_for(rows), WIDTH))
    for row in range(rows):
        time[row] = 0.0
        if members[row] <= 1 or size[row] <= 0.0:
            continue
        group = members[row], stride[row], network, memo
        time[row] = memoised_choice(ALL_REDUCE, size[row], *group)[2]
        for shot in (ONE_SHOT, TWO_SHOT):
            cost = memoised_cost(ALL_REDUCE, shot, size[row], *group)
            time[row] = min(time[row], shot_time(size[row], cost, network))
    return time


@jit
def collective_choices(kind, size, members, stride, network):
    """As `collective_times`, with the algorithm and the protocol that run.

    Returns
    -------
    time : float64[rows]
        [s].
    algorithm, protocol : int8[rows]
        -1 where nothing runs (a single member, an empty message).
    """
    rows = size.shape[0]
    time = np.empty(rows)
    algorithm, protocol = np.empty(rows, np.int8), np.empty(rows, np.int8)
    memo = np.zeros((slots_for(rows), WIDTH))
    for row in range(rows):
        algorithm[row], protocol[row], time[row] = -1, -1, 0.0
        if members[row] > 1 and size[row] > 0.0:
            algorithm[row], protocol[row], time[row] = memoised_choice(
                kind[row], size[row], members[row], stride[row], network, memo
            )
    return time, algorithm, protocol


@jit
def algorithm_times(kind, algorithm, protocol, size, members, stride, network):
    """Times of given algorithms and protocols, column by column; see `protocol_choice`.

    Parameters
    ----------
    kind, algorithm, protocol : int64[rows]
    size : float64[rows]
        [B].
    members, stride : int64[rows]
    network : Network

    Returns
    -------
    time : float64[rows]
        [s].
    protocol : int8[rows]
        The protocol itself, or the fastest one where it was ``AUTO``; -1 where nothing runs.
    """
    rows = size.shape[0]
    time, taken = np.empty(rows), np.empty(rows, np.int8)
    memo = np.zeros((slots_for(rows), WIDTH))
    for row in range(rows):
        taken[row], time[row] = -1, 0.0
        if members[row] <= 1 or size[row] <= 0.0:
            continue
        group = members[row], stride[row], network, memo
        cost = memoised_cost(kind[row], algorithm[row], size[row], *group)
        taken[row], time[row] = protocol_choice(
            kind[row], algorithm[row], protocol[row], size[row], members[row], cost, network
        )
    return time, taken


@jit
def link_occupancies(kind, algorithm, size, members, stride, network):
    """How long collectives keep links busy that they have to themselves.

    Parameters
    ----------
    kind, algorithm : int64[rows]
        Of the algorithm: -1 where nothing runs.
    size : float64[rows]
        [B].
    members, stride : int64[rows]
    network : Network

    Returns
    -------
    busy : float64[rows, levels]
        Bytes over the achievable bandwidth of the links that serve the group [s]; a bus
        carries those of adapters too.
    part : float64[rows, levels]
        Of a device's bandwidth into the level that these links make up; 1 into a switch.
    """
    levels = network.levels.shape[0]
    busy = np.zeros((size.shape[0], levels))
    part = np.ones((size.shape[0], levels))
    for row in range(size.shape[0]):
        if algorithm[row] >= 0:
            _occupy(
                kind[row],
                algorithm[row],
                size[row],
                members[row],
                stride[row],
                network,
                busy[row],
                part[row],
            )
    return busy, part


@jit_lean
def _occupy(kind, algorithm, size, members, stride, network, busy, part):
    """Fill the levels that one collective crosses; as `kernels.collective.cost` has them."""
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
        reduces = algorithm == IN_NETWORK or (algorithm == IN_NETWORK_TREE and level == 0)
        if reduces and row.in_network_bandwidth > 0.0:
            copies = 1.0 + 1.0 / positions if kind == ALL_REDUCE and level == 0 else 1.0
            load = copies * size / ports
            busy[level] += load / row.in_network_bandwidth
        else:
            share = level_share(kind, algorithm, row, positions, max(1.0, stride / domain))
            chain = level == 0 or network.facts.tuned_low_latency_bandwidth <= 0.0
            load = level_load(kind, algorithm, size, members, below, inside, ports, chain)
            shared, _ = shared_link_times(
                kind, algorithm, size, members, stride, below, inside, chain, row
            )
            busy[level] += max(load / (share * row.bandwidth), shared)
            # Pairwise exchange leaves part of the links idle, but has them.
            spread = kind != POINT_TO_POINT and is_pairwise(kind)
            part[level] = min(1.0, share / row.pairwise_fraction if spread else share)
        if 0 < row.bus <= level:
            busy[row.bus - 1] += load / network.levels[row.bus - 1].bandwidth
        ports = fewest_inside(float(members), inside)
        below = inside
        domain = above
        if inside >= members:
            break


MEMO_SLOTS = 4096  # a power of two
KIND, SIZE, MEMBERS, STRIDE, TIME = range(5)  # what a slot remembers


@jit_lean_inline
def memoised_time(kind, size, members, stride, network, memo):
    """Collective time that remembers its last answers.

    Neighbouring strategies of a grid ask for the same collectives again and again.

    Parameters
    ----------
    kind, size, members, stride, network
        As of `perfmodel.kernels.collective.times.collective_time`.
    memo : float64[MEMO_SLOTS, TIME + 1]
        Answers so far; rows of zeros (size 0) are free.

    Returns
    -------
    float
        Time [s].
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    slot = (kind + 7 * members + 3 * stride + int(size) // 64) & (MEMO_SLOTS - 1)
    if (
        memo[slot, SIZE] == size
        and memo[slot, KIND] == kind
        and memo[slot, MEMBERS] == members
        and memo[slot, STRIDE] == stride
    ):
        return float(memo[slot, TIME])
    # int: a kind or group that is a constant would compile the whole model once more.
    time = collective_time(int(kind), size, int(members), int(stride), network)
    memo[slot, KIND], memo[slot, SIZE], memo[slot, MEMBERS] = kind, size, members
    memo[slot, STRIDE], memo[slot, TIME] = stride, time
    return time
