"""Strategies whose pipelines no closed form describes: their passes run one by one.

The closing pass (`perfmodel.kernels.step.close`) knows GPipe, 1F1B and interleaved 1F1B in closed
form, of chunks with equal layers, whatever embedding and output add to the first and the last one.
All others run in `perfmodel.kernels.pipeline`, each distinct order once per distinct work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.strategy.distinct import distinct_keys
from perfmodel.strategy.pipelines import named_pipeline

if TYPE_CHECKING:
    from perfmodel.kernels.collective.table import Network
    from perfmodel.kernels.step.scheduled import Chunks
    from perfmodel.kernels.step.shards import Shards
    from perfmodel.kernels.step.tables import KeyTables, Waits
    from perfmodel.training.project import Workload

CLOSED = ("gpipe", "1f1b", "interleaved")
"""Schedules with a closed form for chunks of equal layers."""
TOGETHER = 8192
"""Strategies of one order that run in one call: bounds what their passes take in memory."""
CODES = {name: code for code, name in enumerate(SCHEDULE_FACTS)}


def pipeline_waits(
    work: Workload, keys: KeyTables, settings: np.record, network: Network, bounds: bool = False
) -> Waits:
    """Run the passes of all strategies that need it; or bound what they take from below.

    Which rows of the result are a family's is written into the workload's strategies.
    """
    from perfmodel.kernels.step.tables import no_waits

    chosen = np.flatnonzero(needs_events(work))
    if not chosen.size:
        return no_waits()
    prices = prices_of(work, keys, settings, network, chosen)
    leader, kind = distinct_pipelines(work, chosen, prices)
    first = Problem(work, keys, settings, chosen, prices).part(leader)
    batches, lines = lines_of(first)
    begin = np.cumsum(lines) - lines
    waits = no_waits(batches.size, int(np.diff(work.stage_offset).max()))
    pipeline = np.repeat(np.arange(leader.size), lines)
    right = run_events(first.part(pipeline), batches, waits, bounds)
    if not right.all():  # of what does not repeat itself, all batches run
        odd = np.unique(pipeline[~right])
        batches, begins = work.families.micro_batches(first.chosen[odd])
        begin[odd], lines[odd] = pipeline.size + begins[:-1], np.diff(begins)
        more = no_waits(batches.size, waits.flight.shape[1])
        run_events(first.part(np.repeat(odd, lines[odd])), batches, more, repeat=False)
        flight = np.concatenate((waits.flight, more.flight))
        waits = waits._replace(of=np.concatenate((waits.of, more.of)).view(np.recarray))
        waits = waits._replace(flight=flight)
    work.strategies.waits[chosen], work.strategies.lines[chosen] = begin[kind], lines[kind]
    return waits


def lines_of(problem: Problem) -> tuple[Integers, Integers]:
    """Return the micro-batches with which pipelines have to run, and how many there are of each.

    Those of all strategies of their families, ascending, but for what follows from fewer: the last
    one stands for all further ones.
    """
    batches, begin = problem.work.families.micro_batches(problem.chosen)
    size = np.diff(begin)
    pipeline = np.repeat(np.arange(size.size), size)
    columns = problem.part(pipeline).columns()
    stages = columns["pipeline_parallel"]
    follows = batches >= FILLED * stages
    follows &= closes(columns) | (repeats_itself(columns, batches) & (batches % stages == 0))
    place = np.arange(batches.size) - begin[pipeline]
    alone = np.where(follows, -1, place)
    lines = np.minimum(np.maximum.reduceat(alone, begin[:-1]) + 2, size)
    return batches[place < lines[pipeline]], lines


def closes(columns: Mapping[str, Integers]) -> Flags:
    """Tell which pipelines have a closed form for stages of any length."""
    return np.isin(columns["pipeline_schedule"], [CODES[name] for name in UNEVEN_CLOSED])


def repeats_itself(columns: Mapping[str, Integers], batches: Integers) -> Flags:
    """Tell which pipelines treat p micro-batches after p alike."""
    stages = columns["pipeline_parallel"]
    repeats = np.isin(columns["pipeline_schedule"], [CODES[name] for name in REPEATING])
    return repeats & (groups_of(columns, batches) == stages)


def distinct_pipelines(
    work: Workload, chosen: Integers, prices: Prices
) -> tuple[Integers, Integers]:
    """Find the families whose pipelines differ in anything, sends and batches included.

    Returns
    -------
    leader : ndarray of int64, shape (pipelines,)
        The first of the chosen with each.
    kind : ndarray of int64, shape (chosen,)
        Pipeline of each.
    """
    grid = work.grid
    _, sends = np.unique(prices.sends, return_inverse=True)
    batches = np.cumsum(~work.families.like_the_one_before())
    columns = {
        "batches": batches[chosen],
        "data": grid["data_parallel"][chosen],
        "stage": work.strategies.stage_key[chosen],
        "schedule": grid["pipeline_schedule"][chosen],
        "group": grid["micro_batch_group"][chosen],
        "sends": sends,
        "shards": prices.shards.row + 1,
        "number": np.arange(chosen.size),
    }
    names = tuple(columns)[:-1]
    _, kind = distinct_keys(columns, names)
    leader = np.full(int(kind.max()) + 1, chosen.size)
    np.minimum.at(leader, kind, columns["number"])
    return leader, kind


def needs_events(work: Workload) -> Flags:
    """Tell which families no closed form describes, shape (families,)."""
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
    of_layers = [part.layer is not None for part in work.parts]
    for pipeline, own in enumerate(work.keys_of_pipelines()):
        rows = slice(table.chunk_offset[pipeline], table.chunk_offset[pipeline + 1])
        layers = table.chunk_counts[rows][:, of_layers]
        found[own] = (layers == layers[0]).all()
    return found


def end_times(work: Workload, keys: KeyTables) -> dict[str, NDArray[np.float64]]:
    """Return what passes of chunks with equal layers take, each of shape (stage keys,) [s].

    By name as `perfmodel.kernels.pipeline.closed.Ends` has them.
    """
    table, found = work.compositions, np.zeros((6, work.stage_layer_key.size))
    from perfmodel.kernels.pipeline.closed import Ends

    times = pass_times(keys)
    of_layers = np.array([part.layer is not None for part in work.parts])
    for pipeline, own in enumerate(work.keys_of_pipelines()):
        first, last = table.chunk_row[table.place_offset[pipeline : pipeline + 2] - [0, 1]]
        layer = work.stage_layer_key[own]
        for column, passes in enumerate(times):
            held = table.chunk_counts[first] * of_layers
            found[column, own] = passes[layer] @ held
            for end, chunk in ((2, first), (4, last)):
                beside = table.chunk_counts[chunk] * ~of_layers
                found[end + column, own] = passes[layer] @ beside
    return dict(zip(Ends._fields, found, strict=True))


class Prices(NamedTuple):
    """Layer keys of some strategies, and what their sends and sharded parameters take."""

    layer_key: Integers
    sends: NDArray[np.float64]  # between stages [s]
    shards: Shards


def prices_of(
    work: Workload, keys: KeyTables, settings: np.record, network: Network, chosen: Integers
) -> Prices:
    """Return the `Prices` of some families of a workload."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.work import kernel_work

    strategies = work.strategies.take(chosen)
    layer_key = work.stage_layer_key[strategies["stage_key"]]
    asked = strategies, layer_key, keys, settings, network
    with kernel_work(strategies=chosen.size):
        from perfmodel.kernels.step.scheduled import boundary_sends
        from perfmodel.kernels.step.shards import shard_prices

        return Prices(layer_key, boundary_sends(*map(plain, asked)), shard_prices(*asked))


class Problem(NamedTuple):
    """Pipelines that run one by one, and what their passes take.

    Attributes
    ----------
    work : Workload
    keys : KeyTables
    settings : record of SETTINGS
    chosen : ndarray of int64, shape (n,)
        A family of the workload with each.
    prices : Prices
        Of these.
    """

    work: Workload
    keys: KeyTables
    settings: np.record
    chosen: Integers
    prices: Prices

    def part(self, rows: Integers) -> Problem:
        """Return some of them."""
        layer_key, sends, shards = self.prices
        shards = shards._replace(row=shards.row[rows])
        prices = Prices(layer_key[rows], sends[rows], shards)
        return self._replace(chosen=self.chosen[rows], prices=prices)

    def columns(self) -> dict[str, Integers]:
        """Return the fields that say which passes run in which order, each of shape (n,)."""
        return {name: self.work.grid[name][self.chosen] for name in SCHEDULED_BY}


SCHEDULED_BY = (
    *("pipeline_schedule", "pipeline_parallel", "virtual_pipeline", "micro_batch_group"),
)


def run_events(
    problem: Problem, batches: Integers, waits: Waits, bounds: bool = False, repeat: bool = True
) -> Flags:
    """Fill `waits`, a row for each of the pipelines with so many micro-batches.

    Parameters
    ----------
    problem : Problem
    batches : ndarray of int64, shape (n,)
    waits : Waits
        Result: for so many micro-batches, or for fewer and what each further one adds.
    bounds : bool
        Bound from below what has no closed form.
    repeat : bool
        Run fewer micro-batches of what repeats itself.

    Returns
    -------
    ndarray of bool, shape (n,)
        Whether a row is right: not where what does not run does not follow.

    Notes
    -----
    1F1B has a closed form for stages of any length; beyond p micro-batches it is a maximum of
    lines, and once that grows as the steepest of them does, by the time of the slowest stage for
    each, it is that line for good. Most others repeat themselves, p micro-batches
    at a time: where there are many, so few run as fill and drain the pipeline and show three
    repetitions. If everything in two of them comes later than in the one before by the same time,
    so it does in all that are left out. What is kept has long been at its most.
    """
    from perfmodel.kernels.work import expect

    columns = problem.columns()
    stages = columns["pipeline_parallel"]
    closed = closes(columns)
    left = np.zeros_like(batches)
    if repeat:
        left = np.maximum(batches // stages - FILLED, 0) * stages
        left *= repeats_itself(columns, batches)
        left[closed] = np.maximum(batches - FILLED * stages, 0)[closed]
    few = closed | bounds
    passes = stages * columns["virtual_pipeline"] * np.where(few, 1, batches - left)
    expect(pipeline_passes=float(passes.sum()) / 4.0)
    right = np.ones(batches.size, bool)
    rows = np.flatnonzero(closed)
    if rows.size:
        right[rows] = run_closed(problem, rows, (batches - left)[rows], left[rows] > 0, waits)
    rows = np.flatnonzero(~closed)
    run = (batches - left)[rows]
    right[rows] = run_orders(problem, rows, run, left[rows] > 0, waits, bounds)
    return right


UNEVEN_CLOSED = ("1f1b",)
"""Schedules with a closed form for stages of any length."""
REPEATING = ("interleaved", "zb_h1")
"""Schedules in which p micro-batches after p are treated alike, however many there are."""
FILLED = 5
"""Micro-batches per stage that fill a pipeline, drain it, and show what it repeats."""


class Blocks(NamedTuple):
    """Strategies that run in one call each."""

    kinds: Mapping[str, Integers]  # what the strategies of a block share, by kind
    rows: Iterable[tuple[int, Integers]]  # kind of a block, and places of its strategies


def blocks_of(
    problem: Problem, rows: Integers, batches: Integers, ordered_by: Sequence[str]
) -> Blocks:
    """Return blocks of strategies with one pipeline and one order of passes.

    Parameters
    ----------
    problem : Problem
    rows, batches : ndarray of int64, shape (n,)
        Places in `problem.chosen`, and micro-batches of each.
    ordered_by : sequence of str
        Of `ORDERED_BY`, what counts.
    """
    part = problem.part(rows)
    stage_key = problem.work.strategies.stage_key[part.chosen]
    columns = part.columns()
    columns["group"] = groups_of(columns, batches)
    columns["pipeline"], columns["batches"] = problem.work.stage_pipeline[stage_key], batches
    kinds, kind = distinct_keys(columns, ("pipeline", *ordered_by))
    # Strategies that share work lie together.
    alike = np.split(np.lexsort((stage_key, kind)), np.cumsum(np.bincount(kind))[:-1])
    blocks = (
        (number, own[start : start + TOGETHER])
        for number, own in enumerate(alike)
        for start in range(0, own.size, TOGETHER)
    )
    return Blocks(kinds, blocks)


def run_closed(
    problem: Problem, rows: Integers, batches: Integers, more: Flags, waits: Waits
) -> Flags:
    """Fill `rows` of the result for strategies that run 1F1B; takes what `run_orders` takes."""
    from perfmodel.kernels.step import scheduled as kernel
    from perfmodel.kernels.work import kernel_work

    right = np.ones(rows.size, bool)
    kinds, blocks = blocks_of(problem, rows, batches, ORDERED_BY[:2])
    for number, own in blocks:
        layer_key, sends, shards = problem.part(rows[own]).prices
        chunks = chunks_of(problem.work, int(kinds["pipeline"][number]))
        with kernel_work(pipeline_passes=chunks.row.size * own.size):
            right[own] = kernel.close_one_f_one_b(
                layer_key,
                batches[own],
                more[own],
                sends,
                shards,
                problem.keys,
                chunks,
                rows[own],
                waits,
            )
    return right


def run_orders(
    problem: Problem,
    rows: Integers,
    batches: Integers,
    more: Flags,
    waits: Waits,
    bounds: bool = False,
) -> Flags:
    """Run some of a problem's strategies, pass by pass.

    Parameters
    ----------
    problem : Problem
    rows, batches : ndarray of int64, shape (n,)
        Places in `problem.chosen`, and micro-batches of each that run.
    more : ndarray of bool, shape (n,)
        Whether there may be more.
    waits : Waits
        Result, in `rows`.
    bounds : bool
        Bound from below what they take.

    Returns
    -------
    ndarray of bool, shape (n,)
        Whether a row is right: not where what does not run does not follow.
    """
    from perfmodel.kernels.pipeline.repetition import SHOWN, repetitions
    from perfmodel.kernels.step import scheduled as kernel
    from perfmodel.kernels.work import kernel_work

    right = np.ones(rows.size, bool)
    if not rows.size:
        return right
    work = problem.work
    kinds, blocks = blocks_of(problem, rows, batches, ORDERED_BY)
    for number, own in blocks:
        layer_key, sends, shards = problem.part(rows[own]).prices
        name = list(SCHEDULE_FACTS)[int(kinds["pipeline_schedule"][number])]
        ranks, virtual = (int(kinds[it][number]) for it in ORDERED_BY[1:3])
        count, group = int(kinds["batches"][number]), int(kinds["group"][number])
        with kernel_work(pipeline_passes=3 * ranks * virtual * count * (2 + own.size // 4)):
            order, program = work.grid.table or named_pipeline(name, ranks, count, virtual, group)
            steady = np.empty((SHOWN, 0), np.int64)
            if more[own].any() and not bounds:
                steady = repetitions(order, program, ranks)
            right[own] = kernel.run_schedules(
                order,
                program,
                steady,
                more[own],
                layer_key,
                sends,
                shards,
                problem.keys,
                chunks_of(work, int(kinds["pipeline"][number])),
                sends_are_hidden(name, problem.settings),
                bounds,
                rows[own],
                waits,
            )
    return right


ORDERED_BY = ("pipeline_schedule", "pipeline_parallel", "virtual_pipeline", "batches", "group")
"""What the order of a pipeline's passes depends on."""
BLOCKING = ("gpipe", "1f1b")
"""Schedules whose sends nothing runs beside, whatever the software does in others."""


def sends_are_hidden(schedule: str, settings: np.record) -> bool:
    """Tell whether sends between stages run beside passes; otherwise they keep their sender."""
    return bool(settings.overlap_pipeline) and schedule not in BLOCKING


def groups_of(columns: Mapping[str, Integers], batches: Integers) -> Integers:
    """Return how many micro-batches of every strategy go through one chunk before the next.

    Parameters
    ----------
    columns : mapping of str to ndarray of int64, shape (strategies,)
        The fields `SCHEDULED_BY`.
    batches : ndarray of int64, shape (strategies,)
        Micro-batches of each.

    Where nothing is said: p, or what makes PyTorch's rounds of p and more alike
    (`ScheduleInterleavedZeroBubble`).
    """
    stages = columns["pipeline_parallel"]
    group = np.where(columns["micro_batch_group"] > 0, columns["micro_batch_group"], stages)
    rounds = np.maximum(batches // stages, 1)
    zero_bubble = columns["pipeline_schedule"] == CODES["interleaved_zero_bubble"]
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
