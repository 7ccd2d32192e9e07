"""1F1B with stages of any length, round by round instead of event by event.

In round k a stage runs the forward pass that leaves it with all its micro-batches under way, and
the k-th backward pass. With g the end of the one and b the end of the other, on stage s of p, with
F and B what they take and f and r what it takes to send their results on::

    g[s] = max(b[s], g[s - 1] + f[s - 1]) + F[s]      of the round before, on the right side
    b[s] = max(g[s], b[s + 1] + r[s + 1]) + B[s]      of this round

since stage s - 1 is one micro-batch ahead of stage s. That is linear in the algebra of maximum and
sum: once all of g and b have grown by the same time in a round, they do so in every round that
follows until forward passes run out, m - p rounds after the first. So these are skipped. With sends
that take no time the rounds come to that, as the slowest stage sets the pace by itself.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean

SAME = 1e-14
"""Growth that differs by rounding alone, relative to the time it is measured at."""


ROOM = 4
"""Rows of what a call of `one_f_one_b_time` works with."""


@jit_lean
def one_f_one_b_time(forward, backward, forward_send, backward_send, sender, micro_batches, room):
    """Return the makespan of 1F1B, one stage per rank [s].

    Parameters
    ----------
    forward, backward : float64[stages]
        [s].
    forward_send, backward_send : float64[stages]
        From a stage to the one after, and to the one before [s]; the last, or the first, is of no
        use.
    sender : float
        Share of a send that keeps its sender from working on [1].
    micro_batches : int
    room : float64[ROOM, stages or more]
        Overwritten.

    Returns
    -------
    float
    """
    stages = forward.size
    m = micro_batches
    ahead = room[0]  # when each stage is free after its forward pass
    passed = room[1]  # when what it made of it is at the next stage
    free = room[2]  # the same of backward passes
    returned = room[3]
    for stage in range(stages):
        free[stage] = returned[stage] = 0.0
    for stage in range(stages):
        # Forward passes before the first backward pass. Those of the stage before come out at
        # times that are kept in `returned`, which is not in use yet.
        first = min(m, stages - stage)
        time = 0.0
        for number in range(first):
            time = max(time, returned[number]) + forward[stage]
            returned[number] = time
            if stage + 1 < stages:
                returned[number] = time + forward_send[stage]
                time += sender * forward_send[stage]
        ahead[stage] = time
        passed[stage] = returned[first - 1]
    last = 0.0
    skipped = 0
    for number in range(m):
        growing = -1.0  # by how much everything has grown in this round; -2: not by the same
        for stage in range(stages - 1 if number > 0 else -1, -1, -1):
            # Last stage first: a stage takes what the one before made in the round before.
            if number + skipped + stages - stage - 1 >= m:
                ahead[stage] = free[stage]
                continue
            begin = free[stage]
            if stage > 0:
                begin = max(begin, passed[stage - 1])
            over = begin + forward[stage]
            passed[stage] = over
            if stage + 1 < stages:
                passed[stage] = over + forward_send[stage]
                over += sender * forward_send[stage]
            growing = _growth(growing, over - ahead[stage], over)
            ahead[stage] = over
        for stage in range(stages - 1, -1, -1):
            begin = ahead[stage]
            if stage + 1 < stages:
                begin = max(begin, returned[stage + 1])
            last = over = begin + backward[stage]
            returned[stage] = over
            if stage > 0:
                returned[stage] = over + backward_send[stage]
                over += sender * backward_send[stage]
            growing = _growth(growing, over - free[stage], over)
            free[stage] = over
        left = m - stages - number - skipped
        if number > 0 and growing > 0.0 and left > 0:
            skipped += left
            last += left * growing
            for stage in range(stages):
                ahead[stage] += left * growing
                passed[stage] += left * growing
                free[stage] += left * growing
                returned[stage] += left * growing
        if number + skipped == m - 1:
            break
    return last  # of the first stage, which comes last


@jit_lean
def _growth(growing, grown, time):
    """Return by how much all have grown so far: that of the first, or -2 where one differs."""
    if growing == -1.0:
        return grown
    return grown if abs(grown - growing) <= SAME * time else -2.0


@jit
def one_f_one_b_times(forward, backward, forward_send, backward_send, sender, micro_batches):
    """Return the makespan of 1F1B in every case [s].

    Parameters
    ----------
    forward, backward, forward_send, backward_send : float64[cases, stages]
        As of `one_f_one_b_time` [s].
    sender : float
    micro_batches : int64[cases]

    Returns
    -------
    float64[cases]
    """
    cases, stages = forward.shape
    room = np.empty((ROOM, stages))
    found = np.empty(cases)
    for case in range(cases):
        found[case] = one_f_one_b_time(
            forward[case],
            backward[case],
            forward_send[case],
            backward_send[case],
            sender,
            micro_batches[case],
            room,
        )
    return found
