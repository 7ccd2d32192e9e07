"""In which order a device runs the operations of one pass of a block, and what runs beside what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.training.step.types import ProjectedOperation, ProjectedPart

PHASE_NAMES = {
    "forward": "forward",
    "recompute": "recompute",
    "backward_input": "backward",
    "backward_weight": "weight gradient",
}
BACKWARD_PHASES = ("backward_input", "backward_weight")


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One operation of a pass.

    Attributes
    ----------
    operation : ProjectedOperation
    first, last : int
        Steps beside which it runs: it starts with step `first` and has to end before the
        step behind both `last` and itself; -1 where it runs in its turn.
    """

    operation: ProjectedOperation
    first: int = -1
    last: int = -1

    @property
    def aside(self) -> bool:
        """Whether it runs beside other steps."""
        return self.first >= 0


ALL, INPUT_ONLY, WEIGHTS_ONLY = "all", "input", "weights"
GRADIENTS = {BACKWARD: ALL, INPUT: INPUT_ONLY, WEIGHT: WEIGHTS_ONLY, FORWARD: ALL}


def pass_program(
    operations: Sequence[ProjectedOperation], forward: bool, gradients: str = ALL
) -> list[ProgramStep]:
    """Order the operations of one pass of a block.

    Forward in the order of the list. Backward repeats what is recomputed, then goes
    through the list from its end; a product's data gradient precedes its weight gradient,
    and communication on the way into a product comes ahead of the step that it belongs to.
    Where gradients of weights are a pass of their own, all communication is in the other one: the
    stage ahead waits for it. What hid beside products of the later pass then takes its turn.

    Parameters
    ----------
    operations : sequence of ProjectedOperation
        Of all phases (`ProjectedPart.operations`).
    forward : bool
    gradients : str
        As of `perfmodel.workloads.export.program.Slot`.

    Returns
    -------
    list of ProgramStep
    """
    if forward:
        ordered = [item for item in operations if item.phase == "forward"]
    else:
        made = [item for item in operations if makes(item, gradients)]
        ordered = [item for item in made if item.phase == "recompute"]
        ordered += _backward_order([item for item in made if item.phase in BACKWARD_PHASES][::-1])
    where: dict[tuple[str, str], list[int]] = {}
    for i, item in enumerate(ordered):
        where.setdefault((item.name, item.phase), []).append(i)
    program = []
    for item in ordered:
        beside = [i for slot in item.beside for i in where.get(slot, ())]
        if item.hides > 0 and beside:
            program.append(ProgramStep(item, min(beside), max(beside)))
        else:
            program.append(ProgramStep(item))
    return program


def makes(item: ProjectedOperation, gradients: str) -> bool:
    """Tell whether an operation of a backward pass runs where it makes these gradients."""
    later = item.phase == "backward_weight" and not item.communicates
    return gradients == ALL or later == (gradients == WEIGHTS_ONLY)


def _backward_order(items: list[ProjectedOperation]) -> list[ProjectedOperation]:
    """Put data gradients and incoming communication in their places."""
    for i in range(len(items) - 1):
        weight, data = items[i], items[i + 1]
        same = weight.name == data.name and not weight.communicates
        if same and (weight.phase, data.phase) == BACKWARD_PHASES[::-1]:
            items[i], items[i + 1] = data, weight
    for item in list(items):
        if not item.communicates:
            continue
        partners = [i for i, other in enumerate(items) if (other.name, other.phase) in item.beside]
        here = items.index(item)
        # The ring of context parallelism surrounds the attention; all else precedes its product.
        if partners and partners[0] < here:
            items.insert(partners[0], items.pop(here))
    return items


def host_share(gradients: str, part: ProjectedPart) -> float:
    """Return the share of the host's time of a backward pass that falls on a part of it.

    Parameters
    ----------
    gradients : str
        As of `perfmodel.workloads.export.program.Slot`.
    part : ProjectedPart
    """
    if gradients == ALL:
        return 1.0
    behind = [item for item in part.operations if item.phase != "forward"]
    own = sum(item.exposed for item in behind if makes(item, gradients))
    whole = sum(item.exposed for item in behind)
    return own / whole if whole > 0 else 0.0
