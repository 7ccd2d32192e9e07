"""Closed forms of pipeline schedules, where they are exact; events are right everywhere.

Bubbles are what a step takes beyond the work of a rank, of the one that works least (the innermost
ranks of DualPipe run one forward and one backward pass apart that others run together). Where
stages are equal they are multiples of what one stage takes for one micro-batch: F forward, I and W
for gradients of its input and of its weights, B = I + W. Papers count in the same units, but for
some that take a rank's stages for one: with v stages of a rank the bubble of interleaved 1F1B is
(p - 1) (F + B) here, and theirs (p - 1) (F + B) / v.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.pipeline.orders import (
    DUALPIPE,
    DUALPIPE_V,
    EAGER,
    GPIPE,
    HANAYO,
    INTERLEAVED,
    INTERLEAVED_ZERO_BUBBLE,
    LOOPED_BFS,
    ONE_F_ONE_B,
    V_HALF,
    V_MIN,
    ZB_H1,
    ZB_H2,
    ZB_V,
)


@jit
def equal_bubble(schedule, ranks, chunks, micro_batches, f, i, w, together):
    """Return the bubble of equal stages without sends [s]; NaN where no closed form holds.

    ==========================  ========================================  =======================
    GPipe, 1F1B, eager 1F1B     (p - 1) (F + B)                           Narayanan et al. 2021,
                                                                          section 2.2
    interleaved, looped         (p - 1) (F + B), m >= p                   the same; Lamy-Poirier
                                                                          2022
    ZB-H1, interleaved ZB       (p - 1) max(F, I, F + I - W), m >= p      Qi et al. 2023, table 2:
                                                                          (p - 1) (F + I - W)
    ZB-H2                       (p - 1) max(F, F + I - 2 W), m >= 2 p - 1 `zb_h2_wait`
                                and W <= F, I
    ZB-V                        (p - 1) F, m >= 2 p - 1 and F = I = W     the wait for the first
                                                                          micro-batch alone
    DualPipe, DualPipeV         (q - 1) (F&B + B - 3 W), F = I >= W, q    DeepSeek-AI 2024, table 2
                                half the ranks, or all of a V
    Hanayo                      2 (p - 1) B, one wave, m = p, B >= 2 F
    ==========================  ========================================  =======================

    Parameters
    ----------
    schedule : int
        Of `perfmodel.kernels.pipeline.orders`.
    ranks, chunks, micro_batches : int
        As in `make_order`.
    f, i, w : float
        F, I and W of a stage [s].
    together : float
        A forward and a backward pass that run together [s]: F&B.

    Returns
    -------
    float
    """
    b = i + w
    wait = ranks - 1
    if schedule in (GPIPE, ONE_F_ONE_B, EAGER):
        return wait * (f + b)
    if schedule in (INTERLEAVED, LOOPED_BFS):
        if micro_batches >= ranks:
            return wait * (f + b)
    elif schedule in (ZB_H1, INTERLEAVED_ZERO_BUBBLE):
        if micro_batches >= ranks:
            return wait * max(f, i, f + i - w)
    elif schedule == ZB_H2:
        if micro_batches >= 2 * ranks - 1 and w <= min(f, i):
            return wait * max(f, f + i - 2.0 * w)
    elif schedule == ZB_V:
        if micro_batches >= 2 * ranks - 1 and f == i == w:
            return wait * f
    elif schedule in (DUALPIPE, DUALPIPE_V):
        if f == i and w <= f:
            half = ranks // 2 if schedule == DUALPIPE else ranks
            return (half - 1) * (together + b - 3.0 * w)
    elif schedule == HANAYO and chunks == 2 and micro_batches == ranks and b >= 2.0 * f:
        return 2.0 * wait * b
    return np.nan


@jit
def zb_h2_wait(ranks, f, i, w):
    """Return how long a rank waits in ZB-H2 between its first and its last action, at most [s].

    That is what Qi et al. 2023 call its bubble, (p - 1) (F + I - 2 W), as their optimizer does not
    wait for other ranks; exact for at least 2 p - 1 micro-batches. Theirs holds where
    ``W <= F`` and ``2 W <= F + I``.
    """
    return (ranks - 1) * max(0.0, i - f, f + i - 2.0 * w)


@jit
def most_held(schedule, ranks, chunks, micro_batches, group):
    """Return how many stages' micro-batches the rank that holds most holds at once.

    From forward pass until the gradients of the weights are there; -1 where no closed form holds.
    1F1B: p; eager 1F1B: 2 p - 1; interleaved: (v - 1) p + 2 p - 1, groups of p (Korthikanti et al.
    2022 count (v - 1) p + 2 (p - 1) + 1 alike); ZB-H1: p, ZB-H2: 2 p - 1 (Qi et al. 2023, table
    2); V-Half and V-Min: (p + 2) // 2 and (p + 4) // 3 micro-batches of two stages (Qi et al. 2024,
    and the authors' comparison); DualPipe and DualPipeV: one more than stages that a micro-batch
    passes (DeepSeek-AI 2024, table 2).

    Parameters
    ----------
    schedule, ranks, chunks, micro_batches, group : int
        As in `make_order`.

    Returns
    -------
    int
    """
    m = micro_batches
    passes = chunks * m
    enough = m >= 2 * ranks - 1
    if schedule in (GPIPE, LOOPED_BFS):
        return passes
    if schedule in (ONE_F_ONE_B, ZB_H1):
        return min(m, ranks)
    if schedule in (EAGER, ZB_H2):
        return min(m, 2 * ranks - 1)
    if schedule == INTERLEAVED and m % group == 0:
        return min(passes, (chunks - 1) * group + 2 * ranks - 1)
    if schedule == INTERLEAVED_ZERO_BUBBLE and m % group == 0:
        return min(passes, (chunks - 1) * group + ranks)
    if schedule == ZB_V and enough:
        return 2 * ranks
    if schedule == V_HALF and enough:
        return 2 * ((ranks + 2) // 2)
    if schedule == V_MIN and enough:
        return 2 * ((ranks + 4) // 3)
    if schedule == DUALPIPE:
        return ranks + 1
    if schedule == DUALPIPE_V:
        return 2 * ranks + 1
    return -1


@jit
def last_is_slowest(forward, backward):
    """Whether the last rank takes longest forward, and backward, of all.

    Then it never waits once it has begun, and the makespan of GPipe, 1F1B, eager 1F1B and looped
    schedules without sends is `slowest_time`, as is that of interleaved 1F1B where ranks divide
    micro-batches and stages of a rank are equal. (Forward passes of other ranks come early, as they
    are shorter, and so are the backward passes by which they free themselves for them.)

    Parameters
    ----------
    forward, backward : float64[ranks]
        Of one stage of each rank [s].
    """
    last = forward.size - 1
    for rank in range(last):
        if forward[rank] > forward[last] or backward[rank] > backward[last]:
            return False
    return True


@jit
def slowest_time(forward, backward, chunks, micro_batches):
    """Return what the slowest rank takes for all, and every other one for one stage [s].

    ``m v max(F + B) + sum of F + B of the others``: exact where `last_is_slowest` says.

    Parameters
    ----------
    forward, backward : float64[ranks]
        Of one stage of each rank [s].
    chunks, micro_batches : int
    """
    total = slowest = 0.0
    for rank in range(forward.size):
        both = forward[rank] + backward[rank]
        total += both
        slowest = max(slowest, both)
    return (chunks * micro_batches - 1) * slowest + total


@jit
def gpipe_time(forward, backward, forward_send, backward_send, micro_batches):
    """Return the makespan of GPipe with stages of any length and sends beside compute [s].

    All forward passes come first, so it is twice the time of a pipe through which micro-batches
    pass one after the other: ``sum F + (m - 1) max F + sum B + (m - 1) max B``, and a send each.

    Parameters
    ----------
    forward, backward : float64[stages]
        [s].
    forward_send, backward_send : float64[stages]
        From a stage to the one after, and to the one before [s]; the last, or the first, is of no
        use.
    micro_batches : int
    """
    slowest_forward = slowest_backward = total = 0.0
    last = forward.size - 1
    for stage in range(last + 1):
        total += forward[stage] + backward[stage]
        slowest_forward = max(slowest_forward, forward[stage])
        slowest_backward = max(slowest_backward, backward[stage])
        if stage < last:
            total += forward_send[stage]
        if stage > 0:
            total += backward_send[stage]
    return total + (micro_batches - 1) * (slowest_forward + slowest_backward)


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
