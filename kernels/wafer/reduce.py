"""Cycles of messages and of sums, broadcasts and gathers on a mesh.

Letters
    W   wavelets (what a link carries in a cycle) of a message, or of a core's vector
    h   cycles from router to router
    C   wavelets that the busiest core sends or takes, or the busiest link carries
    E   wavelets x hops of all messages
    N   links that carry any
    L   longest way [cycles]
    D   messages that wait for each other, one after the other
    s   cycles of one of those beside its way: 2 T_R + 1, and what software adds
    P   cores of a row
    K   levels of a tree

A chain adds what arrives and sends it on wavelet by wavelet; a core takes one wavelet a cycle
from its ramp, whichever side it comes from. So two streams that meet need 2 W cycles of the core
where they meet, beside the way of the first: a phase in which the ramp, not a link, is busiest.
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean

# Time of a phase of messages on a mesh of cores, from what its routes load.


@jit_lean
def wavelets_of(elements, elements_per_wavelet):
    """Wavelets that carry a vector: whole ones."""
    whole = elements // elements_per_wavelet
    return whole if whole * elements_per_wavelet == elements else whole + 1.0


@jit_lean
def step_cycles(ramp_cycles, stage_cycles):
    """Cycles that one dependent message takes beside its way and its wavelets.

    Parameters
    ----------
    ramp_cycles : float
        T_R, from core to router or back.
    stage_cycles : float
        What software adds: the issue of the instruction that receives, adds and sends.

    Returns
    -------
    float
        s = 2 T_R + 1 + stage (Luczynski et al., HPDC 2024: two ramps and the core's own cycle).
    """
    return 2.0 * ramp_cycles + 1.0 + stage_cycles


@jit_lean
def phase_cycles(contention, hops, links, longest, depth, ramp_cycles, stage_cycles=0.0):
    """Time of a phase of messages by its four counts.

    Parameters
    ----------
    contention, hops : float
        C and E [wavelets].
    links : float
        N, links in use; 0 where nothing is sent.
    longest : float
        L [cycles].
    depth : float
        D.
    ramp_cycles, stage_cycles : float
        T_R, and what software adds to each dependent message [cycles].

    Returns
    -------
    float
        ``max(C, E/N + L) + (2 T_R + 1 + stage) D`` [cycles] (Luczynski et al., "Near-Optimal
        Wafer-Scale Reduce", HPDC 2024, who measure it within 4 % on a WSE-2).
    """
    mean = hops / links if links > 0.0 else 0.0
    return max(contention, mean + longest) + step_cycles(ramp_cycles, stage_cycles) * depth


@jit_lean
def message_cycles(wavelets, hops, hop_cycles, ramp_cycles, stage_cycles=0.0):
    """Time of one message, or of one that routers copy on its way (a broadcast) [cycles].

    ``W + hops h + s``: the phase of one message, whose mean load is its own.
    """
    return wavelets + hops * hop_cycles + step_cycles(ramp_cycles, stage_cycles)


# Sums over a row of cores by trees of chains: stages and way of He et al., OSDI 2025.


@jit_lean
def group_size(members, levels):
    """Members of a group on the lowest of so many levels: about the root, at least 2.

    Kernels want groups of one size: of the sizes within about a third of the root, the nearest that
    divides the members counts; where none does, the one whose last group is fullest, as a group
    of few is ready early and gets in the way of the one before it. The highest level is one group
    of all that is left.
    """
    if levels <= 1.0:
        return members
    root = members ** (1.0 / levels)
    middle = int(root + 0.5)
    others = int(members) - 1
    best = max(middle, 2)
    fullest = 0.0
    for away in range(math.ceil(root / 3.0) + 1):
        for candidate in (middle - away, middle + away):
            if candidate >= 2:
                last = others % candidate + 1  # members of the last group
                if last == candidate:
                    return min(members, float(candidate))
                if last / candidate > fullest:
                    fullest = last / candidate
                    best = candidate
    return min(members, float(best))


@jit_lean
def meeting_cycles(first, second, wavelets):
    """When two streams that meet in a core have arrived.

    Parameters
    ----------
    first, second : float
        When each begins to arrive; below 0 where there is none.
    wavelets : float
        W, of each.

    Returns
    -------
    float
        [cycles]; the later stream waits until the ramp is done with the earlier.
    """
    if first < 0.0 and second < 0.0:
        return 0.0
    if first < 0.0 or second < 0.0:
        return max(first, second) + wavelets
    return max(max(first, second) + wavelets, min(first, second) + 2.0 * wavelets)


@jit_lean
def tree_reduce_cycles(cores, wavelets, levels, hop_cycles, step):
    """Sum over a row by chains that meet in the middle of groups, and over their middles.

    Parameters
    ----------
    cores, wavelets : float
        P, W.
    levels : float
        K >= 1.
    hop_cycles, step : float
        h, s.

    Returns
    -------
    cycles : float
        Until the root has the sum.
    stages : float
        Messages one after the other: about ``K P^{1/K} / 2`` (He et al., OSDI 2025).
    root : float
        Where it stands.
    contention : float
        Wavelets that the busiest core takes.
    hops : float
        Wavelets x hops.
    longest : float
        Hops one after the other.

    Notes
    -----
    Members of a level stand a spacing apart but for the last, whose group may be smaller: it is
    ready earlier, and nearer. A stream of d messages over x hops begins to arrive ``d s + x h``
    cycles after its first core was ready, or later where a core on its way was not.
    """
    ready = 0.0  # of all members but the last
    ready_last = 0.0
    stages = 0.0
    contention = 0.0
    hops = 0.0
    longest = 0.0
    members = cores
    first = 0.0  # where the first and the last stand
    last = cores - 1.0
    spacing = 1.0
    left = levels
    while members > 1.0:
        size = group_size(members, left)
        groups = math.ceil(members / size)
        half = math.floor(size / 2.0)
        rest = size - 1.0 - half
        inner = spacing * hop_cycles
        # The last group, of few members.
        few = members - (groups - 1.0) * size
        start = first + (groups - 1.0) * size * spacing
        before = math.floor(few / 2.0)
        after = few - 1.0 - before
        root = start + before * spacing if after > 0.0 else last
        one = other = -1.0
        if before > 0.0:
            one = ready + before * step + (root - start) * hop_cycles
        if after > 0.0:
            other = ready_last + after * step + (last - root) * hop_cycles
            # Those on its way, or the root itself, may be later than the last.
            other = max(other, ready + (after - 1.0) * (step + inner))
        own = ready if after > 0.0 else ready_last
        ready_last = max(own, meeting_cycles(one, other, wavelets))
        span = max(last - start, 0.0) if few > 1.0 else 0.0
        way = max(root - start if before > 0.0 else 0.0, last - root if after > 0.0 else 0.0)
        if groups > 1.0:
            one = ready + half * (step + inner)
            other = ready + rest * (step + inner) if rest > 0.0 else -1.0
            ready = max(ready, meeting_cycles(one, other, wavelets))
            stages += half
            way = max(way, half * spacing)
            span += (groups - 1.0) * (size - 1.0) * spacing
            contention += wavelets * (2.0 if rest > 0.0 else 1.0)
        else:
            stages += max(before, after)
            # Not a sum of truth values: two of NumPy make one where kernels run uncompiled.
            contention += wavelets if before > 0.0 else 0.0
            contention += wavelets if after > 0.0 else 0.0
        hops += wavelets * span
        longest += way
        first += half * spacing if groups > 1.0 else before * spacing
        last = root
        members = groups
        spacing *= size
        left -= 1.0
    return ready_last, stages, last, contention, hops, longest


# Sums, copies and gathers of vectors over a row or a rectangle of cores.

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
