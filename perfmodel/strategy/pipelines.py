"""Pipelines by name: what every rank does, checked, linked, and made once.

    >>> from perfmodel.strategy.pipelines import named_pipeline
    >>> pipeline = named_pipeline("1f1b", ranks=4, micro_batches=8)
    >>> pipeline.order.kind.size
    64

`perfmodel.kernels.pipeline` has the schedules and what follows from them.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.pipelines import NO_GROUPS, SCHEDULE_FACTS, SCHEDULES, WAVE
from perfmodel.kernels.pipeline.actions import Order
from perfmodel.kernels.pipeline.link import (
    FINE,
    MISSING,
    STUCK,
    TOO_EARLY,
    TWICE,
    UNKNOWN,
    WORKS,
    WRONG_RANK,
    Program,
)
from perfmodel.kernels.work import kernel_work

LETTERS = "FBIW"
"""Of the kinds of actions, as PyTorch writes them: forward, backward, input, weight."""

_KINDS = (
    "forward pass",
    "backward pass",
    "backward pass for the input",
    "backward pass for the weights",
)
_WORKS = (_KINDS[0], _KINDS[1], _KINDS[3])
MOST_PIPELINES = 1024  # kept
LONGEST_KEPT = 1024  # stages times micro-batches of those; each takes about 200 B


class Pipeline(NamedTuple):
    """What every rank does, and a sequence in which all of it can be done."""

    order: Order
    program: Program


def usual_chunks(schedule: str) -> int:
    """Return how many stages a rank has where nothing else is said."""
    about = SCHEDULE_FACTS[schedule]
    return about.fewest_chunks if about.placement == WAVE else 1


def usual_group(ranks: int, micro_batches: int) -> int:
    """Return how many micro-batches pass through all chunks of a rank before others do.

    As many as there are ranks, or a little more where ranks do not divide micro-batches: one
    part of ``m // p`` equal ones (PyTorch's ``ScheduleInterleaved1F1B``). 0 where there is no such
    number.
    """
    rounds = max(1, micro_batches // ranks)
    return micro_batches // rounds if micro_batches % rounds == 0 else 0


def named_pipeline(
    schedule: str,
    ranks: int,
    micro_batches: int,
    chunks: int | None = None,
    group_size: int | None = None,
) -> Pipeline:
    """Return a pipeline with one of the `SCHEDULES`.

    Parameters
    ----------
    schedule : str
    ranks : int
        Of the pipeline.
    micro_batches : int
        Of a step; in DualPipe of both directions together.
    chunks : int, optional
        Stages of a rank; as `usual_chunks` unless given.
    group_size : int, optional
        Micro-batches that pass through all chunks of a rank before others do, in interleaved
        schedules (Megatron-Core's ``microbatch_group_size_per_virtual_pipeline_stage``); as
        `usual_group` unless given.

    Raises
    ------
    StrategyError
        There is no such schedule, or not with such numbers.
    """
    if schedule not in SCHEDULES:
        raise StrategyError(f"no schedule '{schedule}'{did_you_mean(schedule, SCHEDULES)}")
    if chunks is None:
        chunks = usual_chunks(schedule)
    _check_numbers(schedule, ranks, micro_batches, chunks)
    about = SCHEDULE_FACTS[schedule]
    if group_size is not None and group_size < 1:
        raise StrategyError(f"group size {group_size}: at least one micro-batch")
    group = micro_batches
    if about.groups != NO_GROUPS:
        group = group_size or usual_group(ranks, micro_batches)
    if not group:
        raise StrategyError(
            f"{schedule}: {micro_batches} micro-batches make no {micro_batches // ranks} equal "
            f"groups on {ranks} ranks; give the size of a group"
        )
    numbers = (schedule, ranks, chunks, micro_batches, group)
    # Sweeps ask for ever longer ones, of which a few would fill the memory.
    long = ranks * chunks * micro_batches > LONGEST_KEPT
    return _pipeline.__wrapped__(*numbers) if long else _pipeline(*numbers)


def _check_numbers(schedule: str, ranks: int, micro_batches: int, chunks: int) -> None:
    """Refuse numbers with which there is no such schedule."""
    for count, what in ((ranks, "rank"), (micro_batches, "micro-batch"), (chunks, "chunk")):
        if count < 1:
            raise StrategyError(f"{schedule}: at least one {what}, not {count}")
    about = SCHEDULE_FACTS[schedule]
    if about.chunk_step > 1 and chunks % about.chunk_step:
        raise StrategyError(f"{schedule}: a rank has 2 chunks per wave, not {chunks}")
    if not about.chunk_step and chunks != about.fewest_chunks:
        chunk = "chunk" if about.fewest_chunks == 1 else "chunks"
        raise StrategyError(f"{schedule}: a rank has {about.fewest_chunks} {chunk}, not {chunks}")
    if about.even and (ranks % 2 or micro_batches % 2):
        raise StrategyError(
            f"{schedule}: an even number of ranks and of micro-batches, not {ranks} and "
            f"{micro_batches}"
        )
    if micro_batches < about.batches_per_stage * ranks:
        raise StrategyError(
            f"{schedule}: at least {about.batches_per_stage} micro-batches per rank, "
            f"{about.batches_per_stage * ranks}, not {micro_batches}"
        )


@functools.lru_cache(maxsize=MOST_PIPELINES)
def _pipeline(schedule: str, ranks: int, chunks: int, micro_batches: int, group: int) -> Pipeline:
    with kernel_work(scheduled_actions=6 * ranks * chunks * micro_batches):
        from perfmodel.kernels.pipeline.orders import make_order

        placement = SCHEDULE_FACTS[schedule].placement
        order = make_order(schedule, placement, ranks, chunks, micro_batches, group)
    return linked_pipeline(order)


def linked_pipeline(order: Order) -> Pipeline:
    """Return an order with a sequence in which all of it can be done.

    Raises
    ------
    StrategyError
        There is none, or the order is no order of all stages and micro-batches; says where.
    """
    with kernel_work(scheduled_actions=2 * order.kind.size):
        from perfmodel.kernels.pipeline.link import link_order

        program = link_order(order)
    if program.problem != FINE:
        raise StrategyError(problem_text(order, program))
    return Pipeline(order, program)


def problem_text(order: Order, program: Program) -> str:
    """Say what is wrong with an order that cannot be linked, with stage and micro-batch."""
    if program.problem == MISSING:
        where, work = divmod(int(program.found), WORKS)
        stage, micro_batch = divmod(where, order.micro_batches)
        return f"stage {stage} never runs the {_WORKS[work]} of micro-batch {micro_batch}"
    action = int(program.place)
    stage, micro_batch = int(order.stage[action]), int(order.micro_batch[action])
    kind = int(order.kind[action])
    rank = int((order.first > action).argmax()) - 1
    what = f"the {_KINDS[kind]} of micro-batch {micro_batch}"
    if program.problem == UNKNOWN:
        return f"rank {rank} runs {what} on stage {stage}, which there is not"
    if program.problem == WRONG_RANK:
        return f"rank {rank} runs {what} of stage {stage}, which is on rank {order.rank_of[stage]}"
    if program.problem == TWICE:
        return f"stage {stage} runs {what} twice"
    if program.problem == TOO_EARLY:
        before = "that for the input" if LETTERS[kind] == "W" else "its forward pass"
        return f"stage {stage} (rank {rank}) runs {what} before {before}"
    if program.problem == STUCK:
        return (
            f"the schedule deadlocks: stage {stage} (rank {rank}) waits for ever to run {what}, "
            "as do all ranks that are not done"
        )
    return f"stage {stage} (rank {rank}) runs {what} together with what is no such pair"
