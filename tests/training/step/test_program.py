"""The order of the operations of a pass."""

from __future__ import annotations

from perfmodel.training.step.program import pass_program


def test_backward_repeats_first_and_reads_the_list_from_its_end(workload_of):
    part = workload_of("ring").stages[0].chunks[0][1].part
    program = pass_program(part.operations, forward=False)
    phases = [step.operation.phase for step in program]
    names = [step.operation.name for step in program]
    again = phases.count("recompute")
    assert again > 0
    assert set(phases[:again]) == {"recompute"}
    assert names[:again][0] == "attention.norm"
    assert names[again] == "mlp.residual"
    ring = [step for step in program if step.operation.name == "attention.ring"]
    for step in ring:
        covered = {program[i].operation.name for i in (step.first, step.last)}
        assert covered == {"attention.core", "attention.core_remote"}
