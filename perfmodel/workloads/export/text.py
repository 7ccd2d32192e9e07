"""Text workloads of a projected strategy, for ASTRA-sim 1.0 and for SimAI.

The text formats of AICB and ASTRA-sim have rows with a forward pass, an input gradient and
a weight gradient; each computes and then runs one collective at most. A block with more
collectives becomes several rows.

ASTRA-sim 1.0's is one pipeline stage, one step a pass. The simulator goes through the rows forward,
then back. It knows no micro-batches, so every row holds those of the whole step: its computation,
and its collectives as one.

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

SimAI's is the dialect ``corrected`` of AICB's format. Header, columns and the course of the file
are AICB's: rows for parameters and gradients, then the rows of one pipeline stage for every
micro-batch. SimAI reads and runs it. What is different from the files that AICB writes, row by row,
is the table of ``docs/workloads.md``, "Corrected".

SimAI has no group for context parallelism. Its collectives run in the expert-parallel group; a
model without expert parallelism says ``ep: (context-parallel degree)`` for it. SimAI takes as many
copies of an expert as data ranks over expert ranks; where this is none, gradients of experts go
over the data-parallel group, and so do those of shard sets (HSDP), with their sizes. Waiting for
the host has no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.base.collectives import WORDS
from perfmodel.base.errors import StrategyError
from perfmodel.training.step.program import pass_program
from perfmodel.training.step.types import (
    ProjectedBlock,
    ProjectedOperation,
    ProjectedStage,
    ProjectedWorkload,
)
from perfmodel.workloads.formats.aicb_text import (
    NO_COLLECTIVE,
    TRANSFORMER,
    AicbHeader,
    AicbWorkload,
    aicb_from_columns,
)
from perfmodel.workloads.formats.astra_text import (
    RECOMPUTING,
    AstraTextWorkload,
    astra_text_from_columns,
)
from perfmodel.workloads.formats.words import words_of

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)
# What is computed again counts to the input gradient, ahead of which it runs.
COMPUTE_PHASE = {
    "forward": FORWARD,
    "recompute": INPUT_GRADIENT,
    "backward_input": INPUT_GRADIENT,
    "backward_weight": WEIGHT_GRADIENT,
}
# The weight gradient's collective is that of gradients: all others of the backward pass go
# with the input gradient.
COMMUNICATION_PHASE = {**COMPUTE_PHASE, "backward_weight": INPUT_GRADIENT}
# AICB's names of rows. With sequence parallelism the ways into and out of a tensor-parallel region
# have rows of their own, otherwise both are one.
BLOCKS: dict[str, tuple[str, str]] = words_of("aicb_rows")["blocks"]
WHOLE: dict[str, str] = words_of("aicb_rows")["whole"]


@dataclass(frozen=True, slots=True)
class RowCommunication:
    """One collective of a row.

    Attributes
    ----------
    collective : str
        "ALLREDUCE", "ALLGATHER", "REDUCESCATTER" or "ALLTOALL".
    group : str
        As `ProjectedOperation.group`.
    size : float
        Whole buffer [B].
    members : int
        Ranks of the group.
    name : str
        Of the operation.
    """

    collective: str
    group: str
    size: float
    members: int
    name: str


@dataclass(slots=True)
class ProjectedRow:
    """A row in the making.

    Attributes
    ----------
    name : str
    times : list of float
        Computation of the three phases [s].
    communication : list of RowCommunication or None
        After each of them.
    """

    name: str
    times: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    communication: list[RowCommunication | None] = field(default_factory=lambda: [None, None, None])


def row_communication(item: ProjectedOperation, ring: int) -> list[RowCommunication]:
    """Return the collectives of all calls of an operation.

    Parameters
    ----------
    item : ProjectedOperation
    ring : int
        Ranks of the ring whose hops a point-to-point operation is. All h hops of size S
        together move as much as one all-gather of ``h S n / (n - 1)`` bytes among n ranks.
    """
    if item.collective == "point_to_point":
        size = item.size * item.count * ring / (ring - 1)
        return [RowCommunication("ALLGATHER", item.group, size, ring, item.name)]
    one = RowCommunication(WORDS[item.collective], item.group, item.size, item.members, item.name)
    return [one] * max(1, round(item.count))


def block_rows(
    block: ProjectedBlock, *, sharded: bool, context_parallel: int
) -> list[ProjectedRow]:
    """Return the rows of one block for one micro-batch, named as AICB names them.

    Parameters
    ----------
    block : ProjectedBlock
    sharded : bool
        Sequence parallelism: products on the way into and out of a tensor-parallel region
        have rows of their own, as in AICB.
    context_parallel : int
        Ranks of a context-parallel ring.
    """
    segments: dict[str, tuple[ProjectedRow, list[list[RowCommunication]]]] = {}
    for item in _file_order(block.part.operations):
        name = _segment(item.role, sharded)
        row, waiting = segments.setdefault(name, (ProjectedRow(name), [[], [], []]))
        if not item.communicates:
            row.times[COMPUTE_PHASE[item.phase]] += item.time
        else:
            phase = COMMUNICATION_PHASE[item.phase]
            waiting[phase] += row_communication(item, context_parallel)
    rows = []
    for row, waiting in segments.values():
        rows.append(row)
        for i in range(max(map(len, waiting))):
            if i:
                rows.append(ProjectedRow(_further(row.name, i, waiting)))
            for phase in range(3):
                if i < len(waiting[phase]):
                    rows[-1].communication[phase] = waiting[phase][i]
    return rows


def _file_order(operations: Sequence[ProjectedOperation]) -> list[ProjectedOperation]:
    """Order operations so that rows read down are the forward pass, and up the backward pass."""
    forward, backward = (
        [step.operation for step in pass_program(operations, direction)]
        for direction in (True, False)
    )
    return forward + backward[::-1]


def _segment(role: str, sharded: bool) -> str:
    """Return AICB's name of the row to which an operation belongs."""
    if role in WHOLE:
        return WHOLE[role]
    block, side = BLOCKS[role]
    return f"{block}_{side}" if sharded else f"{block}_layer"


def _further(name: str, index: int, waiting: Iterable[list[RowCommunication]]) -> str:
    """Name a row that only carries a further collective."""
    if name == WHOLE["loss"]:
        return f"cross_entropy{index + 1}"
    names = {items[index].name for items in waiting if index < len(items)}
    return "+".join(sorted(names)).replace(".", "_")


SHARED_AND_REPEATED = "HYBRID_TRANSFORMER"
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
        policy = SHARED_AND_REPEATED
    lines, checkpoints, initiates = _lines(rows)
    if policy in (SHARED_AND_REPEATED, RECOMPUTING):
        header["model_parallel_group"] = _model_group(workload)
    if policy == RECOMPUTING:
        header |= {"checkpoints": checkpoints, "checkpoint_initiates": initiates}
    return astra_text_from_columns(policy, list(zip(*lines, strict=True)), **header)


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


LAYERNORM = "layernorm"
MOST_LINES = 2_000_000  # of a text, some hundred MB; no step has as many
PROCESS_TIME = 100  # [ns], as AICB writes it; SimAI-Analytical does not use it
IN_EXPERT_GROUP = ("expert", "context")
OF_EXPERTS = ("expert_data", "expert_shard", "expert_shard_copies")


def corrected_workload(workload: ProjectedWorkload, stage: int | None = None) -> AicbWorkload:
    """Return SimAI's text workload of one pipeline stage (see the module for its dialect).

    Parameters
    ----------
    workload : ProjectedWorkload
    stage : int, optional
        By default the slowest, which sets the pace.

    Returns
    -------
    AicbWorkload
        Times in whole nanoseconds, sizes in whole bytes, whole buffers. Computation and
        bytes by collective add up to the projection's, but for the row `LAYERNORM`, which
        the projection does not have.

    Raises
    ------
    StrategyError
        No such stage, or more than `MOST_LINES` lines.
    """
    number = workload.number_of(stage)
    strategy = workload.strategy
    tensor_parallel, context = (int(strategy[f"{axis}_parallel"]) for axis in ("tensor", "context"))
    experts = int(strategy["expert_parallel"])
    group = experts if experts > 1 else context
    pipeline = len(workload.stages)
    header = AicbHeader(
        TRANSFORMER,
        {
            "model_parallel_NPU_group": tensor_parallel,
            "ep": group,
            "pp": pipeline,
            "vpp": len(workload.stages[0].chunks),
            "ga": workload.runs,
            "all_gpus": workload.devices,
            "checkpoints": 0,
            "checkpoint_initiates": 0,
            "pp_comm": round(workload.boundary.size) if workload.boundary else 0,
        },
    )
    own = workload.stages[number]
    replicas = workload.devices // (tensor_parallel * pipeline)
    head, every = _parameter_rows(workload, own)
    sharded = tensor_parallel > 1 and bool(strategy["sequence_parallel"])
    if sharded:
        head.append(_layernorm(workload, own))
    layers = [
        row
        for block in own.blocks()
        for row in block_rows(block, sharded=sharded, context_parallel=context)
    ]
    lines = len(layers + every) * workload.runs
    if lines > MOST_LINES:
        raise StrategyError(
            f"{workload.runs:,} micro-batches make a text of {lines:,} lines; at most "
            f"{MOST_LINES:,}: use a smaller global batch or larger micro-batches"
        )
    rows = [*head, *(layers + every) * workload.runs]
    return aicb_from_columns(header, _columns(rows, copies_of_experts=replicas // group))


def _parameter_rows(
    workload: ProjectedWorkload, stage: ProjectedStage
) -> tuple[list[ProjectedRow], list[ProjectedRow]]:
    """Return the rows for parameters and gradients: once per step, and per micro-batch."""
    gathers = [item for block in stage.blocks() for item in block.gathers]
    reductions = [item for block in stage.blocks() for item in block.reductions]
    head: list[ProjectedRow] = []
    every: list[ProjectedRow] = []
    for experts, names in (
        (False, ("grad_gather", "grad_param_comm")),
        (True, ("moe_grad_norm1", "moe_grad_norm2")),
    ):
        chosen = [
            [item for item in items if (item.group in OF_EXPERTS) == experts]
            for items in (gathers, reductions)
        ]
        if experts and not any(chosen):
            continue
        rows = [_summed_rows(name, items) for name, items in zip(names, chosen, strict=True)]
        # With ZeRO-3 both passes gather.
        twice = 2 if workload.gathers_per_micro_batch else 1
        (every if workload.gathers_per_micro_batch else head).extend(rows[0] * twice)
        (every if workload.reductions_per_micro_batch else head).extend(rows[1])
    update = ProjectedRow("grad_param_compute")
    update.times[INPUT_GRADIENT] = stage.optimizer.time
    head.append(update)
    if stage.table:
        head += _summed_rows("embedding_grads", [stage.table])
    return head, every


def _summed_rows(name: str, items: Iterable[ProjectedOperation]) -> list[ProjectedRow]:
    """Return one row per kind of collective, and one of none where there is nothing to do."""
    sums: dict[tuple[str, str], RowCommunication] = {}
    for item in items:
        key = (item.collective, item.group)
        before = sums[key].size if key in sums else 0.0
        sums[key] = RowCommunication(
            WORDS[item.collective], item.group, before + item.size, item.members, item.name
        )
    rows = [ProjectedRow(name) for _ in sums] or [ProjectedRow(name)]
    for row, one in zip(rows, sums.values(), strict=False):
        row.communication[WEIGHT_GRADIENT] = one
    return rows


def _layernorm(workload: ProjectedWorkload, stage: ProjectedStage) -> ProjectedRow:
    """Return the sum of the norms' gradients, of which every tensor rank saw other tokens."""
    row = ProjectedRow(LAYERNORM)
    size = workload.norm_parameters(stage) * workload.framework.gradient_bytes
    members = int(workload.strategy["tensor_parallel"])
    row.communication[INPUT_GRADIENT] = RowCommunication(
        "ALLREDUCE", "tensor", size, members, LAYERNORM
    )
    return row


def _columns(rows: list[ProjectedRow], copies_of_experts: int) -> list[list[object]]:
    """Return the 12 columns of a file."""
    columns: list[list[object]] = [[row.name for row in rows], [-1] * len(rows)]
    for phase in range(3):
        columns.append([round(row.times[phase] * 1e9) for row in rows])
        words: list[object] = []
        sizes: list[object] = []
        for row in rows:
            one = row.communication[phase]
            size = round(one.size) if one else 0
            words.append(_word(one, copies_of_experts) if one and size else NO_COLLECTIVE)
            sizes.append(size)
        columns += [words, sizes]
    return [*columns, [PROCESS_TIME] * len(rows)]


def _word(one: RowCommunication, copies_of_experts: int) -> str:
    """Return a collective with SimAI's suffix for its group."""
    if one.group in IN_EXPERT_GROUP:
        return f"{one.collective}_EP"
    if one.group in OF_EXPERTS and copies_of_experts > 1:
        return f"{one.collective}_DP_EP"
    return one.collective
