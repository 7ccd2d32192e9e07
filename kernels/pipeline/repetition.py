"""Pipelines that repeat themselves: what many micro-batches take, from a run of fewer.

Once a pipeline is full, its ranks do the same again, some micro-batches later. All times are sums
and maxima of what is given: if everything in two such repetitions came later than in the one before
by the same time, all that follows does so in every further one, as long as it waits for nothing
older than these.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.pipeline.link import NONE

SHOWN = 3
"""Repetitions that are compared."""
SAME = 1e-13
"""Differences that are roundings, relative to the time they are measured at."""


@jit
def repetitions(order, program, period):
    """Return the last repetitions of an order that fills its pipeline for long enough.

    Parameters
    ----------
    order : Order
    program : Program
        The same, linked.
    period : int
        Micro-batches of a repetition.

    Returns
    -------
    int64[SHOWN, n]
        Places in the program of all actions of the last repetition, and of the same ones in those
        before it. Without any where the order does not repeat itself so often, or something in the
        last one or behind it waits for what is older.
    """
    ranks = order.first.size - 1
    end, window = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    total = 0
    for rank in range(ranks):
        first, behind = order.first[rank], order.first[rank + 1]
        actions = (behind - first) * period
        window[rank] = actions // order.micro_batches
        exact = window[rank] * order.micro_batches == actions
        end[rank] = _last_alike(order, first, behind, window[rank], period)
        if not exact or end[rank] < 0:
            return np.empty((SHOWN, 0), np.int64)
        total += window[rank]
    place = np.empty(order.kind.size, np.int64)
    for at in range(place.size):
        place[program.action[at]] = at
    for rank in range(ranks):
        for action in range(end[rank] - window[rank], order.first[rank + 1]):
            source = program.needs[place[action]]
            if source == NONE:
                continue
            needed, other = program.action[source], program.rank[source]
            old = needed < end[other] - SHOWN * window[other]
            if old or (action < end[rank] and needed >= end[other]):
                return np.empty((SHOWN, 0), np.int64)
    found = np.empty((SHOWN, total), np.int64)
    at = 0
    for rank in range(ranks):
        for back in range(1, window[rank] + 1):
            for before in range(SHOWN):
                found[before, at] = place[end[rank] - back - before * window[rank]]
            at += 1
    return found


@jit_lean
def _last_alike(order, first, behind, window, period):
    """Return where the last `SHOWN` equal windows of a rank end, or -1."""
    alike = 0
    for action in range(behind - 1, first + window - 1, -1):
        before = action - window
        same = order.kind[action] == order.kind[before]
        same = same and order.stage[action] == order.stage[before]
        same = same and order.paired[action] == order.paired[before]
        same = same and order.micro_batch[action] == order.micro_batch[before] + period
        alike = alike + 1 if same else 0
        if alike == (SHOWN - 1) * window:
            return action + alike
    return -1


@jit_lean
def growths(steady, run, growth, apart):
    """Write by how much every case of a run grew in each repetition [s]; NaN where it did not.

    Parameters
    ----------
    steady : int64[SHOWN, n]
        Of `repetitions`.
    run : Run
        Done.
    growth : float64[BLOCK]
        Result.
    apart : float64[BLOCK]
        Overwritten.
    """
    cases, actions = growth.size, steady.shape[1]
    for one in range(cases):
        apart[one] = 0.0
        growth[one] = np.nan
    if actions == 0:
        return
    last, before = steady[0, 0], steady[1, 0]
    for one in range(cases):
        growth[one] = run.arrived[last, one] - run.arrived[before, one]
    for at in range(actions):
        for shown in range(SHOWN - 1):
            last, before = steady[shown, at], steady[shown + 1, at]
            for one in range(cases):
                grown = run.arrived[last, one] - run.arrived[before, one]
                apart[one] = max(apart[one], abs(grown - growth[one]))
    for one in range(cases):
        if apart[one] > SAME * run.makespan[one]:
            growth[one] = np.nan
