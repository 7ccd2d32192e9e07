"""What every pipeline stage of one strategy holds at the moments of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.variables import MEMORY_COMPONENTS
from perfmodel.model.build import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.training.project import (
    Workload,
    closing_settings,
    framework_of_run,
    key_tables,
    laid_out,
)
from perfmodel.training.scheduled import pipeline_waits

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

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
        Rows as `MOMENTS`, columns as `perfmodel.base.variables.MEMORY_COMPONENTS` [B].
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
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.step import memory as kernel
    from perfmodel.kernels.step.placement import data_groups
    from perfmodel.kernels.work import kernel_work
    from perfmodel.network.table import network_table

    framework = framework_of_run(framework, model, hardware, grid)
    work = laid_out(Workload(model, grid), hardware, framework)
    if not embedding:
        work.counts[:, [part.kind for part in work.parts].index("embedding")] = 0.0
    keys = key_tables(work, hardware, framework)
    stages = work.stage_sums(keys)
    settings, network = closing_settings(work, hardware, framework), network_table(hardware)
    rows, waits = pipeline_waits(work, keys, settings, network)
    held = np.zeros((stages.sums.size, kernel.MOMENTS, len(MEMORY_COMPONENTS)))
    (batches,), _ = work.families.micro_batches(np.zeros(1, np.int64))
    sizes = float(keys.of.weight_bytes[0]), float(keys.of.boundary_bytes[0])
    with kernel_work(strategies=1):
        strategy = plain(work.strategies[0])
        groups = data_groups(strategy, plain(network))
        shared = plain(stages), plain(waits), groups, sizes, plain(settings)
        count = kernel.Batches(int(batches), int(rows[0]))
        kernel.memory_curve(strategy, count, *shared, held.reshape(-1, held.shape[-1]))
    distinct = zip(stages.sums.first_stage, stages.sums.stages, held, strict=True)
    found = [StageMemory(int(first), int(count), one) for first, count, one in distinct]
    return sorted(found, key=lambda stage: stage.first)
