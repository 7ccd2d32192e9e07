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
    """Return the makespan of 1F1B, one stage per rank, as a line over micro-batches.

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
    least : float
        With `steady` micro-batches [s].
    growth : float
        What each further one adds [s]; 0 where a run of all of them came to no pace.
    steady : int
        Micro-batches from which on that holds: all of them at most.
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
    last = growth = 0.0
    for number in range(micro_batches):
        growing = -1.0  # by how much everything has grown in this round; -2: not by the same
        for stage in range(stages - 1 if number > 0 else -1, -1, -1):
            # Last stage first: a stage takes what the one before made in the round before.
            if number + stages - stage - 1 >= m:
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
        if number > 0 and growing > 0.0 and m > stages + number:
            # All that is left would grow alike: without it the rest follows at once.
            growth, m = growing, stages + number
        if number == m - 1:
            break
    return last, growth, m  # the first stage comes last


@jit_lean
def _growth(growing, grown, time):
    """Return by how much all have grown so far: that of the first, or -2 where one differs."""
    if growing == -1.0:
        return grown
    return grown if abs(grown - growing) <= SAME * time else -2.0


@jit
def one_f_one_b_times(forward, backward, forward_send, backward_send, sender, micro_batches, work):
    """Return the makespan of 1F1B in every case [s].

    Parameters
    ----------
    forward, backward, forward_send, backward_send : float64[works, stages]
        As of `one_f_one_b_time` [s].
    sender : float
    micro_batches, work : int64[cases]
        Of each case, and its row in the former.

    Returns
    -------
    float64[cases]

    Notes
    -----
    Once a run has come to a steady growth, the same work with other numbers of micro-batches needs
    no run.
    """
    works, stages = forward.shape
    room = np.empty((ROOM, stages))
    found = np.empty(micro_batches.size)
    least, growth, steady = np.empty(works), np.zeros(works), np.empty(works)
    for case in range(found.size):
        m, own = micro_batches[case], work[case]
        if growth[own] == 0.0 or m < steady[own]:
            times = forward[own], backward[own], forward_send[own], backward_send[own]
            line = one_f_one_b_time(*times, sender, m, room)
            found[case] = line[0] + (m - line[2]) * line[1]
            if line[1] > 0.0:
                least[own], growth[own], steady[own] = line
        else:
            found[case] = least[own] + (m - steady[own]) * growth[own]
    return found
