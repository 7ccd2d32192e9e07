"""ASTRA-sim 1.0's text workload of a projected strategy: one pipeline stage, one step a pass.

The simulator goes through the rows forward, then back. It knows no micro-batches, so every
row holds those of the whole step: its computation, and its collectives as one.

==================== ===================================================================
kind                 where
==================== ===================================================================
``HYBRID_TRANSFORMER`` devices share layers, and data ranks repeat them
``…_FWD_IN_BCKWD``   layers are computed again as a whole (``recompute`` full)
``DATA``             data ranks only
``MODEL``            devices share layers, no data ranks
==================== ===================================================================

Row 0 is the optimizer: the weight gradient of row 0 is what the backward pass ends with.
Then follows a row per block, and further ones where it has collectives of several kinds in
one phase. Gradients and parameters of the data-parallel group are collectives of the weight
gradient; all others are of the forward pass and of the input gradient, in one group: the
largest of the tensor-, context- and expert-parallel ones. The sizes are those of ASTRA-sim
(all-gather: the shard). Sends between stages and waiting for the host have no place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.workloads.export.rows import (
    COMMUNICATION_PHASE,
    COMPUTE_PHASE,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    row_communication,
)
from perfmodel.workloads.export.types import (
    ProjectedBlock,
    ProjectedOperation,
    ProjectedStage,
    ProjectedWorkload,
)
from perfmodel.workloads.formats.astra_text.text import (
    NO_COLLECTIVE,
    RECOMPUTING,
    AstraTextWorkload,
    workload_from_columns,
)

TRANSFORMER = "HYBRID_TRANSFORMER"
UPDATE_TIME = 1  # [ns] after every collective; builds with assertions abort at 0


@dataclass(slots=True)
class _Row:
    """A block in the making: times [s], and bytes by collective, of the three phases."""

    name: str
    times: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    sizes: tuple[dict[str, float], ...] = field(default_factory=lambda: ({}, {}, {}))
    repeats: bool = False  # its forward pass is run again ahead of its backward pass

    def add_size(self, phase: int, collective: str, size: float) -> None:
        self.sizes[phase][collective] = self.sizes[phase].get(collective, 0.0) + size


def astra_text_workload(workload: ProjectedWorkload, stage: int | None = None) -> AstraTextWorkload:
    """Return ASTRA-sim's text workload of one pipeline stage (see the module).

    Parameters
    ----------
    workload : ProjectedWorkload
    stage : int, optional
        By default the slowest, which sets the pace.

    Returns
    -------
    AstraTextWorkload
        Times in whole nanoseconds, sizes in whole bytes. It is to be run on the devices of
        one stage. Computation and bytes by collective add up to the projection's, where
        layers are recomputed counting their forward pass twice.

    Raises
    ------
    StrategyError
        No such stage.
    """
    number = workload.number_of(stage)
    own = workload.stages[number]
    rows = [_optimizer_row(own), *(_block_row(workload, block) for block in own.blocks())]
    shares = any(row.sizes[FORWARD] or row.sizes[INPUT_GRADIENT] for row in rows)
    repeats = any(row.sizes[WEIGHT_GRADIENT] for row in rows)
    header: dict[str, object] = {}
    policy = "MODEL" if shares else "DATA"
    if any(row.repeats for row in rows):
        policy = RECOMPUTING
    elif shares and repeats:
        policy = TRANSFORMER
    lines, checkpoints, initiates = _lines(rows)
    if policy in (TRANSFORMER, RECOMPUTING):
        header["model_parallel_group"] = _model_group(workload)
    if policy == RECOMPUTING:
        header |= {"checkpoints": checkpoints, "checkpoint_initiates": initiates}
    return workload_from_columns(policy, list(zip(*lines, strict=True)), **header)


def _optimizer_row(stage: ProjectedStage) -> _Row:
    """Return the row of the update, with the sum of a tied table's gradients."""
    row = _Row("optimizer")
    row.times[WEIGHT_GRADIENT] = stage.optimizer.time
    for item in stage.sums():
        row.add_size(WEIGHT_GRADIENT, "ALLREDUCE", item.size)
    return row


def _block_row(workload: ProjectedWorkload, block: ProjectedBlock) -> _Row:
    """Add up what a block does in a step."""
    row = _Row(block.label.replace(" ", "_"))
    operations = block.part.operations
    row.repeats = _is_repeated(operations)
    batches = workload.runs
    ring = int(workload.strategy["context_parallel"])
    for item in operations:
        if row.repeats and item.phase == "recompute":
            continue
        if not item.communicates:
            row.times[COMPUTE_PHASE[item.phase]] += batches * item.time
        else:
            _add_communication(row, COMMUNICATION_PHASE[item.phase], item, batches, ring)
    for items, runs in (
        (block.reductions, workload.reductions),
        (block.gathers, workload.gathers),
    ):
        for item in items:
            _add_communication(row, WEIGHT_GRADIENT, item, runs, ring)
    return row


def _add_communication(
    row: _Row, phase: int, item: ProjectedOperation, runs: int, ring: int
) -> None:
    for one in row_communication(item, ring):
        whole = one.size / one.members if one.collective == "ALLGATHER" else one.size
        row.add_size(phase, one.collective, runs * whole)


def _is_repeated(operations: Sequence[ProjectedOperation]) -> bool:
    """Tell whether all of the forward pass is computed again."""
    forward, again = (
        [replace(item, phase="", beside=()) for item in operations if item.phase == phase]
        for phase in ("forward", "recompute")
    )
    return bool(forward) and forward == again


def _model_group(workload: ProjectedWorkload) -> int:
    """Return how many devices share layers in one way or another."""
    strategy = workload.strategy
    dense = int(strategy["tensor_parallel"]) * int(strategy["context_parallel"])
    return max(dense, int(strategy["expert_parallel"]) * int(strategy["expert_tensor_parallel"]))


def _lines(
    rows: Sequence[_Row],
) -> tuple[list[list[object]], tuple[int, ...], tuple[int, ...]]:
    """Return the rows of the file, and which of them begin and which trigger a repetition.

    The simulator repeats the rows from a checkpoint up to the row that triggers it, without
    the latter. So every repeated block is followed by an empty row that does.
    """
    lines: list[list[object]] = []
    checkpoints, initiates = [], []
    for row in rows:
        if row.repeats:
            checkpoints.append(len(lines))
        sizes = [list(phase.items()) for phase in row.sizes]
        for i in range(max(1, *map(len, sizes))):
            line: list[object] = [row.name if i == 0 else f"{row.name}_{i}", -1]
            for phase in range(3):
                word, size = sizes[phase][i] if i < len(sizes[phase]) else (NO_COLLECTIVE, 0.0)
                line.append(round(row.times[phase] * 1e9) if i == 0 else 0)
                line += [word if round(size) else NO_COLLECTIVE, round(size)]
            lines.append([*line, UPDATE_TIME])
        if row.repeats:
            initiates.append(len(lines))
            nothing: list[object] = [0, NO_COLLECTIVE, 0]
            lines.append([f"{row.name}_backward", -1, *nothing * 3, UPDATE_TIME])
    return lines, tuple(checkpoints), tuple(initiates)
