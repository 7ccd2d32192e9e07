"""What flows load on a mesh whose routes go along the row first, then along the column.

Letters
    R   rows
    K   columns; core (r, c) is number r K + c
    F   flows
    W   wavelets of a flow
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean

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
