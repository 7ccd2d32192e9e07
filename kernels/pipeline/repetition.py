"""Pipelines that repeat themselves: what many micro-batches take, from a run of fewer.

Once a pipeline is full, its ranks do the same again, some micro-batches later. All times are sums
and maxima of what is given: if all that a repetition and what follows wait for came later, by the
same time, than it did for the repetition before, then everything in them does in every further one.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.pipeline.actions import Order
from perfmodel.kernels.pipeline.link import NONE, Program

SAME = 1e-13
"""Differences that are roundings, relative to the time they are measured at."""


def repetitions(order: Order, program: Program, period: int) -> np.ndarray:
    """Return what the last repetition of an order waits for, which fills its pipeline long enough.

    Parameters
    ----------
    order : Order
    program : Program
        The same, linked.
    period : int
        Micro-batches of a repetition.

    Returns
    -------
    int64[2, n]
        Places in the program of actions of the last repetition which a further one would wait for,
        and of the same ones in the repetition before, for which the last one waits, or what is
        behind it. Without any where the order does not repeat itself so often.
    """
    none = np.empty((2, 0), np.int64)
    sizes, actions = np.diff(order.first), np.arange(order.kind.size)
    rank = np.repeat(np.arange(sizes.size), sizes)
    window = sizes * period // order.micro_batches
    alike = _alike(order, rank, window, period)
    end = _last_end(alike, rank, window)
    if (window * order.micro_batches != sizes * period).any() or (end < 0).any():
        return none
    needs = np.empty_like(actions)  # by action of the order, as all that follows
    needs[program.action] = np.where(program.needs == NONE, NONE, program.action[program.needs])
    begin = end - window
    waiting = np.flatnonzero(needs != NONE)
    needed = needs[waiting]
    if ((waiting < end[rank[waiting]]) & (needed >= end[rank[needed]])).any():
        return none  # the last repetition ends later elsewhere
    older = (waiting >= begin[rank[waiting]]) & (needed < begin[rank[needed]])
    before = np.unique(np.concatenate((begin - 1, needed[older])))  # ranks wait for themselves, too
    last = before + window[rank[before]]
    if (before < order.first[rank[before]]).any() or not alike[last].all():
        return none
    place = np.empty_like(actions)
    place[program.action] = actions
    return place[np.stack((last, before))]


def _alike(order: Order, rank: np.ndarray, window: np.ndarray, period: int) -> np.ndarray:
    """Tell which actions are those of their rank a window before, `period` micro-batches later."""
    actions = np.arange(rank.size)
    before = actions - window[rank]
    found = before >= order.first[rank]
    before = np.maximum(before, 0)
    found &= (order.kind == order.kind[before]) & (order.stage == order.stage[before])
    found &= order.paired == order.paired[before]
    return found & (order.micro_batch == order.micro_batch[before] + period)


def _last_end(alike: np.ndarray, rank: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return where the last window of every rank ends that is alike all through, or -1."""
    breaks = np.flatnonzero(~alike)  # the first action of every rank among them
    ends = np.append(breaks[1:], alike.size)
    long = ends - breaks > window[rank[breaks]]
    found = np.full(window.size, -1)
    found[rank[breaks[long]]] = ends[long]
    return found
