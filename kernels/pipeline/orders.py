"""The schedules, by number: what every rank of a pipeline does, in order."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.pipeline.actions import (
    BIDIRECTIONAL,
    COLUMNS,
    KIND,
    LOOP,
    MICRO_BATCH,
    PAIRED,
    STAGE,
    WAVE,
    Order,
    place_stages,
)
from perfmodel.kernels.pipeline.alternating import breadth_first, turns
from perfmodel.kernels.pipeline.building_blocks import HALF, LEAST, write_blocks
from perfmodel.kernels.pipeline.folded import write_dualpipe, write_zb_v
from perfmodel.kernels.pipeline.waves import write_hanayo

GPIPE = 0
ONE_F_ONE_B = 1
INTERLEAVED = 2
EAGER = 3  # 1F1B
LOOPED_BFS = 4
INTERLEAVED_ZERO_BUBBLE = 5
ZB_H1 = 6
ZB_H2 = 7
ZB_V = 8
V_HALF = 9
V_MIN = 10
DUALPIPE = 11
DUALPIPE_V = 12
HANAYO = 13


def placement_of(schedule: int) -> int:
    """Return how a schedule places stages: `LOOP`, `WAVE` or `BIDIRECTIONAL`."""
    if schedule == DUALPIPE:
        return BIDIRECTIONAL
    return WAVE if schedule in (ZB_V, V_HALF, V_MIN, DUALPIPE_V, HANAYO) else LOOP


def forward_ahead(
    schedule: int, ranks: int, chunks: int, micro_batches: int, group: int
) -> np.ndarray:
    """Forward passes of every rank before the first that has a backward pass after it.

    1F1B: Narayanan et al. 2021 (arXiv:2104.04473); eager 1F1B, which hides sends behind twice
    as many: Zhuang et al. 2022 (arXiv:2211.05322, section 4); interleaved: Megatron-Core,
    schedules.py, ``get_pp_rank_microbatches``; ZB-H1 and ZB-H2: Qi et al. 2023
    (arXiv:2401.10241, figure 3).
    """
    behind = np.arange(ranks)[::-1]
    if schedule == GPIPE:
        return np.full(ranks, micro_batches)
    if schedule == INTERLEAVED:
        return 2 * behind + (chunks - 1) * group
    if schedule == INTERLEAVED_ZERO_BUBBLE:
        return behind + (chunks - 1) * group
    if schedule in (EAGER, ZB_H2):
        return 2 * behind
    return behind


def weights_behind(schedule: int, ranks: int) -> np.ndarray | None:
    """Backward passes by which weight gradients of every rank stay behind, if they come alone.

    So many that all ranks hold as many micro-batches (arXiv:2401.10241, section 2).
    """
    if schedule in (ZB_H1, INTERLEAVED_ZERO_BUBBLE):
        return np.arange(ranks)
    if schedule == ZB_H2:
        return 2 * np.arange(ranks)
    return None


@jit
def _write_zb_v(actions, first, ranks, micro_batches):
    at = 0
    for rank in range(ranks):
        at = write_zb_v(actions, at, rank, ranks, micro_batches)
        first[rank + 1] = at
    return at


@jit
def _write_dualpipe(actions, first, ranks, half, each, micro_batches):
    """Write DualPipe, `each` micro-batches from either end; or DualPipeV: half of one, folded."""
    at = 0
    for rank in range(ranks):
        # Stage 2 ranks - 1 - rank: on the way back, or that of the copy which begins at the end.
        near, far = rank, 2 * ranks - 1 - rank
        depth, near_batch, far_batch = rank, 0, micro_batches - each
        if rank >= half:
            near, far = far, near
            depth, near_batch, far_batch = ranks - 1 - rank, far_batch, near_batch
        at = write_dualpipe(actions, at, depth, half, near, far, near_batch, far_batch, each)
        first[rank + 1] = at
    return at


def make_order(schedule: int, ranks: int, chunks: int, micro_batches: int, group: int) -> Order:
    """Return what every rank does.

    No kernel itself, so that only what writes the schedule is compiled.

    Parameters
    ----------
    schedule : int
        One of the above.
    ranks : int
        Of the pipeline, >= 1.
    chunks : int
        Stages of a rank: 1 but in interleaved schedules and `LOOPED_BFS` (any number), `ZB_V`,
        `V_HALF`, `V_MIN` and `DUALPIPE_V` (2), and `HANAYO` (twice as many as waves). Of either
        copy of the model in `DUALPIPE` (1).
    micro_batches : int
        Of a step; at least ``2 ranks``, and even, in `DUALPIPE` (on an even number of ranks); at
        least ``2 ranks`` in `DUALPIPE_V`.
    group : int
        Micro-batches that pass through all chunks of a rank before others do, in interleaved
        schedules; at least 1 in all.
    """
    rank_of = place_stages(placement_of(schedule), ranks, chunks)
    if schedule in WRITTEN:
        actions = np.empty((3 * ranks * chunks * micro_batches, COLUMNS), np.int64)
        first = np.zeros(ranks + 1, np.int64)
        actions = actions[: _write(actions, first, schedule, rank_of, micro_batches)]
    else:
        if schedule == LOOPED_BFS:
            actions = breadth_first(ranks, chunks, micro_batches)
        else:
            ahead = forward_ahead(schedule, ranks, chunks, micro_batches, group)
            behind = weights_behind(schedule, ranks)
            actions = turns(ranks, chunks, micro_batches, group, ahead, behind)
        first = np.arange(ranks + 1) * actions.shape[1]
        actions = actions.reshape(-1, COLUMNS)
    return Order(
        first,
        actions[:, KIND].copy(),
        actions[:, STAGE].copy(),
        actions[:, MICRO_BATCH].copy(),
        actions[:, PAIRED] != 0,
        rank_of,
        2 if schedule == DUALPIPE else 1,
        micro_batches,
    )


WRITTEN = (ZB_V, V_HALF, V_MIN, DUALPIPE, DUALPIPE_V, HANAYO)
"""Schedules that kernels write one action after the other."""


def _write(
    actions: np.ndarray, first: np.ndarray, schedule: int, rank_of: np.ndarray, micro_batches: int
) -> int:
    """Write one of these into a table of actions, and return how many there are."""
    ranks = first.size - 1
    if schedule == HANAYO:
        return int(write_hanayo(actions, first, rank_of, ranks, micro_batches))
    if schedule == ZB_V:
        return int(_write_zb_v(actions, first, ranks, micro_batches))
    if schedule == DUALPIPE_V:
        return int(_write_dualpipe(actions, first, ranks, ranks, micro_batches, micro_batches))
    if schedule == DUALPIPE:
        each = micro_batches // 2
        return int(_write_dualpipe(actions, first, ranks, ranks // 2, each, micro_batches))
    memory = HALF if schedule == V_HALF else LEAST
    return int(write_blocks(actions, first, ranks, micro_batches, memory))
