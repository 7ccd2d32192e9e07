"""Closed forms of pipeline schedules, where they are exact; events are right everywhere.

Bubbles are what a step takes beyond the work of a rank, of the one that works least (the innermost
ranks of DualPipe run one forward and one backward pass apart that others run together). Where
stages are equal they are multiples of what one stage takes for one micro-batch: F forward, I and W
for gradients of its input and of its weights, B = I + W. Papers count in the same units, but for
some that take a rank's stages for one: with v stages of a rank the bubble of interleaved 1F1B is
(p - 1) (F + B) here, and theirs (p - 1) (F + B) / v.
"""

from __future__ import annotations

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
        As in `perfmodel.kernels.pipeline.rounds.one_f_one_b_time`.
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
