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


@jit
def placement_of(schedule):
    """Return how a schedule places stages: `LOOP`, `WAVE` or `BIDIRECTIONAL`."""
    if schedule == DUALPIPE:
        return BIDIRECTIONAL
    if ZB_V <= schedule <= HANAYO:
        return WAVE
    return LOOP


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
def make_order(schedule, ranks, chunks, micro_batches, group):
    """Return what every rank does.

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
        schedules.

    Returns
    -------
    Order
    """
    rank_of = place_stages(placement_of(schedule), ranks, chunks)
    actions = np.empty((3 * ranks * chunks * micro_batches, COLUMNS), np.int64)
    first = np.zeros(ranks + 1, np.int64)
    at = 0
    if schedule == HANAYO:
        at = write_hanayo(actions, first, rank_of, ranks, micro_batches)
    elif schedule in (V_HALF, V_MIN):
        memory = HALF if schedule == V_HALF else LEAST
        at = write_blocks(actions, first, ranks, micro_batches, memory)
    else:
        for rank in range(ranks):
            at = _write_rank(actions, at, schedule, rank, ranks, chunks, micro_batches, group)
            first[rank + 1] = at
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


@jit
def _write_rank(actions, at, schedule, rank, ranks, chunks, micro_batches, group):
    """Write the actions of a rank that do not depend on those of others."""
    if schedule == LOOPED_BFS:
        return write_breadth_first(actions, at, rank, ranks, chunks, micro_batches)
    if schedule == ZB_V:
        return write_zb_v(actions, at, rank, ranks, micro_batches)
    if schedule == DUALPIPE_V:
        back = 2 * ranks - 1 - rank
        return write_dualpipe(actions, at, rank, ranks, rank, back, 0, 0, micro_batches)
    if schedule == DUALPIPE:
        half, each = ranks // 2, micro_batches // 2
        other = 2 * ranks - 1 - rank  # stage ranks - 1 - rank of the second copy
        if rank < half:
            return write_dualpipe(actions, at, rank, half, rank, other, 0, each, each)
        depth = ranks - 1 - rank
        return write_dualpipe(actions, at, depth, half, other, rank, each, 0, each)
    ahead = forward_ahead(schedule, rank, ranks, chunks, group)
    if schedule == GPIPE:
        ahead = micro_batches
    behind = weights_behind(schedule, rank)
    return write_turns(actions, at, rank, ranks, chunks, micro_batches, group, ahead, behind)
