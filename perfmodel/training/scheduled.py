"""Strategies whose pipelines no closed form describes: their passes run one by one.

The closing pass (`perfmodel.kernels.step.close`) knows GPipe, 1F1B and interleaved 1F1B in closed
form. That is exact where no chunk takes longer than the last one, forward or backward: so most
often, as the last one has the output matrix. All others run in `perfmodel.kernels.pipeline`, each
distinct order once per distinct work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.operations.parts import model_parts
from perfmodel.strategy.distinct import distinct_keys
from perfmodel.strategy.grid import batches_of
from perfmodel.strategy.pipelines import named_pipeline

if TYPE_CHECKING:
    from perfmodel.kernels.collective.table import Network
    from perfmodel.kernels.step.scheduled import Chunks
    from perfmodel.kernels.step.tables import KeyTables, Settings, Waits
    from perfmodel.strategy.grid import StrategyGrid
    from perfmodel.training.project import Workload

CLOSED = ("gpipe", "1f1b", "interleaved")
"""Schedules with a closed form."""
TOGETHER = 1024
"""Strategies of one order that run in one call: bounds what their passes take in memory."""
CODES = {name: code for code, name in enumerate(SCHEDULE_FACTS)}


def pipeline_waits(
    work: Workload, keys: KeyTables, settings: Settings, network: Network
) -> tuple[Integers, Waits]:
    """Run the passes of all strategies that need it.

    Returns
    -------
    rows : ndarray of int64, shape (strategies,)
        Row of each strategy in the second; -1 where a closed form holds.
    waits : Waits
    """
    from perfmodel.kernels.step.tables import no_waits

    chosen = np.flatnonzero(needs_events(work, keys))
    rows = np.full(len(work.grid), -1, np.int64)
    if not chosen.size:
        return rows, no_waits()
    rows[chosen] = np.arange(chosen.size)
    compositions = int(np.diff(work.stage_offset).max())
    waits = no_waits(chosen.size, compositions)
    run_events(Problem(work, keys, settings, network, chosen), waits)
    return rows, waits


def needs_events(work: Workload, keys: KeyTables) -> Flags:
    """Tell which strategies no closed form describes exactly, shape (strategies,)."""
    grid = work.grid
    pipelined = grid["pipeline_parallel"] > 1
    if not pipelined.any():
        return pipelined
    closed = np.isin(grid["pipeline_schedule"], [CODES[name] for name in CLOSED])
    closed &= grid["zero_stage"] < 3  # what shows of gathers differs from part to part
    group = grid["micro_batch_group"]
    if group.any() or not closed.all():
        plain = (group == 0) | (group == grid["pipeline_parallel"])
        closed &= plain | (grid["virtual_pipeline"] == 1)
    heavy_end = ends_heaviest(work, keys)
    return pipelined & ~(closed & heavy_end[work.strategies.stage_key])


def pass_times(keys: KeyTables) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what both passes of every part take, each of shape (layer keys, parts) [s]."""
    from perfmodel.kernels.step.stages import BUSY

    forward = np.asarray(keys.parts["forward_pass"])
    return forward, sum(np.asarray(keys.parts[name]) for name in BUSY) - forward


def ends_heaviest(work: Workload, keys: KeyTables) -> Flags:
    """Tell of which stage keys the last chunk takes longest, forward and backward.

    With several chunks a stage, all but the first and the last must be alike, too, and all have as
    many layers.
    """
    found = np.ones(work.stage_layer_key.size, bool)
    table = work.compositions
    times = pass_times(keys)
    of_layers = [part.layer is not None for part in model_parts(work.model)]
    for pipeline, own in enumerate(work.keys_of_pipelines()):
        rows = slice(table.chunk_offset[pipeline], table.chunk_offset[pipeline + 1])
        place = table.chunk_row[table.place_offset[pipeline] : table.place_offset[pipeline + 1]]
        stages = table.stage_offset[pipeline + 1] - table.stage_offset[pipeline]
        layer = work.stage_layer_key[own]
        layers = table.chunk_counts[rows][:, of_layers].sum(axis=1)
        if place.size > stages and ((place[1:-1] != place[1]).any() or np.ptp(layers) > 0):
            found[own] = False
            continue
        for passes in times:
            of_chunks = table.chunk_counts[rows] @ passes[layer].T
            longest = of_chunks[place[-1] - rows.start] * (1.0 + 1e-12)
            found[own] &= (of_chunks <= longest).all(axis=0)
    return found


def fill_times(work: Workload, keys: KeyTables) -> NDArray[np.float64]:
    """Return what the last stage waits for while its pipeline fills and drains, by stage key [s].

    Notes
    -----
    A micro-batch passes the first chunks of all stages ahead of it, and comes back through
    them. With several chunks a stage, p micro-batches do so in a row, at the pace of the slowest of
    these chunks, while the last stage would go at that of its own: p - 1 times the difference,
    either way. Derived here, for chunks as `ends_heaviest` asks for; held against passes run one
    by one.
    """
    table, found = work.compositions, np.zeros(work.stage_layer_key.size)
    times = pass_times(keys)
    for pipeline, own in enumerate(work.keys_of_pipelines()):
        stages = table.stage_offset[pipeline + 1] - table.stage_offset[pipeline]
        place = slice(table.place_offset[pipeline], table.place_offset[pipeline] + stages)
        held = table.chunk_counts[table.chunk_row[place]]
        several = table.place_offset[pipeline + 1] > place.stop
        layer = work.stage_layer_key[own]
        for passes in times:
            first = held @ passes[layer].T
            found[own] += first[:-1].sum(axis=0)
            if several:
                found[own] += (stages - 1) * (first.max(axis=0) - first[-1])
    return found


class Problem(NamedTuple):
    """Strategies whose passes run one by one, and what these take.

    Attributes
    ----------
    work : Workload
    keys : KeyTables
    settings : Settings
    network : Network
    chosen : ndarray of int64
        Strategies of the workload.
    """

    work: Workload
    keys: KeyTables
    settings: Settings
    network: Network
    chosen: Integers


def run_events(problem: Problem, waits: Waits) -> None:
    """Fill `waits`, a row for each of the chosen strategies.

    Notes
    -----
    1F1B and interleaved 1F1B repeat themselves, micro-batch by micro-batch or p of them at a time.
    Where there are many, so few run as fill and drain the pipeline, and once and twice more of a
    repetition. If both have added the work of the slowest stage, each further one does: no
    schedule is faster, and stages that would wait for each other for longer would have shown it
    by then. What is kept has long been at its most. All others run as they are.
    """
    from perfmodel.kernels.work import expect

    grid = problem.work.grid.take(problem.chosen)
    batches, stages = batches_of(grid), grid["pipeline_parallel"]
    repeats = np.isin(grid["pipeline_schedule"], [CODES[name] for name in REPEATING])
    several = grid["virtual_pipeline"] > 1
    repeats &= ~several | (groups_of(grid) == stages)
    period = np.where(several, stages, 1)
    base = FILLED * stages
    many = np.flatnonzero(repeats & (batches > base + 2 * period))
    few = np.setdiff1d(np.arange(batches.size), many)
    passes = float((stages * grid["virtual_pipeline"]) @ np.minimum(batches, base + 2 * period))
    expect(pipeline_passes=passes)
    if many.size:
        shorter = [waits_like(waits, many.size) for _ in range(3)]
        for more, found in enumerate(shorter):
            run_batches(problem, many, (base + more * period)[many], found)
        rest = (batches[many] - base[many]) / period[many] - 2.0
        steady = repeated(shorter, rest, period[many], waits, many)
        few = np.concatenate([few, many[~steady]])
    if few.size:
        found = waits_like(waits, few.size)
        run_batches(problem, few, batches[few], found)
        for ours, theirs in zip(waits, found, strict=True):
            ours[few] = theirs


REPEATING = ("1f1b", "interleaved")
"""Schedules in which micro-batch after micro-batch is treated alike."""
FILLED = 4
"""Micro-batches per stage with which a pipeline has been full for long."""


def waits_like(waits: Waits, rows: int) -> Waits:
    """Return `Waits` of zeros for other strategies with as many compositions of stages."""
    from perfmodel.kernels.step.tables import no_waits

    return no_waits(rows, waits.flight.shape[1])


def repeated(
    shorter: Sequence[Waits],
    rest: NDArray[np.float64],
    period: Integers,
    waits: Waits,
    rows: Integers,
) -> Flags:
    """Extend runs of fewer micro-batches to all of them, and tell where that is exact.

    Parameters
    ----------
    shorter : sequence of three Waits
        With a repetition more each.
    rest : ndarray of float64, shape (n,)
        Repetitions that are missing in the last one.
    period : ndarray of int64, shape (n,)
        Micro-batches of a repetition.
    waits : Waits
        Result, in `rows`.
    """
    least, steady = period * shorter[2].slowest, np.ones(rest.size, bool)
    for ours, *theirs in zip(waits[:2], *(item[:2] for item in shorter), strict=True):
        first, second = theirs[1] - theirs[0], theirs[2] - theirs[1]
        steady &= np.abs(first - second) <= SAME * theirs[2]
        ours[rows] = theirs[2] + rest * second
    steady &= np.abs(shorter[2].makespan - shorter[1].makespan - least) <= SAME * least
    for ours, theirs in zip(waits[2:], shorter[2][2:], strict=True):
        ours[rows] = theirs
    return steady


SAME = 1e-11
"""Differences that are roundings, relative."""


def run_batches(problem: Problem, rows: Integers, batches: Integers, waits: Waits) -> None:
    """Run some of a problem's strategies with so many micro-batches each.

    Parameters
    ----------
    problem : Problem
    rows, batches : ndarray of int64, shape (n,)
        Places in `problem.chosen`, and micro-batches of each.
    waits : Waits
        Result, of n rows.
    """
    from perfmodel.kernels.step import scheduled as kernel
    from perfmodel.kernels.step.tables import Strategies
    from perfmodel.kernels.work import kernel_work

    work, chosen = problem.work, problem.chosen[rows]
    grid = work.grid.take(chosen)
    stage_key = work.strategies.stage_key[chosen]
    kinds, kind = distinct_keys(
        {
            **grid.columns,
            "pipeline": work.stage_pipeline[stage_key],
            "batches": batches,
            "group": groups_of(grid),
        },
        ("pipeline", *ORDERED_BY),
    )
    columns = work.strategies._replace(waits=work.strategies.stage_key)
    strategies = Strategies(*(column[chosen] for column in columns))
    strategies = strategies._replace(stage_key=work.stage_layer_key[stage_key])
    alike = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    blocks = (
        (number, own[start : start + TOGETHER])
        for number, own in enumerate(alike)
        for start in range(0, own.size, TOGETHER)
    )
    for number, own in blocks:
        ordered = OrderedBy(*(int(kinds[name][number]) for name in ORDERED_BY))
        name = list(SCHEDULE_FACTS)[ordered.schedule]
        with kernel_work(pipeline_passes=ordered.passes * (2 + own.size // 4)):
            order, program = grid.table or named_pipeline(
                name, ordered.ranks, ordered.batches, ordered.virtual, ordered.group
            )
            kernel.run_schedules(
                order,
                program,
                Strategies(*(column[own] for column in strategies)),
                problem.keys,
                chunks_of(work, int(kinds["pipeline"][number])),
                sends_are_hidden(name, problem.settings),
                problem.settings,
                problem.network,
                own,
                waits,
            )


ORDERED_BY = ("pipeline_schedule", "pipeline_parallel", "virtual_pipeline", "batches", "group")
BLOCKING = ("gpipe", "1f1b")
"""Schedules whose sends nothing runs beside, whatever the software does in others."""


class OrderedBy(NamedTuple):
    """What the order of a pipeline's passes depends on; columns `ORDERED_BY`."""

    schedule: int
    ranks: int
    virtual: int
    batches: int
    group: int

    @property
    def passes(self) -> int:
        """Passes of a step, with gradients of weights apart."""
        return 3 * self.ranks * self.virtual * self.batches


def sends_are_hidden(schedule: str, settings: Settings) -> bool:
    """Tell whether sends between stages run beside passes; otherwise they keep their sender."""
    return bool(settings.overlap_pipeline) and schedule not in BLOCKING


def groups_of(grid: StrategyGrid) -> Integers:
    """Return how many micro-batches of every strategy go through one chunk before the next.

    Where nothing is said: p, or what makes PyTorch's rounds of p and more alike
    (`ScheduleInterleavedZeroBubble`).
    """
    stages, batches = grid["pipeline_parallel"], batches_of(grid)
    group = np.where(grid["micro_batch_group"] > 0, grid["micro_batch_group"], stages)
    rounds = np.maximum(batches // stages, 1)
    zero_bubble = grid["pipeline_schedule"] == CODES["interleaved_zero_bubble"]
    return np.where(zero_bubble, batches // rounds, group)


def chunks_of(work: Workload, pipeline: int) -> Chunks:
    """Return what the chunks of one of a workload's pipelines hold."""
    from perfmodel.kernels.step.scheduled import Chunks

    table = work.compositions
    rows = slice(table.chunk_offset[pipeline], table.chunk_offset[pipeline + 1])
    places = slice(table.place_offset[pipeline], table.place_offset[pipeline + 1])
    stages = slice(table.stage_offset[pipeline], table.stage_offset[pipeline + 1])
    return Chunks(
        table.chunk_counts[rows], table.chunk_row[places] - rows.start, table.stage_row[stages]
    )
