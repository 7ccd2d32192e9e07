"""Schedules that run one forward and one backward pass in turn, and the two that run none so.

All of GPipe, 1F1B, eager and interleaved 1F1B and ZB-H1/H2 are one schedule: forward passes to
begin with, then one forward and one backward pass in turn until the forward passes are used up,
then the backward passes that are left. They differ in how many come first, in how the chunks of
a rank take turns, and in how far weight gradients stay behind.

What comes where is plain arithmetic, for all ranks at once: no kernels.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.pipeline.actions import (
    BACKWARD,
    COLUMNS,
    FORWARD,
    INPUT,
    KIND,
    MICRO_BATCH,
    STAGE,
    WEIGHT,
)


def turn(
    number: np.ndarray, chunks: int, micro_batches: int, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return chunk and micro-batch of a rank's passes of some numbers, counted over its chunks.

    `group` micro-batches pass through all chunks before the next ones do; a last group may be
    smaller (Megatron-Core, schedules.py, ``get_schedule_table``).
    """
    begun = number // (group * chunks) * group
    size = np.minimum(group, micro_batches - begun)
    within = number - begun * chunks
    return within // size, begun + within % size


def turns(
    ranks: int,
    chunks: int,
    micro_batches: int,
    group: int,
    ahead: np.ndarray,
    behind: np.ndarray | None,
) -> np.ndarray:
    """Return forward passes of every rank, then forward and backward in turn, then backward ones.

    Parameters
    ----------
    ranks, chunks, micro_batches : int
    group : int
        Micro-batches that pass through all chunks before others do.
    ahead : int64[ranks]
        Forward passes before the first that has a backward pass after it.
    behind : int64[ranks], optional
        Backward passes by which weight gradients stay behind; left out, they do not come alone.

    Returns
    -------
    int64[ranks, actions, COLUMNS]
    """
    passes = chunks * micro_batches
    number, rank = np.arange(passes), np.arange(ranks)[:, None]
    chunk, batch = turn(number, chunks, micro_batches, group)
    ahead = np.minimum(ahead, passes)[:, None]
    late = passes if behind is None else np.minimum(behind, passes - 1)[:, None]

    def backward_place(number: np.ndarray) -> np.ndarray:
        """Behind so many backward passes, the forward ones among them, and weights so far."""
        return np.minimum(ahead + number + 1, passes) + number + np.maximum(number - late, 0)

    found = np.zeros((ranks, (2 if behind is None else 3) * passes, COLUMNS), np.int64)

    def write(kind: int, place: np.ndarray, chunk: np.ndarray) -> None:
        found[rank, place, KIND] = kind
        found[rank, place, STAGE] = chunk * ranks + rank
        found[rank, place, MICRO_BATCH] = batch

    in_turn = np.maximum(number - ahead, 0)
    write(FORWARD, number + in_turn + np.maximum(in_turn - late, 0), chunk)
    back = chunks - 1 - chunk
    write(BACKWARD if behind is None else INPUT, backward_place(number), back)
    if behind is not None:
        last = np.minimum(number + late, passes - 1)  # the backward pass before these weights
        write(WEIGHT, backward_place(last) + 1 + number + late - last, back)
    return found


def breadth_first(ranks: int, chunks: int, micro_batches: int) -> np.ndarray:
    """Return all micro-batches through every rank's chunks, one chunk after the other, and back.

    Breadth-first pipeline parallelism (Lamy-Poirier 2022, arXiv:2211.05953); as PyTorch's
    ``ScheduleLoopedBFS`` has it, where the backward pass takes micro-batches last to first.

    Returns
    -------
    int64[ranks, actions, COLUMNS]
    """
    chunk, batch = np.divmod(np.arange(chunks * micro_batches), micro_batches)
    found = np.zeros((ranks, 2, chunk.size, COLUMNS), np.int64)
    rank = np.arange(ranks)[:, None]
    for way, kind in enumerate((FORWARD, BACKWARD)):
        found[:, way, :, KIND] = kind
        found[:, way, :, STAGE] = chunk[:: 1 - 2 * way] * ranks + rank
        found[:, way, :, MICRO_BATCH] = batch[:: 1 - 2 * way]
    return found.reshape(ranks, -1, COLUMNS)
