"""Routes of messages on a mesh, loads of exchanges among experts, and rows of tokens on nodes.

Letters
    R   rows
    K   columns; core (r, c) is number r K + c
    F   flows
    W   wavelets of a flow
    T   tokens
    k   experts of a token
    S   shared experts' nodes of a token: one, or none
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean

# What flows load on a mesh whose routes go along the row first, then along the column.

EAST = 0  # to the next column
WEST = 1
SOUTH = 2  # to the next row
NORTH = 3
UP = 4  # from the core to its router
DOWN = 5  # from the router to its core
WAYS = 6

ALONE = -1  # tree of a flow that shares its links with none


@jit_lean
def next_hop(columns, current, target):
    """Which way a route leaves a core, and the core after it.

    Returns
    -------
    way : int
        `EAST` ... `NORTH`, or `DOWN` where it ends.
    core : int
    """
    column = current % columns
    goal = target % columns
    if column < goal:
        return EAST, current + 1
    if column > goal:
        return WEST, current - 1
    if current < target:
        return SOUTH, current + columns
    if current > target:
        return NORTH, current - columns
    return DOWN, current


@jit_lean
def add_load(way, core, tree, wavelets, loads, seen):
    """Add a flow to a link, once for all flows of its tree; whether it was added."""
    if tree != ALONE:
        if seen[way, core] == tree:
            return False
        seen[way, core] = tree
    loads[way, core] += wavelets
    return True


@jit
def flow_loads(rows, columns, sources, targets, wavelets, trees):
    """Wavelets over every directed link and ramp of a mesh.

    Parameters
    ----------
    rows, columns : int
        R, K.
    sources, targets : int64[F]
        Cores; a flow to its own core loads nothing.
    wavelets : float64[F]
        W.
    trees : int64[F]
        `ALONE`, or the number (from 0) of the multicast that a flow belongs to, whose flows stand
        one after the other: routers copy its wavelets, and a link carries them once.

    Returns
    -------
    loads : float64[WAYS, R K]
        By the core that the link leaves: `EAST` ... `NORTH`, `UP`, `DOWN`.
    passing : int64[R K]
        Routes that pass, start or end in each router; a multicast is one.
    hops : float
        E, wavelets x links.
    longest : int
        Hops of the longest route.
    """
    loads = np.zeros((WAYS, rows * columns))
    seen = np.full((WAYS, rows * columns), ALONE)
    here = np.full(rows * columns, ALONE)  # last tree in each router
    passing = np.zeros(rows * columns, dtype=np.int64)
    hops = 0.0
    longest = 0
    for flow in range(sources.size):
        current = sources[flow]
        target = targets[flow]
        size = wavelets[flow]
        tree = trees[flow]
        if current == target or size <= 0.0:
            continue
        add_load(UP, current, tree, size, loads, seen)
        steps = 0
        while True:
            if tree == ALONE or here[current] != tree:
                passing[current] += 1
                here[current] = tree
            way, core = next_hop(columns, current, target)
            if way == DOWN:
                break
            if add_load(way, current, tree, size, loads, seen):
                hops += size
            current = core
            steps += 1
        add_load(DOWN, current, tree, size, loads, seen)
        longest = max(longest, steps)
    return loads, passing, hops, longest


# What tokens on their way to experts and back load on a mesh of nodes, token by token.

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


# Rows of tokens that nodes send, receive and work on in a layer with experts.

DISPATCHED = 0
DISPATCH_RECEIVED = 1
CAST = 2  # tokens with an expert elsewhere: sent once, whatever the number of nodes
WORKED = 3
ACTIVE = 4  # experts that have any token
SHARED = 5
RETURNED = 6  # of routed experts: all nodes that share one together
RETURN_RECEIVED = 7
SHARED_RETURNED = 8
SHARED_RETURN_RECEIVED = 9
COUNTS = 10


@jit
def expert_rows(experts, stands, owners, shared, rank_of, parts, replicas, counts):
    """Count rows token by token.

    A token goes once to each node that has any of its experts; every expert's result comes back
    alone, and where experts are split over nodes each of these returns its share of it.

    Parameters
    ----------
    experts : int64[sequences, drawn, k]
        Experts of tokens.
    stands : int64[drawn]
        Tokens of a sequence that each of them stands for.
    owners : int64[sequences]
        Node that has a sequence's tokens.
    shared : int64[sequences]
        Node of the shared experts that serves them; negative: none.
    rank_of : int64[experts]
        Expert-parallel rank of each expert.
    parts, replicas : int
        Nodes that an expert is split over, and copies of all experts; node ``(replica ranks +
        rank) parts + part``. A token goes to the replica of its own node.
    counts : int64[COUNTS, nodes]
        Result.
    """
    nodes = counts.shape[1]
    replica_nodes = nodes // replicas
    counts[:] = 0
    reached = np.full(nodes, -1)
    used = np.zeros((replicas, rank_of.size), np.bool_)
    token = 0
    for s in range(experts.shape[0]):
        owner = owners[s]
        replica = owner // replica_nodes
        base = replica * replica_nodes
        for t in range(experts.shape[1]):
            rows = stands[t]
            remote = False
            for j in range(experts.shape[2] + 1):
                if j < experts.shape[2]:
                    e = experts[s, t, j]
                    used[replica, e] = True
                    first = base + rank_of[e] * parts
                    end = first + parts
                    work, back, came = WORKED, RETURNED, RETURN_RECEIVED
                else:
                    if shared[s] < 0:
                        continue
                    first = shared[s]
                    end = first + 1
                    work, back, came = SHARED, SHARED_RETURNED, SHARED_RETURN_RECEIVED
                for node in range(first, end):
                    counts[work, node] += rows
                    if node != owner:
                        remote = True
                        counts[back, node] += rows
                        counts[came, owner] += rows
                        if reached[node] != token:
                            reached[node] = token
                            counts[DISPATCHED, owner] += rows
                            counts[DISPATCH_RECEIVED, node] += rows
            if remote:
                counts[CAST, owner] += rows
            token += 1
    for replica in range(replicas):
        for e in range(rank_of.size):
            if used[replica, e]:
                first = replica * replica_nodes + rank_of[e] * parts
                for node in range(first, first + parts):
                    counts[ACTIVE, node] += 1
