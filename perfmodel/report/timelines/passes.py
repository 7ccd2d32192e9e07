"""What one pass of a micro-batch through a model chunk consists of, piece by piece."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from perfmodel.base.variables import TIME_COMPONENTS
from perfmodel.kernels.pipeline.actions import FORWARD
from perfmodel.workloads.export.program import GRADIENTS, ProgramStep, pass_program
from perfmodel.workloads.export.stage import PHASE_NAMES, host_share
from perfmodel.workloads.export.types import ProjectedPart, component_of

DEPTHS = ("passes", "layers", "operations")
"""How finely a pass is told: by what its time goes to, the same of every layer, or of every
operation."""

COMPONENT = {name: code for code, name in enumerate(TIME_COMPONENTS)}
WORDS = {
    "forward_time": "forward",
    "backward_time": "backward",
    "recompute_time": "recompute",
    "optimizer_time": "optimizer",
    "host_time": "host",
    "tensor_parallel_exposed": "tensor parallel",
    "context_parallel_exposed": "context parallel",
    "expert_parallel_exposed": "expert parallel",
    "pipeline_exposed": "pipeline",
    "data_parallel_exposed": "data parallel",
    "offload_exposed": "offload",
    "pipeline_bubble": "bubble",
}
"""What components of the step are called on a timeline."""


class Piece(NamedTuple):
    """Some of a pass.

    Attributes
    ----------
    component : int
        Place in `perfmodel.base.variables.TIME_COMPONENTS` of what its time goes to.
    name : str
    duration : float
        What it adds to the pass [s].
    hidden : float
        Communication: what runs beside other work [s].
    beside : float
        When that begins, from the start of the pass [s].
    """

    component: int
    name: str
    duration: float
    hidden: float = 0.0
    beside: float = 0.0


def pass_pieces(
    blocks: Sequence[tuple[str, ProjectedPart]], kind: int, depth: str = DEPTHS[0]
) -> list[Piece]:
    """Return the pieces of one pass of one micro-batch, in their order.

    Parameters
    ----------
    blocks : sequence of (str, ProjectedPart)
        Labels and parts of the chunk, in the order of the model.
    kind : int
        Of `perfmodel.kernels.pipeline.actions`.
    depth : {"passes", "layers", "operations"}
    """
    found: list[Piece] = []
    forward, gradients = kind == FORWARD, GRADIENTS[kind]
    for label, part in blocks if forward else blocks[::-1]:
        program = pass_program(part.operations, forward, gradients)
        pieces = _operation_pieces(program, label, sum(piece.duration for piece in found))
        wait = part.host_forward if forward else host_share(gradients, part) * part.host_backward
        if wait > 0.0:
            pieces.append(Piece(COMPONENT["host_time"], f"{label} host", wait))
        found += _joined(pieces, f"{label} ") if depth == DEPTHS[1] else pieces
    return found if depth != DEPTHS[0] else _joined(found, "")


def _operation_pieces(program: Sequence[ProgramStep], label: str, begin: float) -> list[Piece]:
    """Return what every operation adds; what hides does so from the first step beside it on."""
    starts = [begin]
    for step in program:
        starts.append(starts[-1] + step.operation.exposed)
    return [
        Piece(
            COMPONENT[component_of(step.operation)],
            f"{label} {PHASE_NAMES[step.operation.phase]} {step.operation.name}",
            step.operation.exposed,
            max(step.operation.time - step.operation.exposed, 0.0),
            starts[min(step.first, i) if step.aside else i],
        )
        for i, step in enumerate(program)
    ]


def _joined(pieces: Sequence[Piece], prefix: str) -> list[Piece]:
    """Join the pieces of every component; those come in the order in which they first do."""
    joined: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        joined[piece.component].append(piece)
    return [
        Piece(
            component,
            prefix + WORDS[TIME_COMPONENTS[component]],
            sum(piece.duration for piece in own),
            sum(piece.hidden for piece in own),
            min(piece.beside for piece in own),
        )
        for component, own in joined.items()
    ]
