"""Strategies whose pipelines no closed form describes: their passes run one by one.

The closing pass (`perfmodel.kernels.step.close`) knows GPipe, 1F1B and interleaved 1F1B in closed
form, of chunks with equal layers, whatever embedding and output add to the first and the last one.
All others run in `perfmodel.kernels.pipeline`, each distinct order once per distinct work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Integers, distinct_keys
from perfmodel.base.pipelines import ROUNDS, SCHEDULE_FACTS, schedule_facts
from perfmodel.operations.priced import distinct_rows
from perfmodel.strategy.grid import spread
from perfmodel.strategy.pipelines import Pipeline, named_pipeline
from perfmodel.training.workload import Workload, together

if TYPE_CHECKING:
    from perfmodel.kernels.collective.table import Network
    from perfmodel.kernels.pipeline.actions import Order
    from perfmodel.kernels.step.scheduled import Chunks, Shards
    from perfmodel.kernels.step.tables import KeyTables, Waits

TOGETHER = 8192
"""Strategies of one order that run in one call: bounds what their passes take in memory."""


def pipeline_waits(
    work: Workload, keys: KeyTables, settings: np.record, network: Network, bounds: bool = False
) -> Waits:
    """Run the passes of all strategies that need it; or bound what they take from below.

    Which rows of the result are a family's is written into the workload's strategies.
    """
    return next(waits_on_rows(work, [Priced(keys, settings, network)], bounds))


class Priced(NamedTuple):
    """What a workload costs on one row of hardware."""

    keys: KeyTables
    settings: np.record
    network: Network


def waits_on_rows(work: Workload, rows: Sequence[Priced], bounds: bool = False) -> Iterator[Waits]:
    """Yield `pipeline_waits` on rows of hardware, all run together.

    The workload's strategies say which lines are theirs until the next one is asked for. Software
    does the same on all rows.
    """
    from perfmodel.kernels.step.tables import no_waits

    chosen = np.flatnonzero(needs_events(work))
    if not chosen.size:
        yield from (no_waits() for _ in rows)
        return
    prices = [prices_of(work, *row, chosen) for row in rows]
    leader, kind = distinct_pipelines(work, chosen, prices)
    first = problem_of(work, rows, chosen, prices).part(places_on_rows(leader, chosen, rows))
    begin, lines = np.zeros((2, leader.size * len(rows)), np.int64)
    waits, left = no_waits(0, int(np.diff(work.stage_offset).max())), np.arange(begin.size)
    for filled in FILLED:  # what has not settled by then runs for longer
        batches, lines[left] = lines_of(first.part(left), filled)
        begin[left] = waits.of.size + np.cumsum(lines[left]) - lines[left]
        pipeline = np.repeat(left, lines[left])
        more = no_waits(batches.size, waits.flight.shape[1])
        right = run_events(first.part(pipeline), batches, more, bounds, filled)
        found = np.concatenate((waits.of, more.of)).view(np.recarray)
        waits = waits._replace(of=found, flight=np.concatenate((waits.flight, more.flight)))
        left = np.unique(pipeline[~right])
        if not left.size:
            break
    for start, own in zip(begin.reshape(len(rows), -1), lines.reshape(len(rows), -1), strict=True):
        to = np.cumsum(own) - own
        held = np.arange(int(own.sum())) + np.repeat(start - to, own)
        work.strategies.waits[chosen], work.strategies.lines[chosen] = to[kind], own[kind]
        of = waits.of.take(held).view(np.recarray)
        yield waits._replace(of=of, flight=waits.flight.take(held, axis=0))


def places_on_rows(leader: Integers, chosen: Integers, rows: Sequence[Any]) -> Integers:
    """Return where the leaders stand among the chosen of all rows of hardware."""
    return (np.arange(len(rows))[:, None] * chosen.size + leader).ravel()


def problem_of(
    work: Workload, rows: Sequence[Priced], chosen: Integers, prices: Sequence[Prices]
) -> Problem:
    """Return the pipelines of all rows of hardware, one row behind another."""
    count = len(work.keys)
    layer_key = np.concatenate([it.layer_key + i * count for i, it in enumerate(prices)])
    parts = together([it.shards.parts for it in prices])
    size = prices[0].shards.parts.shape[0]
    row = [np.where(it.shards.row < 0, -1, it.shards.row + i * size) for i, it in enumerate(prices)]
    sends = np.concatenate([it.sends for it in prices])
    stacked = Prices(
        layer_key, sends, prices[0].shards._replace(row=np.concatenate(row), parts=parts)
    )
    tables = together([row.keys.parts for row in rows])
    return Problem(work, tables, rows[0].settings, np.tile(chosen, len(rows)), stacked)


def lines_of(problem: Problem, filled: int) -> tuple[Integers, Integers]:
    """Return the micro-batches with which pipelines have to run, and how many there are of each.

    Those of all strategies of their families, ascending, but for what follows from fewer: the last
    one, with at least `filled` per stage, stands for all further ones.
    """
    ends = np.cumsum(problem.work.families.size[problem.chosen])
    # In blocks, whose columns the system need not give new memory for.
    cuts = np.searchsorted(ends, np.arange(STRATEGIES, ends[-1], STRATEGIES))
    parts = np.split(np.arange(ends.size), np.unique(cuts))
    found = [_lines_of(problem.part(rows), filled) for rows in parts if rows.size]
    batches, lines = (np.concatenate(each) for each in zip(*found, strict=True))
    return batches, lines


def _lines_of(problem: Problem, filled: int) -> tuple[Integers, Integers]:
    batches, begin = problem.work.families.micro_batches(problem.chosen)
    size = np.diff(begin)
    columns = {name: np.repeat(values, size) for name, values in problem.columns().items()}
    place = np.arange(batches.size) - np.repeat(begin[:-1], size)
    place[goes_on(columns, batches, filled)] = -1
    lines = np.minimum(np.maximum.reduceat(place, begin[:-1]) + 2, size)
    return batches[spread(begin[:-1], lines)], lines


STRATEGIES = 1 << 18
"""So many are looked at together, about."""


def goes_on(columns: Mapping[str, Integers], batches: Integers, filled: int) -> Flags:
    """Tell which pipelines say of `filled` micro-batches per stage what all further ones add."""
    stages = columns["pipeline_parallel"]
    alike = repeats_itself(columns, batches) & (batches % stages == 0)
    return (batches >= filled * stages) & (closes(columns) | alike)


def closes(columns: Mapping[str, Integers]) -> Flags:
    """Tell which pipelines have a closed form for stages of any length."""
    found: Flags = schedule_facts("closed_if_uneven")[columns["pipeline_schedule"]]
    return found


def repeats_itself(columns: Mapping[str, Integers], batches: Integers) -> Flags:
    """Tell which pipelines treat p micro-batches after p alike."""
    stages = columns["pipeline_parallel"]
    repeats: Flags = schedule_facts("repeats")[columns["pipeline_schedule"]]
    return repeats & (groups_of(columns, batches) == stages)


def distinct_pipelines(
    work: Workload, chosen: Integers, prices: Sequence[Prices]
) -> tuple[Integers, Integers]:
    """Find the families whose pipelines differ in anything, sends on any row and batches included.

    Returns
    -------
    leader : ndarray of int64, shape (pipelines,)
        The first of the chosen with each.
    kind : ndarray of int64, shape (chosen,)
        Pipeline of each.
    """
    grid = work.grid
    _, sends = distinct_rows([row.sends for row in prices])
    batches = np.cumsum(~work.families.like_the_one_before())
    columns = {
        "batches": batches[chosen],
        "data": grid["data_parallel"][chosen],
        "stage": work.strategies.stage_key[chosen],
        "schedule": grid["pipeline_schedule"][chosen],
        "group": grid["micro_batch_group"][chosen],
        "sends": sends,
        "shards": prices[0].shards.row + 1,
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
    closed = schedule_facts("closed")[grid["pipeline_schedule"]]
    group = grid["micro_batch_group"]
    if group.any() or not closed.all():
        plain = (group == 0) | (group == grid["pipeline_parallel"])
        closed &= plain | (grid["virtual_pipeline"] == 1)
    return pipelined & ~(closed & evenly_laid_out(work)[work.strategies.stage_key])


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


class Prices(NamedTuple):
    """Layer keys of some strategies, and what their sends and sharded parameters take."""

    layer_key: Integers
    sends: NDArray[np.float64]  # between stages [s]
    shards: Shards


def prices_of(
    work: Workload, keys: KeyTables, settings: np.record, network: Network, chosen: Integers
) -> Prices:
    """Return the `Prices` of some families of a workload."""
    from perfmodel.kernels.work import kernel_work

    strategies = work.strategies.take(chosen)
    layer_key = work.stage_layer_key[strategies["stage_key"]]
    asked = strategies, layer_key, keys, settings, network
    with kernel_work(strategies=chosen.size):
        from perfmodel.kernels.step.scheduled import send_and_shard_prices

        sends = np.empty(chosen.size)
        shards = send_and_shard_prices(*asked, sends)
        return Prices(layer_key, sends, shards)


class Problem(NamedTuple):
    """Pipelines that run one by one, and what their passes take.

    Attributes
    ----------
    work : Workload
    parts : record array of PART, shape (layer keys, parts)
        Of all rows of hardware.
    settings : record of SETTINGS
    chosen : ndarray of int64, shape (n,)
        A family of the workload with each.
    prices : Prices
        Of these.
    """

    work: Workload
    parts: NDArray[Any]
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
    problem: Problem, batches: Integers, waits: Waits, bounds: bool, filled: int
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
    filled : int
        Micro-batches per stage that run, at most, of what repeats itself.

    Returns
    -------
    ndarray of bool, shape (n,)
        Whether a row is right: not where what does not run does not follow.

    Notes
    -----
    1F1B has a closed form for stages of any length; beyond p micro-batches it is a maximum of
    lines, and once that grows as the steepest of them does, by the time of the slowest stage for
    each, it is that line for good. Most others repeat themselves, p micro-batches
    at a time: where there are many, so few run as fill and drain the pipeline and show two
    repetitions. If all that is waited for comes later in one of them than in the one before by the
    same time, so it does in all that are left out. What is kept has long been at its most.
    """
    from perfmodel.kernels.work import expect

    columns = problem.columns()
    stages = columns["pipeline_parallel"]
    closed = closes(columns)
    left = np.maximum(batches // stages - filled, 0) * stages
    left *= repeats_itself(columns, batches)
    left[closed] = np.maximum(batches - filled * stages, 0)[closed]
    more = (left > 0) | goes_on(columns, batches, filled)
    few = closed | bounds
    passes = stages * columns["virtual_pipeline"] * np.where(few, 1, batches - left)
    expect(pipeline_passes=float(passes.sum()) / 4.0)
    right = np.ones(batches.size, bool)
    rows = np.flatnonzero(closed)
    if rows.size:
        right[rows] = run_closed(problem, rows, (batches - left)[rows], more[rows], waits)
    rows = np.flatnonzero(~closed)
    run = (batches - left)[rows]
    right[rows] = run_orders(problem, rows, run, more[rows], waits, bounds)
    return right


FILLED = (4, 16, 1 << 40)
"""Micro-batches per stage that fill a pipeline, drain it, and show what it repeats; those that run
where that does not show; and in the end all."""


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
        prices, count = problem.part(rows[own]).prices, batches[own]
        chunks = chunks_of(problem.work, int(kinds["pipeline"][number]))
        stages = chunks.row.size
        # Work is shared by strategies that differ in nothing but micro-batches or sends.
        shared, leader = distinct_cases(prices.layer_key, prices.shards.row)
        case_of, first = distinct_cases(shared, count, prices.sends)
        with kernel_work(pipeline_passes=stages * own.size):
            work = work_of_prices(problem, prices, leader, np.arange(stages), chunks)
            asked = shared[first], count[first], prices.sends[first]
            makespan, growth = kernel.one_f_one_b_times(*work, *asked)
        ahead = np.zeros(waits.flight.shape[1], np.int64)  # micro-batches ahead of a first backward
        ahead[chunks.stage_row[::-1]] = np.arange(1, stages + 1)
        answer = Answer(makespan[:, case_of], growth[:, case_of], count, 1.0, 1.0)
        right[own] = write_answer(waits, rows[own], more[own], answer)
        waits.flight[rows[own]] = np.minimum(count[:, None], ahead)
    return right


class Answer(NamedTuple):
    """What pipelines come to."""

    makespan: NDArray[np.float64]  # [2, n]: without sends, and with them [s]
    growth: NDArray[np.float64]  # [2, n]: what each further micro-batch adds; NaN: not known [s]
    batches: Integers | int  # with which they ran
    heads: float  # micro-batches that keep their logits at most
    alone: float  # share of passes that do not run in pairs


def write_answer(waits: Waits, rows: Integers, more: Flags, answer: Answer) -> Flags:
    """Write rows of `Waits`, and tell which are right: all but where `more` does not add alike."""
    wait = np.zeros(rows.size, waits.of.dtype)
    wait["makespan"], wait["with_sends"] = answer.makespan
    wait["batches"], wait["heads"], wait["alone"] = answer.batches, answer.heads, answer.alone
    growth = np.where(more, answer.growth, 0.0)
    wait["growth"], wait["growth_with_sends"] = growth
    waits.of[rows] = wait
    return (growth[0] >= 0.0) & (growth[1] >= 0.0)  # neither is NaN


def distinct_cases(*columns: NDArray[Any]) -> tuple[Integers, Integers]:
    """Find the rows that differ in some columns: which each one is, and the first of each."""
    code = np.zeros(columns[0].size, np.int64)
    for column in columns:
        values, rank = np.unique(column, return_inverse=True)
        code = code * values.size + rank
    _, first, case_of = np.unique(code, return_index=True, return_inverse=True)
    return case_of, first


def work_of_prices(
    problem: Problem, prices: Prices, first: Integers, rank_of: Integers, chunks: Chunks
) -> tuple[NDArray[np.float64], Integers]:
    """Return `work_of_cases` of some of these."""
    from perfmodel.kernels.step.scheduled import work_of_cases

    parts, shards = problem.parts[prices.layer_key[first]], prices.shards
    return work_of_cases(rank_of, parts, shards.row[first], chunks, shards)


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
    from perfmodel.kernels.work import kernel_work

    right = np.ones(rows.size, bool)
    kinds, blocks = blocks_of(problem, rows, batches, ORDERED_BY)
    for number, own in blocks:
        name = list(SCHEDULE_FACTS)[int(kinds["pipeline_schedule"][number])]
        ranks, virtual = (int(kinds[it][number]) for it in ORDERED_BY[1:3])
        count, group = int(kinds["batches"][number]), int(kinds["group"][number])
        chunks = chunks_of(problem.work, int(kinds["pipeline"][number]))
        prices = problem.part(rows[own]).prices
        case_of, first = distinct_cases(prices.layer_key, prices.shards.row, prices.sends)
        with kernel_work(pipeline_passes=3 * ranks * virtual * count * (2 + first.size // 4)):
            from perfmodel.kernels.step.scheduled import alone_passes, flights, heads_in_flight

            pipeline = problem.work.grid.table or named_pipeline(name, ranks, count, virtual, group)
            order = pipeline.order
            work = work_of_prices(problem, prices, first, order.rank_of, chunks)
            keeps = 0.0 if sends_are_hidden(name, problem.settings) else 1.0
            sends, repeats = prices.sends[first], bool(more[own].any())
            if bounds:
                makespan, growth = bounds_of(order, *work)
            else:
                makespan, growth = run_cases(pipeline, *work, sends, keeps, repeats)
            growth /= ranks
            parts = problem.parts[prices.layer_key[first]]
            flight = flights(order, chunks, parts, waits.flight.shape[1])
            about = order.micro_batches, heads_in_flight(order), alone_passes(order)
        answer = Answer(makespan[:, case_of], growth[:, case_of], *about)
        right[own] = write_answer(waits, rows[own], more[own], answer)
        waits.flight[rows[own]] = flight[case_of]
    return right


def run_cases(
    pipeline: Pipeline,
    work: NDArray[np.float64],
    work_of: Integers,
    sends: NDArray[np.float64],
    keeps: float,
    repeats: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how long a pipeline takes, and what repetitions add, each float64[2, cases] [s].

    Parameters
    ----------
    pipeline : Pipeline
    work, work_of
        Of `perfmodel.kernels.step.scheduled.work_of_cases`.
    sends, keeps
        As of `perfmodel.kernels.pipeline.paced.paced_makespans`.
    repeats : bool
        It repeats itself, p micro-batches at a time.
    """
    from perfmodel.kernels._jit import compiling
    from perfmodel.kernels.pipeline.paced import (
        makespans_of_all,
        paced_makespans,
        repetitions,
        steps_of,
    )

    order, program = pipeline
    steady = repetitions(order, program, order.first.size - 1) if repeats else None
    kinds, works, cases = work.shape
    row_of = np.arange(kinds)[:, None] * works + work_of
    steps = steps_of(program, row_of, steady)
    makespans = paced_makespans if compiling() else makespans_of_all
    return makespans(*steps, work.reshape(-1, cases), sends, keeps)


def bounds_of(
    order: Order, work: NDArray[np.float64], work_of: Integers
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the same, each at least."""
    from perfmodel.kernels.step.scheduled import least_makespans

    least, growth = least_makespans(order, work[:, work_of])
    return np.stack((least, least)), np.stack((growth, growth))


ORDERED_BY = ("pipeline_schedule", "pipeline_parallel", "virtual_pipeline", "batches", "group")
"""What the order of a pipeline's passes depends on."""


def sends_are_hidden(schedule: str, settings: np.record) -> bool:
    """Tell whether sends between stages run beside passes; otherwise they keep their sender."""
    return bool(settings.overlap_pipeline) and not SCHEDULE_FACTS[schedule].blocking_sends


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
    in_rounds = (schedule_facts("groups") == ROUNDS)[columns["pipeline_schedule"]]
    return np.where(in_rounds, batches // rounds, group)


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
