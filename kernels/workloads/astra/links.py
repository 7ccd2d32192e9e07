"""Links of the congestion-aware network: which one is next on the way, and where it ends.

astra-network-analytical, congestion_aware/basic-topology: Ring.cpp (the shorter way, ties
clockwise), FullyConnected.cpp, Switch.cpp (the switch is the node behind all ranks). Mesh2D goes
along the rows, which are its longer side, first.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.workloads.astra.machine_state import (
    FULL_LINKS,
    MESH_LINKS,
    NONE,
    RANKS,
    RING_LINKS,
    SWITCH_LINKS,
    TOPOLOGY,
    WIDTH,
)


@jit_lean
def next_link(facts, node, rank):
    """Directed link on the way from a node to a rank, which is another one.

    Ring: clockwise links, then the others. FullyConnected: by source and target. Switch: up, then
    down. Mesh2D: up the row, down the row, up the column, down the column.
    """
    ranks = facts[RANKS]
    topology = facts[TOPOLOGY]
    if topology == SWITCH_LINKS:
        return node if node < ranks else ranks + rank
    if topology == FULL_LINKS:
        return node * ranks + rank
    if topology == RING_LINKS:
        clockwise = (rank - node) % ranks
        return node if clockwise <= ranks - clockwise else ranks + node
    width = facts[WIDTH]
    along = rank % width - node % width
    if along != 0:
        return node if along > 0 else ranks + node
    return 2 * ranks + node if rank > node else 3 * ranks + node


@jit_lean
def far_end(facts, link):
    """Node at the end of a link: a rank, or the switch."""
    ranks = facts[RANKS]
    topology = facts[TOPOLOGY]
    if topology == SWITCH_LINKS:
        return ranks if link < ranks else link - ranks
    if topology == FULL_LINKS:
        return link % ranks
    if topology == RING_LINKS:
        return (link + 1) % ranks if link < ranks else (link - 1) % ranks
    node = link % ranks
    way = link // ranks
    if way < 2:
        return node + 1 if way == 0 else node - 1
    return node + facts[WIDTH] if way == 2 else node - facts[WIDTH]


@jit
def link_ends(facts, links):
    """Nodes at both ends of every link; ``NONE`` where there is no such link.

    Returns
    -------
    source, target : int64[link]
    """
    ranks = facts[RANKS]
    topology = facts[TOPOLOGY]
    source = np.empty(links, np.int64)
    target = np.empty(links, np.int64)
    for link in range(links):
        node = link // ranks if topology == FULL_LINKS else link % ranks
        end = far_end(facts, link)
        if topology == SWITCH_LINKS and link >= ranks:
            node = ranks
        missing = end == node
        if topology == RING_LINKS:
            missing = ranks == 2 and link >= ranks  # both ways round are one link
        if topology == MESH_LINKS:
            beyond = end < 0 or end >= ranks
            missing = beyond or (link < 2 * ranks and end // facts[WIDTH] != node // facts[WIDTH])
        source[link] = NONE if missing else node
        target[link] = NONE if missing else end
    return source, target
