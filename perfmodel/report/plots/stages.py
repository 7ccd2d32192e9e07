"""What the stages of a pipeline hold at the moments of a step."""

from __future__ import annotations

from perfmodel.base.table import Table
from perfmodel.base.variables import MEMORY_COMPONENTS
from perfmodel.report.plots.describe import Plot
from perfmodel.report.plots.parts import MEMORY
from perfmodel.report.plots.sizes import Paper
from perfmodel.report.plots.stacked import bars_plot, capacity_lines, stacked
from perfmodel.report.plots.strategy import picked
from perfmodel.sweeps.subject import TRAINING

SHORT = ("last forward", "first layer backward", "last layer backward", "update")
"""Of `perfmodel.training.stage_memory.MOMENTS`, as figures have room for."""


def memory_of_stages(
    table: Table, pick: int, by: str, where: str | None, everything: bool, paper: Paper
) -> Plot:
    """Describe the memory of one strategy's stages, moment by moment.

    Raises
    ------
    DataError
        As of `picked`.
    """
    from perfmodel.training.stage_memory import stage_memories

    row, problem, said = picked(table, pick, by, where, everything)
    found = stage_memories(*problem)
    held, names = [], []
    for stage in found:
        first, last = stage.first, stage.first + stage.stages - 1
        alike = f"stage {first}" if stage.stages == 1 else f"{stage.stages} stages from {first}"
        if stage.stages > 1 and len(found) <= 3:
            alike = f"stages {first}–{last}"
        for moment, sizes in zip(SHORT, stage.held, strict=True):
            held.append(dict(zip(MEMORY_COMPONENTS, sizes.tolist(), strict=True)))
            names.append(f"{alike}: {moment}" if paper.wide else f"{alike}:\n{moment}")
    limits = [float(row["memory_capacity"])] * len(held)
    marks, axis = stacked(held, MEMORY[TRAINING.verb], "B", limits[:1])
    marks += capacity_lines(limits)
    return bars_plot("memory", names, axis, marks, [said], paper)
