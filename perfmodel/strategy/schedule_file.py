"""Pipeline schedules as tables: what every rank does, read and written.

Two forms are read:

- CSV as PyTorch's pipeline schedules dump and load it (torch/distributed/pipelining/schedules.py,
  ``_dump_csv``, ``_load_csv``): a line per rank, in its cells ``<stage><kind><micro-batch>`` with
  kinds F (forward), B (backward), I (gradients of the input alone) and W (of the weights), as in
  ``0F0,0F1,0B0,0B1``; ``(0F3;3B1)OVERLAP_F_B`` for two that run together. Empty cells are skipped,
  and so are those that move data (``0SEND_F1``, ``0UNSHARD``): what is sent follows from the rest.
- JSON with ``order``, a list of such cells per rank, in which a list of two stands for two that run
  together, and perhaps ``stage_to_rank``, the rank of every stage.

Stages are numbered in the order of the forward pass. Where the second half of the stages has
micro-batches of its own, all numbered after those of the first half, it is a second copy of the
model, as in DualPipe.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.files import atomic_path, json_object, read_unpacked, shortened
from perfmodel.kernels.pipeline.actions import Order
from perfmodel.strategy.pipelines import LETTERS, Pipeline, linked_pipeline

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
