"""The best of many strategies, found without keeping the others.

Strategies are closed as in `perfmodel.kernels.step.close`, family by family. One that comes among
the best so far leaves its number; all others are counted, and gone. A family that is sure to be
worse than the best so far is not closed at all: no step is shorter than the work of its slowest
stage, and no device does more than the tokens of a micro-batch in that time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.step.close import (
    batches_at,
    new_scratch,
    parks,
    same_placement,
    shared_costs,
    write_strategy,
)
from perfmodel.kernels.step.memory import Batches
from perfmodel.kernels.step.peaks import holds_alike, memoised_memory
from perfmodel.kernels.step.placement import data_groups
from perfmodel.kernels.step.tables import ROW, TWO_COPIES

SLACK = 1e-9
"""By which a bound may be off through roundings, relative."""

# What is counted.
LACKING = 0  # strategies in a precision that the device lacks
FITTING = 1  # in memory
RULED_OUT = 2  # by a bound
BEST = 3  # numbers in `Ranking.best`,
FRONT = 4  # in `Ranking.front`
PENDING = 5  # and in `Ranking.pending`, more than there is room for included
COUNTS = 6


class Ranking(NamedTuple):
    """What strategies are ranked by, and the best so far.

    Costs are values of variables, with their sign turned where larger is better. The first one is
    what strategies are ranked by; the others, if any, are those of a front: strategies that no
    other one is as good as in all of them.
    """

    variables: np.ndarray  # int64[objectives]: of ROW
    signs: np.ndarray  # float64[objectives]: 1, or -1 where larger is better
    limits: np.ndarray  # float64[3]: memory of the device, its host and its drives [B]
    judged: int  # variable of ROW that has to fit in the first of them
    fitting: bool  # what does not fit is out
    cost: np.ndarray  # float64[top]: of the best, lowest first
    best: np.ndarray  # int64[top]: their numbers
    front_cost: np.ndarray  # float64[most, objectives]
    front: np.ndarray  # int64[most]
    pending: np.ndarray  # int64[most]: might be among them
    counts: np.ndarray  # int64[COUNTS]


@jit
def rank_strategies(
    families,
    batch,
    bounded,
    keys,
    stages,
    waits,
    shards,
    settings,
    stream_device,
    network,
    ranking,
):
    """Close strategies, and keep the numbers of the best.

    Parameters
    ----------
    families, batch, keys, stages, waits, shards, settings, stream_device, network
        As of `perfmodel.kernels.step.close.close_strategies`.
    bounded : bool
        `waits` are no more than lower bounds: strategies that have them are pending where they
        might be among the best.
    ranking : Ranking
        Of other strategies before; added to.
    """
    if families.size > 0:
        tables = keys, stages, waits, shards, settings, stream_device, network
        cost = np.zeros(ranking.signs.size)
        _rank_all(families, batch, bounded, tables, new_scratch(stages), cost, ranking)


@jit_lean
def _rank_all(families, batch, bounded, tables, scratch, cost, ranking):
    """Do what `rank_strategies` does with its `tables`; costs of a strategy are overwritten."""
    keys, stages, waits, shards, settings, _, network = tables
    row = scratch.row
    counts = ranking.counts
    groups = data_groups(families[0], network)
    for at in range(families.size):
        strategy = families[at]
        if at > 0 and not same_placement(strategy, families[at - 1]):
            groups = data_groups(strategy, network)
        of = stages.of[strategy.stage_key]
        key = keys.of[of.layer_key]
        size = strategy.behind - strategy.first
        if not key.peak > 0.0:  # the device lacks the precision
            counts[LACKING] += size
            continue
        sizes, slot = (key.weight_bytes, key.boundary_bytes), shards.row[at]
        write_bounds(strategy, batch, key, stages, settings, row)
        write_costs(row, ranking, cost)
        promising = might_rank(cost, ranking)
        if not promising:
            counts[RULED_OUT] += size
        last, before = batches_at(strategy, batch, size - 1), Batches(0, -1)
        fits, closed = False, False
        for one in range(size):
            batches = batches_at(strategy, batch, one)
            if one == 0 or not holds_alike(strategy, batches, before, stages, waits, settings):
                memoised_memory(
                    strategy, batches, stages, waits, groups, sizes, settings, row, scratch.peaks
                )
                fits = in_memory(row, ranking)
                alike = not promising and strategy.waits < 0
                if alike and holds_alike(strategy, batches, last, stages, waits, settings):
                    counts[FITTING] += (size - one) * fits  # so do all between
                    break
            before = batches
            counts[FITTING] += fits
            if not promising or (ranking.fitting and not fits):
                continue
            if not closed or parks(strategy):  # what is parked depends on how many there are
                closed = True
                shared = shared_costs(
                    strategy, batches.micro, key, slot, groups, tables, scratch.memo
                )
            sequences, number = batch[strategy.first + one], strategy.number + one
            write_strategy(strategy, batches, sequences, shared, key, stages, waits, settings, row)
            write_costs(row, ranking, cost)
            if bounded and strategy.waits >= 0:
                if might_rank(cost, ranking):
                    leave_pending(number, ranking)
                continue
            keep_best(number, cost[0], ranking)
            if cost.size > 1:
                keep_front(number, cost, ranking)


@jit_lean
def in_memory(row, ranking):
    """Tell whether a strategy fits in the memory of its device, host and drives."""
    limits = ranking.limits
    return (
        row[ranking.judged] <= limits[0]
        and row[ROW.memory_host] <= limits[1]
        and row[ROW.memory_nvme] <= limits[2]
    )


@jit_lean
def write_bounds(strategy, batch, key, stages, settings, row):
    """Write what no strategy of a family does better than.

    A step takes at least the work of any of its stages for all micro-batches (half of them where
    either copy of the model takes half). Of other variables no bound is known.

    Parameters
    ----------
    strategy : record of STRATEGY
    batch : int64, shape (n,)
    key : record of KEY
    stages : Stages
    settings : record of SETTINGS
    row : float64[len(ROW)]
        Result: 0 of times and bytes but for the step, infinite where larger is better.
    """
    of, busy = stages.of[strategy.stage_key], 0.0
    for number in range(of.first, of.behind):
        busy = max(busy, stages.sums[number].busy)
    if strategy.schedule & TWO_COPIES and strategy.pipeline_parallel > 1:
        busy *= 0.5
    busy *= 1.0 - SLACK
    each = strategy.data_parallel * strategy.micro_batch_size
    for variable in range(row.size):
        row[variable] = 0.0
    row[ROW.step_time] = batch[strategy.first] // each * busy
    rate = each * strategy.sequence_length * (1.0 - strategy.padding) / (busy * settings.devices)
    row[ROW.tokens_per_second_per_device] = rate
    row[ROW.model_flops_utilization] = rate * key.flops_causal / key.peak
    row[ROW.model_flops_utilization_non_causal] = rate * key.flops_non_causal / key.peak
    row[ROW.hardware_flops_utilization] = np.inf


@jit_lean
def write_costs(row, ranking, cost):
    """Write what counts of a strategy's variables."""
    for objective in range(cost.size):
        cost[objective] = ranking.signs[objective] * row[ranking.variables[objective]]


@jit_lean
def might_rank(cost, ranking):
    """Tell whether a strategy of such costs, or of higher ones, may be among the best."""
    top = ranking.cost.size
    if ranking.counts[BEST] < top or cost[0] <= ranking.cost[top - 1]:
        return True
    return cost.size > 1 and not beaten(cost, ranking, True)


@jit_lean
def beaten(cost, ranking, truly):
    """Tell whether one of the front is as good in everything, and (`truly`) better in anything."""
    for other in range(ranking.counts[FRONT]):
        worse, better = False, False
        for objective in range(1, cost.size):
            found = ranking.front_cost[other, objective]
            worse = worse or found > cost[objective]
            better = better or found < cost[objective]
        if not worse and (better or not truly):
            return True
    return False


@jit_lean
def leave_pending(number, ranking):
    """Note a strategy that might be among the best."""
    if ranking.counts[PENDING] < ranking.pending.size:
        ranking.pending[ranking.counts[PENDING]] = number
    ranking.counts[PENDING] += 1


@jit_lean
def keep_best(number, cost, ranking):
    """Put a strategy where it belongs among the best; of equal ones the first counts."""
    top, known = ranking.cost.size, ranking.counts[BEST]
    place = known
    while place > 0 and (
        cost < ranking.cost[place - 1]
        or (cost == ranking.cost[place - 1] and number < ranking.best[place - 1])
    ):
        place -= 1
    if place >= top:
        return
    known = min(known + 1, top)
    for one in range(known - 1, place, -1):
        ranking.cost[one], ranking.best[one] = ranking.cost[one - 1], ranking.best[one - 1]
    ranking.cost[place], ranking.best[place] = cost, number
    ranking.counts[BEST] = known


@jit_lean
def keep_front(number, cost, ranking):
    """Add a strategy to the front unless it is beaten, and drop what it beats."""
    if beaten(cost, ranking, True):
        return
    kept = 0
    for other in range(ranking.counts[FRONT]):
        worse, alike = False, True
        for objective in range(1, cost.size):
            found = ranking.front_cost[other, objective]
            worse = worse or found < cost[objective]
            alike = alike and found == cost[objective]
        if alike and ranking.front[other] < number:
            return  # as good, and earlier; nothing was dropped
        if alike or not worse:
            continue
        for objective in range(1, cost.size):
            ranking.front_cost[kept, objective] = ranking.front_cost[other, objective]
        ranking.front[kept] = ranking.front[other]
        kept += 1
    if kept == ranking.front.size:
        ranking.counts[PENDING] = ranking.pending.size + 1  # no room
        return
    for objective in range(1, cost.size):
        ranking.front_cost[kept, objective] = cost[objective]
    ranking.front[kept] = number
    ranking.counts[FRONT] = kept + 1
