"""The schedules by name: what every rank of a pipeline does, in order.

An order is a function of ranks, chunks, micro-batches and group that is registered here with
`order`; what else there is to know of its schedule stands in `perfmodel.base.pipelines`, from
where callers hand over the placement.

All of GPipe, 1F1B, eager and interleaved 1F1B and ZB-H1/H2 are one schedule: forward passes to
begin with, then one forward and one backward pass in turn until the forward passes are used up,
then the backward passes that are left. They differ in how many come first, in how the chunks of
a rank take turns, and in how far weight gradients stay behind. What comes where is plain
arithmetic, for all ranks at once. In Hanayo micro-batches run down the ranks and up again, as
often as there are waves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.pipeline.actions import (
    BACKWARD,
    BIDIRECTIONAL,
    COLUMNS,
    FORWARD,
    INPUT,
    KIND,
    MICRO_BATCH,
    PAIRED,
    STAGE,
    WAVE,
    WEIGHT,
    Order,
    place_stages,
    put,
)
from perfmodel.kernels.pipeline.building_blocks import (
    HALF,
    LEAST,
    write_blocks,
    write_dualpipe,
    write_zb_v,
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


class Actions(NamedTuple):
    """What every rank does; actions of rank r are rows ``first[r]`` to ``first[r + 1] - 1``."""

    first: np.ndarray  # int64[ranks + 1]
    rows: np.ndarray  # int64[actions, COLUMNS]


Maker = Callable[[int, int, int, int], Actions]
ORDERS: dict[str, Maker] = {}
"""What makes the order of every schedule, of ranks, chunks, micro-batches and group."""


def order(name: str) -> Callable[[Maker], Maker]:
    """Register what makes the order of a schedule."""

    def register(make: Maker) -> Maker:
        if name in ORDERS:
            raise ValueError(f"two orders of schedule {name}")
        ORDERS[name] = make
        return make

    return register


def make_order(
    schedule: str, placement: str, ranks: int, chunks: int, micro_batches: int, group: int
) -> Order:
    """Return what every rank does.

    No kernel itself, so that only what writes the schedule is compiled.

    Parameters
    ----------
    schedule : str
        One of `ORDERS`.
    placement : str
        Of its stages, as of `place_stages`.
    ranks : int
        Of the pipeline, >= 1.
    chunks : int
        Stages of a rank, as many as the schedule can have; of either copy of the model in
        DualPipe.
    micro_batches : int
        Of a step, of all copies together.
    group : int
        Micro-batches that pass through all chunks of a rank before others do, in interleaved
        schedules; at least 1 in all.

    Raises
    ------
    LookupError
        There is no order of such a schedule.
    """
    if schedule not in ORDERS:
        raise LookupError(f"schedule {schedule}: no order in perfmodel.kernels.pipeline.orders")
    first, rows = ORDERS[schedule](ranks, chunks, micro_batches, group)
    return Order(
        first,
        rows[:, KIND].copy(),
        rows[:, STAGE].copy(),
        rows[:, MICRO_BATCH].copy(),
        rows[:, PAIRED] != 0,
        place_stages(placement, ranks, chunks),
        2 if placement == BIDIRECTIONAL else 1,
        micro_batches,
    )


def equally_many(actions: np.ndarray) -> Actions:
    """Return `Actions` where all ranks have as many, int64[ranks, actions, COLUMNS]."""
    return Actions(np.arange(actions.shape[0] + 1) * actions.shape[1], actions.reshape(-1, COLUMNS))


def written(write: Callable[..., Any], ranks: int, passes: int, *arguments: Any) -> Actions:
    """Return `Actions` that a kernel writes one after the other, and says how many there are.

    Parameters
    ----------
    write : callable
        Of a table of actions, the first of each rank, and `arguments`.
    ranks : int
    passes : int
        Forward passes of a rank, at most; there is room for as many of both gradients.
    """
    rows = np.empty((3 * ranks * passes, COLUMNS), np.int64)
    first = np.zeros(ranks + 1, np.int64)
    return Actions(first, rows[: int(write(rows, first, *arguments))])


# Forward passes of a rank before the first that has a backward pass after it.


@order("gpipe")
def gpipe(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """All forward passes, then all backward ones (Huang et al. 2019)."""
    ahead = np.full(ranks, micro_batches)
    return equally_many(turns(ranks, chunks, micro_batches, group, ahead, None))


@order("1f1b")
def one_f_one_b(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """One forward pass, one backward pass (Narayanan et al. 2021, arXiv:2104.04473)."""
    ahead = np.arange(ranks)[::-1]
    return equally_many(turns(ranks, chunks, micro_batches, group, ahead, None))


@order("interleaved")
def interleaved(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """1F1B over chunks (Megatron-Core, schedules.py, ``get_pp_rank_microbatches``)."""
    ahead = 2 * np.arange(ranks)[::-1] + (chunks - 1) * group
    return equally_many(turns(ranks, chunks, micro_batches, group, ahead, None))


@order("eager_1f1b")
def eager_one_f_one_b(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """1F1B that hides sends behind twice as many (Zhuang et al. 2022, arXiv:2211.05322, sec. 4)."""
    ahead = 2 * np.arange(ranks)[::-1]
    return equally_many(turns(ranks, chunks, micro_batches, group, ahead, None))


@order("looped_bfs")
def looped_breadth_first(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """Every chunk all micro-batches, and back (`breadth_first`)."""
    return equally_many(breadth_first(ranks, chunks, micro_batches))


# Of the zero-bubble schedules weight gradients stay behind by so many backward passes that all
# ranks hold as many micro-batches (Qi et al. 2023, arXiv:2401.10241, section 2 and figure 3).


@order("interleaved_zero_bubble")
def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """Interleaved, weight gradients apart (PyTorch's ``ScheduleInterleavedZeroBubble``)."""
    ahead = np.arange(ranks)[::-1] + (chunks - 1) * group
    return equally_many(turns(ranks, chunks, micro_batches, group, ahead, np.arange(ranks)))


@order("zb_h1")
def zb_h1(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """As many forward passes ahead as 1F1B."""
    ahead = np.arange(ranks)[::-1]
    return equally_many(turns(ranks, chunks, micro_batches, group, ahead, np.arange(ranks)))


@order("zb_h2")
def zb_h2(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """Twice as many."""
    ahead = 2 * np.arange(ranks)[::-1]
    return equally_many(turns(ranks, chunks, micro_batches, group, ahead, 2 * np.arange(ranks)))


@order("zb_v")
def zb_v(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """Zero bubble over two chunks in a V (`write_zb_v` of building blocks)."""
    return written(_write_zb_v, ranks, chunks * micro_batches, ranks, micro_batches)


@order("v_half")
def v_half(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """Half of 1F1B's activations (`perfmodel.kernels.pipeline.building_blocks`)."""
    return written(write_blocks, ranks, chunks * micro_batches, ranks, micro_batches, HALF)


@order("v_min")
def v_min(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """A third of them."""
    return written(write_blocks, ranks, chunks * micro_batches, ranks, micro_batches, LEAST)


@order("dualpipe")
def dualpipe(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """Two copies of the model, filled from both ends; on an even number of ranks."""
    counts = ranks, ranks // 2, micro_batches // 2, micro_batches
    return written(_write_dualpipe, ranks, micro_batches, *counts)


@order("dualpipe_v")
def dualpipe_v(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """One copy in a V."""
    counts = ranks, ranks, micro_batches, micro_batches
    return written(_write_dualpipe, ranks, 2 * micro_batches, *counts)


@order("hanayo")
def hanayo(ranks: int, chunks: int, micro_batches: int, group: int) -> Actions:
    """1F1B over chunks in waves, two each (`perfmodel.kernels.pipeline.orders`)."""
    rank_of = place_stages(WAVE, ranks, chunks)
    return written(write_hanayo, ranks, chunks * micro_batches, rank_of, ranks, micro_batches)


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
