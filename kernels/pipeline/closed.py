"""Closed forms of pipeline schedules, where they are exact; events are right everywhere.

docs/pipelines.md has the bubbles of equal stages as papers state them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit


@jit
def one_f_one_b_makespan(forward, backward, micro_batches):
    """Return the makespan of 1F1B, one stage of any length per rank [s].

    Sends that keep their sender are part of what they follow: add them to the passes of all
    stages but the last (forward) or the first (backward).

    Parameters
    ----------
    forward, backward : float64[stages]
        [s].
    micro_batches : int

    Notes
    -----
    The longest way through the passes. With w = p - 1 - s forward passes of stage s ahead of its
    first backward pass, and F, B the passes of all stages up to one summed up:

    1. It goes down to a stage q, and takes w more forward passes of the longest stage on its way,
       ``F[q] + w[q] max f[..q]``, then back up to a stage r, ``B[q] - B[r]``;
    2. it takes the m - 1 - w[r] further turns of that stage, a backward and a forward pass each;
    3. it goes down to a stage q' again, and back up to the first, as in 1 with the two swapped.

    More than one stage r is no use, as a way that takes turns of two can take all of them on one
    or the other. A stage with no such turn runs all forward passes first: then q or q' is r. All
    r, q and q' are compared in one go, as both q and q' are r or later.
    """
    last = forward.size - 1
    ahead = behind = slowest_forward = slowest_backward = 0.0
    # Best so far: r chosen; r and q; r and q'; all.
    turning = down = up = found = -np.inf
    for stage in range(last + 1):
        ahead += forward[stage]
        behind += backward[stage]
        slowest_forward = max(slowest_forward, forward[stage])
        slowest_backward = max(slowest_backward, backward[stage])
        waiting = min(last - stage, micro_batches - 1)
        first_part = ahead + waiting * slowest_forward + behind
        last_part = behind + waiting * slowest_backward + ahead
        turns = micro_batches - 1 - (last - stage)
        if turns > 0:
            here = turns * (forward[stage] + backward[stage]) - ahead - behind
            turning = max(turning, here)
        else:
            down = max(down, first_part - ahead - behind)
            up = max(up, last_part - ahead - behind)
        down = max(down, turning + first_part)
        up = max(up, turning + last_part)
        found = max(found, down + last_part, up + first_part)
    return found


class Ends(NamedTuple):
    """What passes take in a pipeline of equal chunks, but for the first and the last one [s]."""

    forward: float  # of every chunk
    backward: float
    first_forward: float  # what the first chunk takes longer, not below 0
    first_backward: float
    last_forward: float  # and the last one
    last_backward: float


@jit
def ends_wait(gpipe, ranks, chunks, micro_batches, ends):
    """Return what GPipe, 1F1B or interleaved 1F1B takes beyond the work of the slowest rank [s].

    Exact without sends, for any lengths of the first and the last chunk, which hold embedding and
    output; interleaved where ranks divide micro-batches, which go in groups of as many.

    Parameters
    ----------
    gpipe : bool
        All forward passes first; one chunk a rank.
    ranks : int
        At least 2.
    chunks, micro_batches : int
        One chunk a rank: 1F1B.
    ends : Ends

    Notes
    -----
    The longest way through the passes is one of a few, which `_plain_ways` and
    `_interleaved_ways` compare; where the last chunk takes longest both forward and backward it
    is the one through the last rank, which never waits once it has begun.
    """
    first = ends.first_forward + ends.first_backward
    last = ends.last_forward + ends.last_backward
    fill = (ranks - 1) * (ends.forward + ends.backward)
    in_a_row = ranks if chunks > 1 else 1  # micro-batches through the first chunk, to begin with
    if ends.last_forward >= ends.first_forward and ends.last_backward >= ends.first_backward:
        return fill + in_a_row * first
    if gpipe:
        slowest = max(ends.first_forward, ends.last_forward)
        slowest += max(ends.first_backward, ends.last_backward)
        return (
            fill + first + last + (micro_batches - 1) * slowest - micro_batches * max(first, last)
        )
    back = Ends(
        ends.backward,
        ends.forward,
        ends.first_backward,
        ends.first_forward,
        ends.last_backward,
        ends.last_forward,
    )
    longest = fill + in_a_row * first + micro_batches * last
    if chunks == 1:
        longest = max(longest, _plain_ways(ranks, micro_batches, ends))
        longest = max(longest, _plain_ways(ranks, micro_batches, back))
    else:
        longest = max(longest, _interleaved_ways(ranks, micro_batches, ends))
        longest = max(longest, _interleaved_ways(ranks, micro_batches, back))
    return longest - micro_batches * max(first, last)


@jit
def _plain_ways(ranks, micro_batches, ends):
    """Return the longest way through 1F1B but that of `ends_wait`, less m passes of a chunk [s].

    What it takes of passes of any chunk beyond m, and of what first and last chunk take longer
    (p ranks, m micro-batches, k = m - p + 1):

    ======================= ======== ======== ===== ===== =====
    way                     forward  backward first       last
    ======================= ======== ======== ===== ===== =====
    on the first rank       0        0        m, m        0
    down once, back there   p - 1    0        m, k        1
    first from then on      p - 1    p - 1    k, k        2
    ======================= ======== ======== ===== ===== =====

    The second one also with forward and backward swapped, which is for the caller. These are
    `one_f_one_b_makespan`'s with r the first rank, and q and q' the first or the last. Where ranks
    outnumber micro-batches, k is 1, and way one goes down to the last rank that has all forward
    passes first.
    """
    p, m = ranks, micro_batches
    k = max(m - p + 1, 1)
    c = ends.forward + ends.backward
    first, last = ends.first_forward + ends.first_backward, ends.last_forward + ends.last_backward
    beyond = max(p - m, 0)
    once = (p - 1) * ends.forward + beyond * ends.backward
    once += m * ends.first_forward + k * ends.first_backward + last
    return max(beyond * c + m * first, once, (p - 1) * c + k * first + min(m, 2) * last)


@jit
def _interleaved_ways(ranks, micro_batches, ends):
    """Return the longest way through interleaved 1F1B but that of `ends_wait`, in the same terms.

    What it takes of passes of any chunk beyond m v, and of what first and last chunk take longer
    (p ranks, m micro-batches, which are more, k = m - p):

    =========================== ============ ======== ============ =====
    way                         forward      backward first        last
    =========================== ============ ======== ============ =====
    on the first rank           0            0        m, m         0
    last rank, then the first   p - 1        1 - p    m, k         p
    the same, turning later     p - 2        0        m, k         p
    once down                   p - 1        1 - p    m, k + 1     1
    last, first, last           p - 2        p - 2    k, k         2 p
    the same, turning later     p - 1        -1       k, k         2 p
    down, first, last           p - 1        -1       k, k + 1     p + 1
    =========================== ============ ======== ============ =====

    Each one also with forward and backward swapped, which is for the caller. They are all that
    there are: the corners of what longest ways consist of, found by events over pipelines with
    any lengths, and held against events for all p, v and m.
    """
    p, m = ranks, micro_batches
    k = m - p
    first, last = ends.first_forward + ends.first_backward, ends.last_forward + ends.last_backward
    found = m * first
    if k > 0:
        there = (p - 1) * (ends.forward - ends.backward)
        left = k * first
        begun = left + p * ends.first_forward
        found = max(
            found,
            max(there, (p - 2) * ends.forward) + begun + p * last,
            there + begun + ends.first_backward + last,
            (p - 2) * (ends.forward + ends.backward) + left + 2 * p * last,
            (p - 1) * ends.forward
            - ends.backward
            + left
            + max(2 * p * last, ends.first_backward + (p + 1) * last),
        )
    return found
