"""Collective times that neighbouring strategies share."""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean_inline
from perfmodel.kernels.collective.times import collective_time

MEMO_SLOTS = 4096  # a power of two
KIND, SIZE, MEMBERS, STRIDE, TIME = range(5)  # what a slot remembers


@jit_lean_inline
def remembered_time(kind, size, members, stride, network, memo):
    """Collective time that remembers its last answers.

    Neighbouring strategies of a grid ask for the same collectives again and again.

    Parameters
    ----------
    kind, size, members, stride, network
        As of `perfmodel.kernels.collective.times.collective_time`.
    memo : float64[MEMO_SLOTS, TIME + 1]
        Answers so far; rows of zeros (size 0) are free.

    Returns
    -------
    float
        Time [s].
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    slot = (kind + 7 * members + 3 * stride + int(size) // 64) & (MEMO_SLOTS - 1)
    if (
        memo[slot, SIZE] == size
        and memo[slot, KIND] == kind
        and memo[slot, MEMBERS] == members
        and memo[slot, STRIDE] == stride
    ):
        return float(memo[slot, TIME])
    # int: a kind or group that is a constant would compile the whole model once more.
    time = collective_time(int(kind), size, int(members), int(stride), network)
    memo[slot, KIND], memo[slot, SIZE], memo[slot, MEMBERS] = kind, size, members
    memo[slot, STRIDE], memo[slot, TIME] = stride, time
    return time
