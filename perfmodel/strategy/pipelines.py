"""Pipelines by name: what every rank does, checked, linked, and made once.

    >>> from perfmodel.strategy.pipelines import named_pipeline
    >>> pipeline = named_pipeline("1f1b", ranks=4, micro_batches=8)
    >>> pipeline.order.kind.size
    64

`perfmodel.kernels.pipeline` has the schedules and what follows from them.
"""

from __future__ import annotations

import csv
import functools
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.errors import FormatError, StrategyError, did_you_mean
from perfmodel.base.files import atomic_path, json_object, read_unpacked, shortened
from perfmodel.base.memory import check_amount, check_memory
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
    passes = ranks * chunks * micro_batches
    check_passes(passes)
    long = passes > LONGEST_KEPT
    return _pipeline.__wrapped__(*numbers) if long else _pipeline(*numbers)


def check_passes(passes: int) -> None:
    """Refuse an order of more passes than memory holds, or than somebody may have meant."""
    what, hint = f"the order of {passes:,} passes", "ask for fewer micro-batches"
    check_amount(what, hint, seconds=PASS_SECONDS * passes)
    check_memory(what, PASS_BYTES * passes, hint, StrategyError)


PASS_SECONDS, PASS_BYTES = 1.6e-6, 280
"""Of a core and of memory for a forward pass of a micro-batch through a chunk, and its others."""


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


LARGEST_FILE = 2**28  # B
Cell = str | list[str]
"""An action, or two that run together."""

_ACTION = re.compile(r"([0-9]{1,6})([FBIW])([0-9]{1,6})")
_PAIR = re.compile(r"\(([^();]*);([^();]*)\)OVERLAP_F_B")
_MOVES = re.compile(
    r"[0-9]{1,6}((SEND|RECV)_[FB][0-9]{1,6}|(UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{1,6})?)"
)


class _Action(NamedTuple):
    rank: int
    kind: int
    stage: int
    micro_batch: int
    paired: bool


def read_schedule(path: str | os.PathLike[str]) -> Pipeline:
    """Read a schedule from a CSV or JSON file, perhaps gzipped.

    Raises
    ------
    FormatError
        The file cannot be read, or `parse_schedule` refuses it.
    """
    data = read_unpacked(path, LARGEST_FILE)
    return parse_schedule(data.decode("utf-8-sig", errors="replace"), path)


def parse_schedule(text: str, path: str | os.PathLike[str] = "schedule") -> Pipeline:
    """Read a schedule, and see whether it can run.

    Parameters
    ----------
    text : str
        CSV or JSON, see above.
    path : str or path, optional
        What errors call it.

    Raises
    ------
    FormatError
        A cell is no action (names rank and cell); a stage misses a micro-batch, or runs one twice
        or on two ranks, or backward before forward; the schedule deadlocks (names the stage).
    """
    if text.lstrip().startswith("{"):
        document = json_object(path, text, "order")
        rows, stage_to_rank = json_rows(document, str(path))
        return pipeline_of_rows(rows, str(path), stage_to_rank)
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise FormatError(f"{path}: no CSV: {error}") from None
    rows = [[cell.strip() for cell in line] for line in lines if any(map(str.strip, line))]
    return pipeline_of_rows(rows, str(path))


def json_rows(
    document: dict[str, Any], where: str
) -> tuple[list[Sequence[Any]], Sequence[int] | None]:
    """Return the cells per rank, and the rank of every stage where it is given.

    Raises
    ------
    FormatError
        They are no lists of lists, and of ranks.
    """
    rows = document.get("order")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise FormatError(f"{where}: 'order' should be a list with a list of actions per rank")
    stage_to_rank = document.get("stage_to_rank")
    if stage_to_rank is None:
        return rows, None
    if not isinstance(stage_to_rank, list) or not all(
        isinstance(rank, int) and 0 <= rank < len(rows) for rank in stage_to_rank
    ):
        raise FormatError(
            f"{where}: 'stage_to_rank' should be a list of ranks from 0 to {len(rows) - 1}"
        )
    return rows, stage_to_rank


def pipeline_of_rows(
    rows: Sequence[Sequence[Any]], where: str, stage_to_rank: Sequence[int] | None = None
) -> Pipeline:
    """Return the pipeline of cells per rank.

    Raises
    ------
    FormatError
        As `parse_schedule` does.
    """
    actions = [action for rank, row in enumerate(rows) for action in _row_actions(row, rank, where)]
    if not actions:
        raise FormatError(f"{where}: no actions; a line per rank, with cells such as 0F0")
    stages = max(action.stage for action in actions) + 1
    micro_batches = max(action.micro_batch for action in actions) + 1
    rank_of = _ranks_of_stages(actions, stages, stage_to_rank, where)
    copies = _copies(actions, stages, micro_batches)
    _check_complete(actions, stages, micro_batches, copies, where)
    counts = np.bincount([action.rank for action in actions], minlength=len(rows))
    _, kind, stage, micro_batch, paired = zip(*actions, strict=True)
    order = Order(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array(kind, np.int64),
        np.array(stage, np.int64),
        np.array(micro_batch, np.int64),
        np.array(paired, np.bool_),
        rank_of,
        copies,
        micro_batches,
    )
    try:
        return linked_pipeline(order)
    except StrategyError as error:
        raise FormatError(f"{where}: {error}") from None


def _row_actions(row: Sequence[Any], rank: int, where: str) -> Iterator[_Action]:
    """Yield the actions of a rank."""
    for number, cell in enumerate(row, start=1):
        both = cell
        if isinstance(cell, str):
            if not cell or _MOVES.fullmatch(cell):
                continue
            pair = _PAIR.fullmatch(cell)
            both = list(pair.groups()) if pair else [cell]
        if cell is None:
            continue
        parts = [
            _ACTION.fullmatch(part.strip()) if isinstance(part, str) else None
            for part in (both if isinstance(both, list) else [None])
        ]
        if not 1 <= len(parts) <= 2 or None in parts:
            raise FormatError(
                f"{where}: rank {rank}, cell {number} ('{shortened(cell)}'): should be an action "
                "such as 0F0, 3I2, 1W0 or 2B1, or two that run together"
            )
        for place, part in enumerate(parts):
            assert part is not None
            stage, kind, micro_batch = part.groups()
            paired = place + 1 < len(parts)
            yield _Action(rank, LETTERS.index(kind), int(stage), int(micro_batch), paired)


def _ranks_of_stages(
    actions: Sequence[_Action], stages: int, given: Sequence[int] | None, where: str
) -> np.ndarray:
    """Return the rank of every stage: as given, or where its first forward pass is."""
    if given is not None:
        if len(given) != stages:
            raise FormatError(
                f"{where}: 'stage_to_rank' has {len(given)} stages, the actions have {stages}"
            )
        return np.array(given, np.int64)
    found: dict[int, int] = {}
    for action in sorted(actions, key=lambda action: action.kind):  # forward passes first
        found.setdefault(action.stage, action.rank)
    for stage in range(stages):
        if stage not in found:
            raise FormatError(f"{where}: stage {stage} has no actions, stage {stages - 1} has")
    return np.array([found[stage] for stage in range(stages)], np.int64)


def _copies(actions: Sequence[_Action], stages: int, micro_batches: int) -> int:
    """Return 2 where the halves of the stages have micro-batches of their own, else 1."""
    if stages % 2 or micro_batches % 2:
        return 1
    own = all(
        (action.stage >= stages // 2) == (action.micro_batch >= micro_batches // 2)
        for action in actions
    )
    return 2 if own else 1


def _check_complete(
    actions: Sequence[_Action], stages: int, micro_batches: int, copies: int, where: str
) -> None:
    """Refuse a schedule in which a stage never sees a micro-batch.

    Before anything is made that has room for every stage and micro-batch.
    """
    seen = {(action.stage, action.micro_batch) for action in actions}
    each = micro_batches // copies
    for stage in range(stages):
        first = stage // (stages // copies) * each
        for micro_batch in range(first, first + each):
            if (stage, micro_batch) not in seen:
                raise FormatError(
                    f"{where}: stage {stage} never runs the forward pass of "
                    f"micro-batch {micro_batch}"
                )


def schedule_rows(order: Order) -> list[list[Cell]]:
    """Return the cells of every rank; a list of two for two that run together."""
    names = [
        f"{stage}{LETTERS[kind]}{micro_batch}"
        for stage, kind, micro_batch in zip(
            order.stage.tolist(), order.kind.tolist(), order.micro_batch.tolist(), strict=True
        )
    ]
    paired = order.paired.tolist()
    rows: list[list[Cell]] = []
    for begin, end in zip(order.first[:-1].tolist(), order.first[1:].tolist(), strict=True):
        row: list[Cell] = []
        for action in range(begin, end):
            if action > begin and paired[action - 1]:
                row[-1] = [names[action - 1], names[action]]
            else:
                row.append(names[action])
        rows.append(row)
    return rows


def format_schedule(order: Order) -> str:
    """Return a schedule as CSV, as PyTorch loads it."""
    lines = (
        ",".join(
            cell if isinstance(cell, str) else f"({';'.join(cell)})OVERLAP_F_B" for cell in row
        )
        for row in schedule_rows(order)
    )
    return "".join(f"{line}\n" for line in lines)


def write_schedule(order: Order, path: str | Path) -> None:
    """Write a schedule as CSV."""
    with atomic_path(path) as temporary:
        temporary.write_text(format_schedule(order), encoding="utf-8")
