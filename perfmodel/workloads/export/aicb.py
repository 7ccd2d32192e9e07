"""SimAI's text workload of a projected strategy: the dialect ``corrected`` of AICB's format.

Header, columns and the course of the file are AICB's: rows for parameters and gradients,
then the rows of one pipeline stage for every micro-batch. SimAI reads and runs it. What is
different from the files that AICB writes:

================================ ============================== ===============================
what                             AICB                           here
================================ ============================== ===============================
computation                      measured once, for any shape;  predicted for this model,
                                 backward = forward             strategy and device, by phase
what is computed again           doubles attention's forward    ahead of the input gradient
gated MLP                        two matrices in the gradients  three
grouped-query attention          as many keys as queries        the model's own
output matrix                    with sequence parallelism      ``final_column`` in any case,
                                 only, time of attention        with its own time
tensor-parallel all-reduces      forward only                   forward and backward
``*_column``, reduce-scatter     0 B                            the hidden state
``*_column``, second all-gather  –                              a row of its own, named after
                                                                the operation
``layernorm``                    without sequence parallelism:  with it: gradients of the norms,
                                 2 B of every parameter         over the tensor-parallel group
``cross_entropy1`` … ``3``       once a step, also on one rank  every micro-batch, where there
                                                                is tensor parallelism
gradients                        reduce-scatter and all-gather  as the ZeRO stage has them: all-
                                                                reduce (0), per micro-batch (2,
                                                                3), gathers twice each (3)
embedding                        4 copies and a row of          the table's shard
                                 positions
``embedding_grads``              the hidden state               a tied table's gradients, only
                                                                with pipeline parallelism
``moe_grad_norm1``, ``2``        also for dense models          models with experts
``optimizer1`` … ``4``           all-reduces of 4 B             left out
expert exchange                  five rows                      one row per exchange, counts
                                                                included
context parallelism              –                              in SimAI's expert group, ``_EP``
``vpp``                          layers of a stage              virtual stages: SimAI's bubble
                                                                and sends are then right
``pp_comm``                      may be a fraction              whole bytes
================================ ============================== ===============================

SimAI has no group for context parallelism. Its collectives run in the expert-parallel group,
which lies where the context-parallel one does; a model without expert parallelism says
``ep: (context-parallel degree)`` for it. The hops of a ring are one all-gather that moves as
much. SimAI takes as many copies of an expert as data ranks over expert ranks; where this is
none, gradients of experts go over the data-parallel group. Shard sets (HSDP) are no groups
of SimAI's either: their collectives keep their sizes and run over the data-parallel group.
Waiting for the host has no row.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.base.collectives import WORDS
from perfmodel.base.errors import StrategyError
from perfmodel.model.build import layer_parameters
from perfmodel.operations.parts import model_parts
from perfmodel.workloads.export.rows import (
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    ProjectedRow,
    RowCommunication,
    block_rows,
)
from perfmodel.workloads.export.types import ProjectedOperation, ProjectedStage, ProjectedWorkload
from perfmodel.workloads.formats.aicb.text import (
    NO_COLLECTIVE,
    TRANSFORMER,
    AicbHeader,
    AicbWorkload,
    workload_from_columns,
)

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
    tensor, context = (int(strategy[f"{axis}_parallel"]) for axis in ("tensor", "context"))
    experts = int(strategy["expert_parallel"])
    group = experts if experts > 1 else context
    pipeline = len(workload.stages)
    header = AicbHeader(
        TRANSFORMER,
        {
            "model_parallel_NPU_group": tensor,
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
    replicas = workload.devices // (tensor * pipeline)
    head, every = _parameter_rows(workload, own)
    sharded = tensor > 1 and bool(strategy["sequence_parallel"])
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
    return workload_from_columns(header, _columns(rows, copies_of_experts=replicas // group))


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
    model = workload.model
    layers = {part.name: part.layer for part in model_parts(model)}
    parameters = 0
    for block in stage.blocks():
        layer = layers[block.part.name]
        if layer is not None:
            parameters += layer_parameters(layer, model.hidden_size).norms
        elif block.part.kind == "output":
            parameters += model.final_norm_parameters()
    row = ProjectedRow(LAYERNORM)
    size = parameters * workload.framework.gradient_bytes
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
