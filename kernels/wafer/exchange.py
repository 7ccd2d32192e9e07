"""What tokens on their way to experts and back load on a mesh of nodes, token by token.

Letters
    T   tokens
    k   experts of a token
    S   shared experts' nodes of a token: one, or none
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.wafer.routes import ALONE, DOWN, UP, WAYS, add_load, next_hop

EACH = 0  # a row for each expert of a token
DEDUPLICATED = 1  # a row for each node that holds any of them (back: the sum of the node's)
TREE = 2  # routers copy a row on its way (back: they add rows that meet)

OPPOSITE = np.array([1, 0, 3, 2, 5, 4])  # EAST - WEST, SOUTH - NORTH, UP - DOWN


@jit_lean
def add_way(columns, source, target, tree, back, loads, seen):
    """Add a row's way from a node to another, or, `back`, the same way the other way round.

    Returns
    -------
    hops : int
        Links that it loads.
    length : int
        Links of the way.
    """
    current = source
    hops = 0
    length = 0
    last = DOWN if back else UP
    add_load(last, current, tree, 1.0, loads, seen)
    while True:
        way, beyond = next_hop(columns, current, target)
        if way == DOWN:
            break
        # Back, a row runs from the far end of the link to the near one.
        leaves = beyond if back else current
        if add_load(OPPOSITE[way] if back else way, leaves, tree, 1.0, loads, seen):
            hops += 1
        current = beyond
        length += 1
    add_load(UP if back else DOWN, current, tree, 1.0, loads, seen)
    return hops, length


@jit
def exchange_loads(rows, columns, owners, nodes, kind, back):
    """Rows over every directed link between nodes, as tokens go to experts or come back.

    Parameters
    ----------
    rows, columns : int
        Of nodes; node (r, c) is number ``r columns + c``.
    owners : int64[T]
        Node of each token.
    nodes : int64[T, k + S]
        Nodes of its experts, an expert each; negative: none.
    kind : int
        `EACH`, `DEDUPLICATED` or `TREE`.
    back : bool
        Results come back to the owner: the same messages the other way. Where routers add rows
        (`TREE`) they come the way that they went; else along rows first, then columns.

    Returns
    -------
    loads : float64[WAYS, rows x columns]
        Rows that leave each node east, west, south, north, from the node (up) and to it (down).
    hops : float
        Rows x links.
    longest : int
        Links of the longest way.
    sent : float
        Rows that leave a node: messages.
    """
    count = rows * columns
    loads = np.zeros((WAYS, count))
    seen = np.full((WAYS, count), ALONE)
    reached = np.full(count, -1)  # last token that each node got
    hops = 0.0
    longest = 0
    sent = 0.0
    for token in range(owners.size):
        owner = owners[token]
        for place in range(nodes.shape[1]):
            node = nodes[token, place]
            if node < 0 or node == owner:
                continue
            if kind != EACH:
                if reached[node] == token:
                    continue
                reached[node] = token
            tree = token if kind == TREE else ALONE
            if back and kind != TREE:
                more, length = add_way(columns, node, owner, ALONE, False, loads, seen)
            else:
                more, length = add_way(columns, owner, node, tree, back, loads, seen)
            hops += more
            longest = max(longest, length)
            sent += 1.0
    return loads, hops, longest, sent
