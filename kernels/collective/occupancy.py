"""How long a collective keeps the links of its devices busy, level by level."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.collective.algorithms import (
    ALL_REDUCE,
    IN_NETWORK,
    IN_NETWORK_TREE,
    POINT_TO_POINT,
    is_pairwise,
    level_load,
    level_share,
    shared_link_times,
)
from perfmodel.kernels.collective.table import domain_of_level, fewest_inside


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
