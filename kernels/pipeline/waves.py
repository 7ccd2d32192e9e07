"""Hanayo: micro-batches run down the ranks and up again, as often as there are waves."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, put


@jit
def write_hanayo(actions, first, rank_of, ranks, micro_batches):
    """Write the order in which ranks that do what is ready would work.

    Liu et al. 2023, "Hanayo" (arXiv:2308.15762, section 3): a backward pass is taken before a
    forward pass, and of forward passes that of the stage furthest on. The order is the one that
    comes about where backward passes take twice as long as forward ones and all stages equally
    long, and where no more micro-batches are under way than there are ranks.

    Parameters
    ----------
    actions
        Table of actions.
    first : int64[ranks + 1]
        Written: the first action of every rank.
    rank_of : int64[stages]
    ranks, micro_batches : int

    Returns
    -------
    int
        Where the next action would go.
    """
    stages = rank_of.size
    chunks = stages // ranks
    forward = np.zeros(stages, np.int64)  # micro-batches begun
    backward = np.zeros(stages, np.int64)
    never = 4 * micro_batches * stages
    forward_end = np.full((stages, micro_batches), never)
    backward_end = np.full((stages, micro_batches), never)
    free = np.zeros(ranks, np.int64)
    length = 2 * chunks * micro_batches
    for rank in range(ranks + 1):
        first[rank] = rank * length
    at = np.empty(ranks, np.int64)
    for rank in range(ranks):
        at[rank] = first[rank]
    left = ranks * length
    time = 0
    while left > 0:
        for rank in range(ranks):
            if free[rank] > time:
                continue
            stage, kind = _choice(
                rank, ranks, time, rank_of, forward, backward, forward_end, backward_end
            )
            if stage < 0:
                continue
            if kind == BACKWARD:
                micro_batch = backward[stage]
                backward[stage] += 1
                free[rank] = time + 2
                backward_end[stage, micro_batch] = time + 2
            else:
                micro_batch = forward[stage]
                forward[stage] += 1
                free[rank] = time + 1
                forward_end[stage, micro_batch] = time + 1
            at[rank] = put(actions, at[rank], kind, stage, micro_batch, False)
            left -= 1
        time += 1
    return ranks * length


@jit
def _choice(rank, ranks, time, rank_of, forward, backward, forward_end, backward_end):
    """Return stage and kind of what a rank does next; stage -1: nothing is ready."""
    stages = rank_of.size
    micro_batches = forward_end.shape[1]
    chosen = -1
    oldest = micro_batches
    for stage in range(stages):
        micro_batch = backward[stage]
        if rank_of[stage] != rank or micro_batch >= forward[stage] or micro_batch >= oldest:
            continue
        if stage + 1 < stages:
            ready = backward_end[stage + 1, micro_batch]
        else:
            ready = forward_end[stage, micro_batch]
        if ready <= time:
            chosen, oldest = stage, micro_batch
    if chosen >= 0:
        return chosen, BACKWARD
    for stage in range(stages - 1, -1, -1):
        micro_batch = forward[stage]
        if rank_of[stage] != rank or micro_batch >= micro_batches:
            continue
        if stage > 0:
            ready = forward_end[stage - 1, micro_batch]
        else:
            ready = time if micro_batch - backward[0] < ranks else time + 1
        if ready <= time:
            return stage, FORWARD
    return -1, FORWARD
