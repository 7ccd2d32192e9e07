"""The pipeline of one strategy: what its stages hold, and when they work, wait and send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.timelines import Counter, Track, write_timeline
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.pricing import kernel_tables
from perfmodel.software.framework import Framework
from perfmodel.strategy.grid import Families, StrategyGrid, batches_of
from perfmodel.strategy.pipelines import Pipeline, named_pipeline
from perfmodel.training.project import closing_settings, framework_of_run, key_tables, laid_out
from perfmodel.training.scheduled import (
    chunks_of,
    groups_of,
    pipeline_waits,
    prices_of,
    sends_are_hidden,
)
from perfmodel.training.workload import Workload

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.collective.table import Network
    from perfmodel.kernels.pipeline.events import Timeline
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
    framework = framework_of_run(framework, model, hardware, grid)
    numbers = np.arange(len(grid))
    families = Families(grid, numbers, np.ones_like(numbers), numbers, grid["global_batch_size"])
    work = laid_out(Workload(model, families), hardware, framework)
    if not embedding:
        work.counts[:, [part.kind for part in work.parts].index("embedding")] = 0.0
    keys = key_tables(work, hardware, framework)
    settings = closing_settings(work, hardware, framework)
    network = kernel_tables(hardware).network
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


PASSES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "backward for the input",
    WEIGHT: "backward for the weights",
}
"""Kinds of passes, as they are called."""


def passes_track(
    process: str, start: NDArray[Any], duration: NDArray[Any], *about: NDArray[Any]
) -> Track:
    """Return the passes of a stage as a track.

    Parameters
    ----------
    process : str
        The stage, as shown.
    start, duration : ndarray
        [s].
    *about : ndarray of int
        Kind (of `PASSES`), micro-batch and chunk, of every pass.
    """
    kinds, batches, chunks = about
    named = zip(kinds.tolist(), batches.tolist(), strict=True)
    names = [f"{PASSES[kind]} {batch}" for kind, batch in named]
    told = {"micro-batch": batches, "chunk": chunks}
    return Track(process, "passes", names, start, duration, "pass", told)


class StagePasses(NamedTuple):
    """What one stage of a pipeline does in a step.

    Attributes
    ----------
    stage : int
    layers : tuple of int
        Layers of each of its chunks, in the order in which they run.
    forward, backward : float
        Of one micro-batch through all its chunks, recomputation included [s].
    busy, sending, waiting : float
        With passes, kept by sends, and the rest, until the last stage is done [s].
    in_flight : float
        Micro-batches whose activations it keeps at most, each chunk its share of one.
    kept : float
        Activations and logits that it keeps at most [B].
    """

    stage: int
    layers: tuple[int, ...]
    forward: float
    backward: float
    busy: float
    sending: float
    waiting: float
    in_flight: float
    kept: float


class PipelineTimeline(NamedTuple):
    """The passes of a step over the stages of a pipeline.

    Attributes
    ----------
    stages : tuple of StagePasses
    makespan : float
        From the first pass to the last, sends included [s].
    pipeline : Pipeline
        Which passes run in which order.
    timeline : Timeline
        When each of them runs.
    kept_from, kept : ndarray, shape (passes,)
        When what its stage keeps changes with a pass [s], and to what [B].
    recompute : ndarray, shape (stages of the order,)
        What of a backward pass runs forward again [s].
    """

    stages: tuple[StagePasses, ...]
    makespan: float
    pipeline: Pipeline
    timeline: Timeline
    kept_from: NDArray[np.float64]
    kept: NDArray[np.float64]
    recompute: NDArray[np.float64]

    def tracks(self) -> Iterator[Track | Counter]:
        """Yield the tracks of every stage."""
        order, timeline = self.pipeline.order, self.timeline
        for stage, (first, behind) in enumerate(pairwise(order.first.tolist())):
            own = slice(first, behind)
            process, start, end = f"stage {stage}", timeline.start[own], timeline.end[own]
            chunks = np.flatnonzero(order.rank_of == stage).searchsorted(order.stage[own])
            about = order.kind[own], order.micro_batch[own], chunks
            yield passes_track(process, start, end - start, *about)
            begin = np.concatenate(([0.0], end))
            waits = np.concatenate((start, [self.makespan])) - begin
            idle = np.flatnonzero(waits > 4.0 * np.spacing(self.makespan))
            if idle.size:
                names = ["waits or sends"] * idle.size
                yield Track(process, "between passes", names, begin[idle], waits[idle], "wait")
            yield Counter(process, "kept [B]", self.kept_from[own], {"kept": self.kept[own]})

    def write(self, path: str | Path) -> int:
        """Write it for https://ui.perfetto.dev, completely or not at all; return the events."""
        return write_timeline(self.tracks(), path, {"makespan [s]": self.makespan})

    def to_json_dict(self) -> dict[str, Any]:
        """Return the stages and how what they keep changes, for JSON."""
        stages = [
            {
                **stage._asdict(),
                "layers": list(stage.layers),
                "kept_over_time": {
                    "time": self.kept_from[first:behind].tolist(),
                    "bytes": self.kept[first:behind].tolist(),
                },
            }
            for stage, (first, behind) in zip(
                self.stages, pairwise(self.pipeline.order.first.tolist()), strict=True
            )
        ]
        passes = int(self.timeline.start.size)
        return {"makespan": self.makespan, "passes": passes, "stages": stages}


def pipeline_of(grid: StrategyGrid) -> Pipeline:
    """Return what every stage of one strategy does; one alone goes back and forth."""
    if grid.table is not None:
        return grid.table
    stages, batches = int(grid["pipeline_parallel"][0]), batches_of(grid)
    return named_pipeline(
        str(grid.row(0)["pipeline_schedule"]) if stages > 1 else "1f1b",
        stages,
        int(batches[0]),
        int(grid["virtual_pipeline"][0]),
        int(groups_of(grid.columns, batches)[0]),
    )


def pipeline_timeline(
    model: ModelSpec, grid: StrategyGrid, hardware: Hardware, framework: Framework
) -> PipelineTimeline:
    """Run the passes of one strategy.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
        One possible strategy.
    hardware : Hardware
    framework : Framework
        As of the run (`perfmodel.training.project.framework_of_run`).
    """
    from perfmodel.kernels.work import kernel_work

    work = laid_out(Workload(model, grid), hardware, framework)
    keys = key_tables(work, hardware, framework)
    settings = closing_settings(work, hardware, framework)
    network = kernel_tables(hardware).network
    row = grid.row(0)
    schedule = str(row["pipeline_schedule"])
    stages = int(grid["pipeline_parallel"][0])
    batches = int(grid["global_batch_size"][0]) // int(
        grid["data_parallel"][0] * grid["micro_batch_size"][0]
    )
    with kernel_work(pipeline_passes=3 * stages * batches * int(grid["virtual_pipeline"][0])):
        from perfmodel.kernels.pipeline.events import Durations, held_over_time, peaks, run_order
        from perfmodel.kernels.step.scheduled import chunk_rows, kept_bytes, work_of_cases

        pipeline = pipeline_of(grid)
        order = pipeline.order
        chunks = chunks_of(work, 0)
        first = np.zeros(1, np.int64)
        layer, send, shards = prices_of(work, keys, settings, network, first)
        parts = keys.parts[layer]
        works, work_of = work_of_cases(order.rank_of, parts, shards.row, chunks, shards)
        passes = works[:, work_of, 0]
        bytes_kept = kept_bytes(order, chunks, parts[0])
        sends = np.full_like(passes, send[0] if stages > 1 else 0.0)
        hidden = sends_are_hidden(schedule, settings)
        kept_busy = 0.0 if hidden else 1.0
        durations = Durations(passes, sends, np.empty((0, 0)), kept_busy, 0.0)
        timeline = run_order(order, pipeline.program, durations)
        most = peaks(order, *bytes_kept)
        ones = np.full(order.rank_of.size, stages / order.rank_of.size)
        in_flight = peaks(order, np.zeros_like(ones), ones)
        kept_from, kept = held_over_time(order, timeline, *bytes_kept)
    again = (chunks.counts @ parts[0]["recompute"])[chunk_rows(order.rank_of, chunks)]
    of_layers = [part.layer is not None for part in work.parts]
    layers = chunks.counts[:, of_layers].sum(axis=1).astype(np.int64)[chunks.row]
    count = layers.size
    found = []
    for stage in range(stages):
        own = np.flatnonzero(order.rank_of == stage)
        found.append(
            StagePasses(
                stage,
                tuple(int(layers[chunk % count]) for chunk in own),
                float(passes[0, own].sum()),
                float(passes[1, own].sum()),
                float(timeline.busy[stage]),
                float(timeline.sending[stage]),
                float(timeline.idle[stage]),
                float(in_flight[stage]),
                float(most[stage]),
            )
        )
    return PipelineTimeline(
        tuple(found), float(timeline.makespan), pipeline, timeline, kept_from, kept, again
    )
