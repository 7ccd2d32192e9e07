"""Sums, copies and gathers of vectors over a row or a rectangle of cores.

Letters
    P   cores of the row
    W   wavelets of a core's vector
    h   cycles from router to router
    s   cycles of one dependent message beside its way (`perfmodel.kernels.wafer.phases`)

A chain adds what arrives and sends it on wavelet by wavelet; a core takes one wavelet a cycle
from its ramp, whichever side it comes from. So two streams that meet need 2 W cycles of the core
where they meet, beside the way of the first: a phase in which the ramp, not a link, is busiest.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.wafer.phases import message_cycles, step_cycles, wavelets_of
from perfmodel.kernels.wafer.trees import tree_reduce_cycles

ALGORITHMS = ("chain", "ring", "star", "one_level", "two_level", "three_level", "four_level")
"""By code. ``two_level`` is the K-tree of He et al. (OSDI 2025) with K = 2, and so on."""

CHAIN = 0  # from one end to the other
RING = 1  # folded, so that neighbours are two hops apart; a chunk a core
STAR = 2  # all to the middle
ONE_LEVEL = 3  # from both ends to the middle
TWO_LEVEL = 4  # the same in groups, then over the middles of groups
THREE_LEVEL = 5
FOUR_LEVEL = 6


@jit_lean
def star_reduce_cycles(cores, wavelets, hop_cycles, step):
    """Sum over a row whose cores all send to the middle one [cycles].

    The middle takes W (P - 1) wavelets, one a cycle, from the first that arrives; of those that
    come from distance x or more none arrives before x h.
    """
    if cores <= 1.0:
        return 0.0
    before = math.floor(cores / 2.0)
    after = cores - 1.0 - before
    cycles = max(hop_cycles + wavelets * (cores - 1.0), before * hop_cycles + wavelets)
    if after > 0.0:
        cycles = max(cycles, after * hop_cycles + wavelets * (2.0 + before - after))
    return cycles + step


@jit_lean
def ring_hops(cores):
    """Hops of the slowest chunk of an all-reduce over a row that is folded into a ring.

    The ring's neighbours are two hops apart, but one at either end: a full turn has 2 (P - 1)
    hops, and 2 (P - 1) steps are two turns without the two shortest neighbours.
    """
    if cores <= 1.0:
        return 0.0
    return 4.0 * (cores - 1.0) - (3.0 if cores > 3.0 else 2.0)


@jit_lean
def ring_all_reduce_cycles(cores, elements, elements_per_wavelet, hop_cycles, step):
    """All-reduce over a row by 2 (P - 1) steps of a chunk each [cycles].

    A chunk has arrived as a whole before it is sent on; the largest counts.
    """
    if cores <= 1.0:
        return 0.0
    chunk = wavelets_of(math.ceil(elements / cores), elements_per_wavelet)
    return 2.0 * (cores - 1.0) * (chunk + step) + ring_hops(cores) * hop_cycles


@jit_lean
def reduce_cycles(
    algorithm, cores, elements, elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles
):
    """Sum of a vector over a row of cores, in one of them.

    Parameters
    ----------
    algorithm : int
        Place in `ALGORITHMS`; a ring has no root, and counts as the half of its all-reduce.
    cores : float
        P, >= 1.
    elements : float
        Of the vector that every core has.
    elements_per_wavelet : float
        Link width over element size, at least 1.
    hop_cycles, stage_cycles, ramp_cycles : float
        h; what software adds to a dependent message; T_R [cycles].

    Returns
    -------
    float
        [cycles].
    """
    if cores <= 1.0 or elements <= 0.0:
        return 0.0
    step = step_cycles(ramp_cycles, stage_cycles)
    wavelets = wavelets_of(elements, elements_per_wavelet)
    if algorithm == CHAIN:
        return wavelets + (cores - 1.0) * (hop_cycles + step)
    if algorithm == RING:
        whole = ring_all_reduce_cycles(cores, elements, elements_per_wavelet, hop_cycles, step)
        return 0.5 * whole
    if algorithm == STAR:
        return star_reduce_cycles(cores, wavelets, hop_cycles, step)
    return tree_reduce_cycles(cores, wavelets, algorithm - ONE_LEVEL + 1.0, hop_cycles, step)[0]


@jit_lean
def all_reduce_cycles(
    algorithm, cores, elements, elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles
):
    """Sum of a vector over a row of cores, in all of them.

    Parameters and unit as `reduce_cycles`; all but the ring send the sum back as one message
    that the routers copy.
    """
    if cores <= 1.0 or elements <= 0.0:
        return 0.0
    step = step_cycles(ramp_cycles, stage_cycles)
    wavelets = wavelets_of(elements, elements_per_wavelet)
    if algorithm == RING:
        return ring_all_reduce_cycles(cores, elements, elements_per_wavelet, hop_cycles, step)
    if algorithm == CHAIN:
        there = wavelets + (cores - 1.0) * (hop_cycles + step)
    elif algorithm == STAR:
        there = star_reduce_cycles(cores, wavelets, hop_cycles, step)
    else:
        there = tree_reduce_cycles(cores, wavelets, algorithm - ONE_LEVEL + 1.0, hop_cycles, step)[
            0
        ]
    far = root_distance(algorithm, cores)
    return there + message_cycles(wavelets, far, hop_cycles, ramp_cycles, stage_cycles)


@jit_lean
def all_reduce_counts(algorithm, cores, elements, elements_per_wavelet):
    """Contention, hops, links, longest way and depth of an all-reduce over a row.

    Parameters
    ----------
    algorithm, cores, elements, elements_per_wavelet
        As `reduce_cycles`.

    Returns
    -------
    contention : float
        C: wavelets that the busiest core sends or takes, whichever is more.
    hops : float
        E, wavelets x hops.
    links : float
        N, links in use, 2 (P - 1).
    longest : float
        L, hops one after the other.
    depth : float
        D, messages one after the other.
    """
    if cores <= 1.0 or elements <= 0.0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    wavelets = wavelets_of(elements, elements_per_wavelet)
    links = 2.0 * (cores - 1.0)
    row = cores - 1.0
    if algorithm == CHAIN:
        return wavelets, 2.0 * wavelets * row, links, 2.0 * row, row + 1.0
    if algorithm == RING:
        chunk = wavelets_of(math.ceil(elements / cores), elements_per_wavelet)
        hops = 4.0 * row * row * chunk
        return 2.0 * row * chunk, hops, links, ring_hops(cores), 2.0 * row
    middle = math.floor(cores / 2.0)
    if algorithm == STAR:
        after = row - middle
        hops = wavelets * (0.5 * middle * (middle + 1.0) + 0.5 * after * (after + 1.0))
        return wavelets * row, hops + wavelets * row, links, 2.0 * middle, 2.0
    _, stages, root, contention, hops, longest = tree_reduce_cycles(
        cores, wavelets, algorithm - ONE_LEVEL + 1.0, 1.0, 1.0
    )
    back = max(root, row - root)
    return contention, hops + wavelets * row, links, longest + back, stages + 1.0


@jit_lean
def all_gather_cycles(
    algorithm, cores, elements, elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles
):
    """Every core's vector to all of a row.

    Parameters
    ----------
    algorithm : int
        `RING`: P - 1 steps to the next of a folded ring; any other: every core sends to both
        sides at once, and the routers copy.
    cores, elements, elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles
        As `reduce_cycles`; `elements` are those of one core.

    Returns
    -------
    float
        [cycles]. Either way a core takes W (P - 1) wavelets from its ramp.
    """
    if cores <= 1.0 or elements <= 0.0:
        return 0.0
    step = step_cycles(ramp_cycles, stage_cycles)
    wavelets = wavelets_of(elements, elements_per_wavelet)
    row = cores - 1.0
    if algorithm == RING:
        return row * (wavelets + step) + (2.0 * row - 1.0) * hop_cycles
    return max(wavelets * row + hop_cycles, wavelets + row * hop_cycles) + step


@jit_lean
def grid_all_reduce_cycles(
    algorithm, rows, columns, elements, elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles
):
    """Sum of a vector over a rectangle of cores, in all of them.

    Parameters
    ----------
    rows, columns : float
        Sides of the rectangle.
    algorithm, elements, elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles
        As `reduce_cycles`.

    Returns
    -------
    float
        [cycles]. Rows first, then the column of their roots; the sum goes back as one message
        that the routers copy over the rectangle. A ring has no root: rows, then columns.
    """
    if rows * columns <= 1.0 or elements <= 0.0:
        return 0.0
    along = (elements, elements_per_wavelet, hop_cycles, stage_cycles, ramp_cycles)
    if algorithm == RING:
        return all_reduce_cycles(RING, columns, *along) + all_reduce_cycles(RING, rows, *along)
    wavelets = wavelets_of(elements, elements_per_wavelet)
    there = reduce_cycles(algorithm, columns, *along) + reduce_cycles(algorithm, rows, *along)
    far = root_distance(algorithm, columns) + root_distance(algorithm, rows)
    return there + message_cycles(wavelets, far, hop_cycles, ramp_cycles, stage_cycles)


@jit_lean
def root_distance(algorithm, cores):
    """Hops from the core where a sum over a row ends to the farther end."""
    if cores <= 1.0:
        return 0.0
    if algorithm == CHAIN:
        return cores - 1.0
    if algorithm == STAR:
        return math.floor(cores / 2.0)
    root = tree_reduce_cycles(cores, 1.0, algorithm - ONE_LEVEL + 1.0, 1.0, 1.0)[2]
    return max(root, cores - 1.0 - root)
