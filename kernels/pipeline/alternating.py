"""Schedules that run one forward and one backward pass in turn, and the two that run none so.

All of GPipe, 1F1B, eager and interleaved 1F1B and ZB-H1/H2 are one schedule: forward passes to
begin with, then one forward and one backward pass in turn until the forward passes are used up,
then the backward passes that are left. They differ in how many come first, in how the chunks of
a rank take turns, and in how far weight gradients stay behind.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT, put

WHOLE = -1
"""Backward passes are not split."""


@jit_lean
def turn(number, chunks, micro_batches, group):
    """Return chunk and micro-batch of a rank's pass of some number, counted over its chunks.

    `group` micro-batches pass through all chunks before the next ones do; a last group may be
    smaller (Megatron-Core, schedules.py, ``get_schedule_table``).
    """
    begun = number // (group * chunks) * group
    size = min(group, micro_batches - begun)
    within = number - begun * chunks
    return within // size, begun + within % size


@jit_lean
def write_turns(actions, at, rank, ranks, chunks, micro_batches, group, ahead, behind):
    """Write a rank's forward passes, then forward and backward in turn, then backward passes.

    Parameters
    ----------
    actions, at
        Table of actions, and where to write.
    rank, ranks, chunks, micro_batches : int
    group : int
        Micro-batches that pass through all chunks before others do.
    ahead : int
        Forward passes before the first that has a backward pass after it.
    behind : int
        Backward passes by which weight gradients stay behind; `WHOLE`: they do not come alone.

    Returns
    -------
    int
        Where the next action goes.
    """
    passes = chunks * micro_batches
    ahead = min(ahead, passes)
    backward = BACKWARD if behind == WHOLE else INPUT
    for number in range(ahead):
        chunk, micro_batch = turn(number, chunks, micro_batches, group)
        at = put(actions, at, FORWARD, chunk * ranks + rank, micro_batch, False)
    for number in range(passes):
        if ahead + number < passes:
            chunk, micro_batch = turn(ahead + number, chunks, micro_batches, group)
            at = put(actions, at, FORWARD, chunk * ranks + rank, micro_batch, False)
        chunk, micro_batch = turn(number, chunks, micro_batches, group)
        stage = (chunks - 1 - chunk) * ranks + rank
        at = put(actions, at, backward, stage, micro_batch, False)
        if behind != WHOLE and number >= behind:
            chunk, micro_batch = turn(number - behind, chunks, micro_batches, group)
            stage = (chunks - 1 - chunk) * ranks + rank
            at = put(actions, at, WEIGHT, stage, micro_batch, False)
    if behind != WHOLE:
        for number in range(max(0, passes - behind), passes):
            chunk, micro_batch = turn(number, chunks, micro_batches, group)
            stage = (chunks - 1 - chunk) * ranks + rank
            at = put(actions, at, WEIGHT, stage, micro_batch, False)
    return at


@jit_lean
def write_breadth_first(actions, at, rank, ranks, chunks, micro_batches):
    """Write all micro-batches through a rank's chunks, one chunk after the other, and back.

    Breadth-first pipeline parallelism (Lamy-Poirier 2022, arXiv:2211.05953); as PyTorch's
    ``ScheduleLoopedBFS`` has it, where the backward pass takes micro-batches last to first.
    """
    for chunk in range(chunks):
        for micro_batch in range(micro_batches):
            at = put(actions, at, FORWARD, chunk * ranks + rank, micro_batch, False)
    for chunk in range(chunks - 1, -1, -1):
        for micro_batch in range(micro_batches - 1, -1, -1):
            at = put(actions, at, BACKWARD, chunk * ranks + rank, micro_batch, False)
    return at
