"""What every pipeline stage of one strategy holds at the moments of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.model.build import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import Families, StrategyGrid
from perfmodel.training.project import closing_settings, framework_of_run, key_tables, laid_out
from perfmodel.training.scheduled import pipeline_waits
from perfmodel.training.workload import Workload

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.collective.table import Network
    from perfmodel.kernels.step.tables import KeyTables, Stages, Waits

MOMENTS = (
    "last forward in flight, and its loss",
    "first layer backward",
    "last layer, or the next micro-batch, backward",
    "update",
)
"""Moments that may be the peak, as `perfmodel.kernels.step.memory` numbers them."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Stages of one composition.

    Attributes
    ----------
    first, stages : int
        The earliest of them, and how many there are.
    held : ndarray, shape (moments, components)
        Rows as `MOMENTS`, columns as `perfmodel.kernels.variables.MEMORY_COMPONENTS` [B].
    """

    first: int
    stages: int
    held: NDArray[np.float64]

    @property
    def totals(self) -> NDArray[np.float64]:
        """All of it at every moment [B]."""
        return np.asarray(self.held.sum(axis=1))

    def at_peak(self) -> dict[str, float]:
        """Return the components at the moment that needs most [B]."""
        row = self.held[int(np.argmax(self.totals))]
        return dict(zip(MEMORY_COMPONENTS, row.tolist(), strict=True))


def stage_memories(
    model: ModelSpec,
    grid: StrategyGrid,
    hardware: Hardware,
    framework: Framework,
    *,
    embedding: bool = True,
) -> list[StageMemory]:
    """Return what the stages of a grid of one strategy hold, first to last.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
    hardware : Hardware
    framework : Framework
    embedding : bool
        Whether the first stage holds the embedding, which formulas of papers leave out.
    """
    (found,) = all_stage_memories(model, grid, hardware, framework, embedding=embedding)
    return found


def all_stage_memories(
    model: ModelSpec,
    grid: StrategyGrid,
    hardware: Hardware,
    framework: Framework,
    *,
    embedding: bool = True,
) -> list[list[StageMemory]]:
    """Return `stage_memories` of every strategy of a grid, all possible and of one precision."""
    from perfmodel.network.table import network_table

    framework = framework_of_run(framework, model, hardware, grid)
    numbers = np.arange(len(grid))
    families = Families(grid, numbers, np.ones_like(numbers), numbers, grid["global_batch_size"])
    work = laid_out(Workload(model, families), hardware, framework)
    if not embedding:
        work.counts[:, [part.kind for part in work.parts].index("embedding")] = 0.0
    keys = key_tables(work, hardware, framework)
    settings, network = closing_settings(work, hardware, framework), network_table(hardware)
    waits = pipeline_waits(work, keys, settings, network)
    return memories_of(work, keys, work.stage_sums(keys), waits, settings, network)


def memories_of(
    work: Workload,
    keys: KeyTables,
    stages: Stages,
    waits: Waits,
    settings: np.record,
    network: Network,
) -> list[list[StageMemory]]:
    """Return `stage_memories` of every strategy of a workload, each a family of its own."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.step import memory as kernel
    from perfmodel.kernels.step.placement import data_groups
    from perfmodel.kernels.work import kernel_work

    numbers = np.arange(len(work.families))
    batches, _ = work.families.micro_batches(numbers)
    found = []
    with kernel_work(strategies=numbers.size):
        levels, sums, flights, facts = map(plain, (network, stages, waits, settings))
        for number in numbers.tolist():
            of = stages.of[work.strategies.stage_key[number]]
            rows = range(int(of.first), int(of.behind))
            held = np.zeros((len(rows), kernel.MOMENTS, len(MEMORY_COMPONENTS)))
            strategy = plain(work.strategies[number])
            count = kernel.Batches(int(batches[number]), int(work.strategies.waits[number]))
            key = keys.of[of.layer_key]
            sizes = float(key.weight_bytes), float(key.boundary_bytes)
            groups = data_groups(strategy, levels)
            curve = held.reshape(-1, held.shape[-1])
            kernel.memory_curve(strategy, count, sums, flights, groups, sizes, facts, curve)
            distinct = [
                StageMemory(int(stages.sums.first_stage[row]), int(stages.sums.stages[row]), one)
                for row, one in zip(rows, held, strict=True)
            ]
            found.append(sorted(distinct, key=lambda stage: stage.first))
    return found
