"""Where the memory of strategies goes, or that of one strategy's stages."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.table import Table
from perfmodel.base.variables import MEMORY_COMPONENTS, RATE
from perfmodel.report.plots.describe import Line, Mark
from perfmodel.report.plots.figure import Plot
from perfmodel.report.plots.names import in_common
from perfmodel.report.plots.parts import CAPACITY, MEMORY
from perfmodel.report.plots.sizes import Paper
from perfmodel.report.plots.stacked import TOP, bar_names, bars_plot, chosen_rows, stacked
from perfmodel.report.plots.strategy import picked
from perfmodel.store.subject import TRAINING, subject_of

SHORT = ("last forward", "first layer backward", "last layer backward", "update")
"""Of `perfmodel.training.stage_memory.MOMENTS`, as figures have room for."""


def memory_plot(
    table: Table,
    *,
    top: int = TOP,
    by: str = RATE,
    each: str | None = None,
    where: str | None = None,
    everything: bool = False,
    stages: bool = False,
    pick: int = 1,
    paper: Paper,
) -> Plot:
    """Describe where the memory goes; options as of `perfmodel.plot`."""
    if stages:
        return _of_stages(table, pick, by, where, everything, paper)
    subject = subject_of(table)
    found = chosen_rows(table, top, by, each, where, everything)
    whole = MEMORY[subject.verb]
    limits = [row.get("memory_capacity") for row in found]
    marks, axis = stacked(found, whole, "B", [it for it in limits if it is not None])
    marks += _capacity(limits)
    names = bar_names(found, each, table, paper)
    return bars_plot("memory", names, axis, marks, [in_common(found, subject)], paper)


def _of_stages(
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
    marks += _capacity(limits)
    return bars_plot("memory", names, axis, marks, [said], paper)


def _capacity(limits: Sequence[float | None]) -> list[Mark]:
    """Return a line across every bar where its memory ends."""
    known = [(at, limit) for at, limit in enumerate(limits) if limit is not None]
    same = {limit for _, limit in known}
    if len(same) == 1 and len(known) == len(limits):
        (limit,) = same
        return [Line([limit] * 2, [-0.5, len(limits) - 0.5], CAPACITY, "capacity")]
    return [Line([limit] * 2, [at - 0.45, at + 0.45], CAPACITY, "capacity") for at, limit in known]
