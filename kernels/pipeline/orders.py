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
from perfmodel.kernels.pipeline.alternating import WHOLE, write_breadth_first, write_turns
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


@jit
def forward_ahead(schedule, rank, ranks, chunks, group):
    """Forward passes of a rank before the first that has a backward pass after it.

    1F1B: Narayanan et al. 2021 (arXiv:2104.04473); eager 1F1B, which hides sends behind twice
    as many: Zhuang et al. 2022 (arXiv:2211.05322, section 4); interleaved: Megatron-Core,
    schedules.py, ``get_pp_rank_microbatches``; ZB-H1 and ZB-H2: Qi et al. 2023
    (arXiv:2401.10241, figure 3).
    """
    behind = ranks - 1 - rank
    if schedule == INTERLEAVED:
        return 2 * behind + (chunks - 1) * group
    if schedule == INTERLEAVED_ZERO_BUBBLE:
        return behind + (chunks - 1) * group
    if schedule in (EAGER, ZB_H2):
        return 2 * behind
    return behind


@jit
def weights_behind(schedule, rank):
    """Backward passes by which weight gradients of a rank stay behind, or `WHOLE`.

    So many that all ranks hold as many micro-batches (arXiv:2401.10241, section 2).
    """
    if schedule in (ZB_H1, INTERLEAVED_ZERO_BUBBLE):
        return rank
    if schedule == ZB_H2:
        return 2 * rank
    return WHOLE


@jit
def _write_alternating(actions, first, schedule, ranks, chunks, micro_batches, group):
    """Write schedules that run one forward and one backward pass in turn."""
    at = 0
    for rank in range(ranks):
        ahead = forward_ahead(schedule, rank, ranks, chunks, group)
        if schedule == GPIPE:
            ahead = micro_batches
        behind = weights_behind(schedule, rank)
        at = write_turns(actions, at, rank, ranks, chunks, micro_batches, group, ahead, behind)
        first[rank + 1] = at
    return at


@jit
def _write_looped_bfs(actions, first, ranks, chunks, micro_batches):
    at = 0
    for rank in range(ranks):
        at = write_breadth_first(actions, at, rank, ranks, chunks, micro_batches)
        first[rank + 1] = at
    return at


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
    actions = np.empty((3 * ranks * chunks * micro_batches, COLUMNS), np.int64)
    first = np.zeros(ranks + 1, np.int64)
    if schedule == HANAYO:
        at = write_hanayo(actions, first, rank_of, ranks, micro_batches)
    elif schedule in (V_HALF, V_MIN):
        memory = HALF if schedule == V_HALF else LEAST
        at = write_blocks(actions, first, ranks, micro_batches, memory)
    elif schedule == ZB_V:
        at = _write_zb_v(actions, first, ranks, micro_batches)
    elif schedule == DUALPIPE_V:
        at = _write_dualpipe(actions, first, ranks, ranks, micro_batches, micro_batches)
    elif schedule == DUALPIPE:
        each = micro_batches // 2
        at = _write_dualpipe(actions, first, ranks, ranks // 2, each, micro_batches)
    elif schedule == LOOPED_BFS:
        at = _write_looped_bfs(actions, first, ranks, chunks, micro_batches)
    else:
        at = _write_alternating(actions, first, schedule, ranks, chunks, micro_batches, group)
    return Order(
        first,
        actions[:at, KIND].copy(),
        actions[:at, STAGE].copy(),
        actions[:at, MICRO_BATCH].copy(),
        actions[:at, PAIRED] != 0,
        rank_of,
        2 if schedule == DUALPIPE else 1,
        micro_batches,
    )
