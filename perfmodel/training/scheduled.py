"""Strategies whose pipelines no closed form describes: their passes run one by one.

The closing pass (`perfmodel.kernels.step.close`) knows GPipe, 1F1B and interleaved 1F1B in closed
form, of chunks with equal layers, whatever embedding and output add to the first and the last one.
All others run in `perfmodel.kernels.pipeline`, each distinct order once per distinct work.
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
TOGETHER = 8192
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

    chosen = np.flatnonzero(needs_events(work))
    rows = np.full(len(work.grid), -1, np.int64)
    if not chosen.size:
        return rows, no_waits()
    rows[chosen] = np.arange(chosen.size)
    compositions = int(np.diff(work.stage_offset).max())
    waits = no_waits(chosen.size, compositions)
    run_events(Problem(work, keys, settings, network, chosen), waits)
    return rows, waits


def needs_events(work: Workload) -> Flags:
    """Tell which strategies no closed form describes, shape (strategies,)."""
    grid = work.grid
    pipelined = grid["pipeline_parallel"] > 1
    if not pipelined.any():
        return pipelined
    closed = np.isin(grid["pipeline_schedule"], [CODES[name] for name in CLOSED])
    group = grid["micro_batch_group"]
    if group.any() or not closed.all():
        plain = (group == 0) | (group == grid["pipeline_parallel"])
        closed &= plain | (grid["virtual_pipeline"] == 1)
    return pipelined & ~(closed & evenly_laid_out(work)[work.strategies.stage_key])


def pass_times(keys: KeyTables) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what both passes of every part take, each of shape (layer keys, parts) [s]."""
    from perfmodel.kernels.step.stages import BUSY

    forward = np.asarray(keys.parts["forward_pass"])
    return forward, sum(np.asarray(keys.parts[name]) for name in BUSY) - forward


def evenly_laid_out(work: Workload) -> Flags:
    """Tell in which stage keys every chunk holds as many layers of every kind."""
    found = np.ones(work.stage_layer_key.size, bool)
    table = work.compositions
    of_layers = [part.layer is not None for part in model_parts(work.model)]
    for pipeline, own in enumerate(work.keys_of_pipelines()):
        rows = slice(table.chunk_offset[pipeline], table.chunk_offset[pipeline + 1])
        layers = table.chunk_counts[rows][:, of_layers]
        found[own] = (layers == layers[0]).all()
    return found


def end_times(work: Workload, keys: KeyTables) -> NDArray[np.float64]:
    """Return what passes of chunks with equal layers take, by stage key, shape (stage keys, 6) [s].

    As `perfmodel.kernels.pipeline.closed.Ends` has them.
    """
    table, found = work.compositions, np.zeros((work.stage_layer_key.size, 6))
    times = pass_times(keys)
    of_layers = np.array([part.layer is not None for part in model_parts(work.model)])
    for pipeline, own in enumerate(work.keys_of_pipelines()):
        first, last = table.chunk_row[table.place_offset[pipeline : pipeline + 2] - [0, 1]]
        layer = work.stage_layer_key[own]
        for column, passes in enumerate(times):
            held = table.chunk_counts[first] * of_layers
            found[own, column] = passes[layer] @ held
            for end, chunk in ((2, first), (4, last)):
                beside = table.chunk_counts[chunk] * ~of_layers
                found[own, end + column] = passes[layer] @ beside
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
    1F1B goes round by round, and skips rounds that are all alike. Interleaved 1F1B repeats itself,
    p micro-batches at a time: where there are many, so few run as fill and drain the pipeline, and
    one and two repetitions more. If both have added the same, each further one does: what a
    repetition adds never falls, as times are the longest of many ways, and the longest way in the
    end, through the slowest stage or the slowest chunk of each round, is long enough by then to
    show. What is kept has long been at its most. All others run as they are.
    """
    from perfmodel.kernels.work import expect

    grid = problem.work.grid.take(problem.chosen)
    batches, stages = batches_of(grid), grid["pipeline_parallel"]
    schedule = grid["pipeline_schedule"]
    by_rounds = np.isin(schedule, [CODES[name] for name in BY_ROUNDS])
    repeats = np.isin(schedule, [CODES[name] for name in REPEATING]) & (groups_of(grid) == stages)
    many = np.flatnonzero(repeats & (batches > (FILLED + 2) * stages))
    shown = np.minimum(batches, np.where(repeats, (FILLED + 2) * stages, batches))
    passes = stages * grid["virtual_pipeline"] * np.where(by_rounds, stages, shown)
    expect(pipeline_passes=float(passes.sum()) / 4.0)
    run_groups(problem, np.flatnonzero(by_rounds), batches[by_rounds], waits, rounds=True)
    rest = np.ones(batches.size, bool)
    rest[by_rounds] = False
    if many.size:
        shorter = [waits_like(waits, many.size) for _ in range(3)]
        for more, found in enumerate(shorter):
            run_groups(problem, many, (FILLED + more) * stages[many], found)
        missing = batches[many] / stages[many] - FILLED - 2.0
        rest[many] = ~repeated(shorter, missing, waits, many)
    run_groups(problem, np.flatnonzero(rest), batches[rest], waits)


BY_ROUNDS = ("1f1b",)
"""Schedules that run round by round."""
REPEATING = ("interleaved",)
"""Schedules in which p micro-batches after p are treated alike."""
FILLED = 3
"""Micro-batches per stage with which a pipeline has been full for long."""


def waits_like(waits: Waits, rows: int) -> Waits:
    """Return `Waits` of zeros for other strategies with as many compositions of stages."""
    from perfmodel.kernels.step.tables import no_waits

    return no_waits(rows, waits.flight.shape[1])


def repeated(
    shorter: Sequence[Waits],
    missing: NDArray[np.float64],
    waits: Waits,
    rows: Integers,
) -> Flags:
    """Extend runs of fewer micro-batches to all of them, and tell where that is exact.

    Parameters
    ----------
    shorter : sequence of three Waits
        With a repetition more each.
    missing : ndarray of float64, shape (n,)
        Repetitions that the last one lacks.
    waits : Waits
        Result, in `rows`.
    """
    steady = np.ones(missing.size, bool)
    for ours, *theirs in zip(waits[:2], *(item[:2] for item in shorter), strict=True):
        ours[rows] = theirs[2] + missing * (theirs[2] - theirs[1])
        steady &= np.abs(theirs[2] - 2.0 * theirs[1] + theirs[0]) <= SAME * theirs[2]
    for ours, last in zip(waits[2:], shorter[2][2:], strict=True):
        ours[rows] = last
    return steady


SAME = 1e-11
"""Differences that are roundings, relative."""


def run_groups(
    problem: Problem, rows: Integers, batches: Integers, waits: Waits, *, rounds: bool = False
) -> None:
    """Run some of a problem's strategies with so many micro-batches each.

    Parameters
    ----------
    problem : Problem
    rows, batches : ndarray of int64, shape (n,)
        Places in `problem.chosen`, and micro-batches of each.
    waits : Waits
        Result, a row for each or, where it has as many as the problem, in `rows`.
    rounds : bool
        Round by round, with no order.
    """
    from perfmodel.kernels.step import scheduled as kernel
    from perfmodel.kernels.step.tables import Strategies
    from perfmodel.kernels.work import kernel_work

    if not rows.size:
        return
    work, chosen = problem.work, problem.chosen[rows]
    target = rows if waits.makespan.size == problem.chosen.size else np.arange(rows.size)
    grid = work.grid.take(chosen)
    stage_key = work.strategies.stage_key[chosen]
    columns = {
        **grid.columns,
        "pipeline": work.stage_pipeline[stage_key],
        "batches": batches,
        "group": groups_of(grid),
    }
    kinds, kind = distinct_keys(columns, ("pipeline", *ORDERED_BY[: 3 if rounds else None]))
    held = work.strategies._replace(waits=work.strategies.stage_key)
    strategies = Strategies(*(column[chosen] for column in held))
    strategies = strategies._replace(stage_key=work.stage_layer_key[stage_key])
    # Strategies that share work lie together.
    alike = np.split(np.lexsort((stage_key, kind)), np.cumsum(np.bincount(kind))[:-1])
    blocks = (
        (number, own[start : start + TOGETHER])
        for number, own in enumerate(alike)
        for start in range(0, own.size, TOGETHER)
    )
    for number, own in blocks:
        name = list(SCHEDULE_FACTS)[int(kinds["pipeline_schedule"][number])]
        ranks, virtual = (int(kinds[it][number]) for it in ORDERED_BY[1:3])
        shared = (
            problem.keys,
            chunks_of(work, int(kinds["pipeline"][number])),
            sends_are_hidden(name, problem.settings),
            problem.settings,
            problem.network,
            target[own],
            waits,
        )
        some = Strategies(*(column[own] for column in strategies))
        if rounds:
            with kernel_work(pipeline_passes=2 * ranks * ranks * own.size):
                kernel.run_one_f_one_b(some, batches[own], *shared)
            continue
        count, group = int(kinds["batches"][number]), int(kinds["group"][number])
        with kernel_work(pipeline_passes=3 * ranks * virtual * count * (2 + own.size // 4)):
            order, program = grid.table or named_pipeline(name, ranks, count, virtual, group)
            kernel.run_schedules(order, program, some, *shared)


ORDERED_BY = ("pipeline_schedule", "pipeline_parallel", "virtual_pipeline", "batches", "group")
"""What the order of a pipeline's passes depends on."""
BLOCKING = ("gpipe", "1f1b")
"""Schedules whose sends nothing runs beside, whatever the software does in others."""


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
