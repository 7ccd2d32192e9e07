"""Sums over a row of cores by trees of chains: stages and way of He et al., OSDI 2025.

Letters
    P   cores of the row
    K   levels
    W   wavelets of a core's vector
    h   cycles from router to router
    s   cycles of one dependent message beside its way (`perfmodel.kernels.wafer.phases`)
"""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean


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
