"""Rows of text workloads: blocks of a projected strategy with three phases each.

The text formats of AICB and ASTRA-sim have rows with a forward pass, an input gradient and
a weight gradient; each computes and then runs one collective at most. A block with more
collectives becomes several rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfmodel.base.collectives import WORDS
from perfmodel.operations.operations import Role
from perfmodel.workloads.export.program import pass_program
from perfmodel.workloads.export.types import ProjectedBlock, ProjectedOperation

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
BLOCKS = {
    Role.ATTENTION: ("attention", "column"),
    Role.ATTENTION_OUTPUT: ("attention", "row"),
    Role.RECURRENCE: ("recurrence", "column"),
    Role.RECURRENCE_OUTPUT: ("recurrence", "row"),
    Role.MLP: ("mlp", "column"),
    Role.MLP_OUTPUT: ("mlp", "row"),
    Role.SHARED: ("mlp_shared", "column"),
    Role.SHARED_OUTPUT: ("mlp_shared", "row"),
}
WHOLE = {
    Role.EXPERTS: "mlp_moelayer",
    Role.EXPERT_PRODUCT: "mlp_moelayer",
    Role.EXPERT_SHARING: "mlp_moelayer",
    Role.EMBEDDING: "embedding_layer",
    Role.OUTPUT: "final_column",
    Role.LOSS: "cross_entropy1",
    Role.PREDICTION: "mtp_projection",
}


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


def _segment(role: Role, sharded: bool) -> str:
    """Return AICB's name of the row to which an operation belongs."""
    if role in WHOLE:
        return WHOLE[role]
    block, side = BLOCKS[role]
    return f"{block}_{side}" if sharded else f"{block}_layer"


def _further(name: str, index: int, waiting: Iterable[list[RowCommunication]]) -> str:
    """Name a row that only carries a further collective."""
    if name == WHOLE[Role.LOSS]:
        return f"cross_entropy{index + 1}"
    names = {items[index].name for items in waiting if index < len(items)}
    return "+".join(sorted(names)).replace(".", "_")
