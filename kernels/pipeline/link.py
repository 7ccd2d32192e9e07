"""What actions wait for, and one sequence in which all of them can run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT

# What may be wrong with an order.
FINE = 0
UNKNOWN = 1  # no such stage or micro-batch
WRONG_RANK = 2  # the stage lies elsewhere
TWICE = 3  # done before
UNPAIRED = 4  # marked as running together with what is not its forward or backward pass
MISSING = 5  # a stage never does something; `Program.found` says which
TOO_EARLY = 6  # a backward pass before its forward pass, or weights before the input, on its rank
STUCK = 7  # all ranks wait for each other

NONE = -1


class Program(NamedTuple):
    """An order, ready to run: columns of actions in a sequence in which they can.

    A pair stands together, the forward pass first or not, as in the order.
    """

    action: np.ndarray  # int64[actions]: its place in the order
    rank: np.ndarray  # int64[actions]
    kind: np.ndarray  # int64[actions]
    stage: np.ndarray  # int64[actions]
    needs: np.ndarray  # int64[actions]: place here of what it waits for on another stage, or `NONE`
    paired: np.ndarray  # bool[actions]: runs together with the next one
    sends: np.ndarray  # bool[actions]: another rank needs what it makes
    receives: np.ndarray  # bool[actions]: from another rank
    ranks: int
    problem: int  # `FINE`, or why there is no sequence
    place: int  # in the order, of the first action that is wrong or waits, or `NONE`
    found: int  # `MISSING`: 3 (stage micro_batches + micro_batch) + kind of work


# Kinds of work on a micro-batch: forward, gradients of the input, gradients of the weights.
WORKS = 3


@jit
def link_order(order):
    """Link actions with what they wait for, and check that they can all run.

    A forward pass waits for that of the stage before, a backward pass (or its part for the
    input) for that of the stage after. What an action needs of its own stage comes before it on
    its rank. Two that run together wait for all that either needs.

    Parameters
    ----------
    order : Order

    Returns
    -------
    Program
        Its columns are empty where `problem` is not `FINE`.
    """
    done_by, problem, place, found = _index(order)
    if problem != FINE:
        return _failed(order, problem, place, found)
    actions = order.kind.size
    stages = order.rank_of.size
    depth = stages // order.copies
    needs = np.full(actions, NONE)
    feeds = np.full(actions, NONE)
    for action in range(actions):
        kind, stage, micro_batch = (
            order.kind[action],
            order.stage[action],
            order.micro_batch[action],
        )
        other = NONE
        if kind == FORWARD and stage % depth > 0:
            other = done_by[stage - 1, micro_batch, 0]
        elif (kind in (BACKWARD, INPUT)) and stage % depth < depth - 1:
            other = done_by[stage + 1, micro_batch, 1]
        needs[action] = other
        if other != NONE:
            feeds[other] = action
    sequence, stuck = _sequence(order, needs, feeds)
    if stuck != NONE:
        return _failed(order, STUCK, stuck, NONE)
    return _program(order, needs, feeds, sequence)


@jit
def _failed(order, problem, place, found):
    none = np.empty(0, np.int64)
    no = np.empty(0, np.bool_)
    ranks = order.first.size - 1
    return Program(none, none, none, none, none, no, no, no, ranks, problem, place, found)


@jit
def _index(order):
    """Return who does what, int64[stages, micro-batches, WORKS], and the first thing wrong."""
    stages = order.rank_of.size
    done_by = np.full((stages, order.micro_batches, WORKS), NONE)
    ranks = order.first.size - 1
    for rank in range(ranks):
        for action in range(order.first[rank], order.first[rank + 1]):
            problem = _check(order, done_by, rank, action)
            if problem != FINE:
                return done_by, problem, action, NONE
    depth = stages // order.copies
    each = order.micro_batches // order.copies
    for stage in range(stages):
        own = stage // depth * each
        for micro_batch in range(own, own + each):
            for work in range(WORKS):
                if done_by[stage, micro_batch, work] == NONE:
                    found = WORKS * (stage * order.micro_batches + micro_batch) + work
                    return done_by, MISSING, NONE, found
    return done_by, FINE, NONE, NONE


@jit
def _check(order, done_by, rank, action):
    """Enter an action into the index; return what is wrong with it."""
    kind, stage, micro_batch = order.kind[action], order.stage[action], order.micro_batch[action]
    stages = order.rank_of.size
    if not (0 <= stage < stages and 0 <= micro_batch < order.micro_batches):
        return UNKNOWN
    copy = stage // (stages // order.copies)
    if micro_batch // (order.micro_batches // order.copies) != copy:
        return UNKNOWN  # a micro-batch of the other copy of the model
    if order.rank_of[stage] != rank:
        return WRONG_RANK
    if order.paired[action]:
        after = action + 1
        if after >= order.first[rank + 1] or order.paired[after]:
            return UNPAIRED
        forward = kind if kind == FORWARD else order.kind[after]
        backward = order.kind[after] if kind == FORWARD else kind
        if forward != FORWARD or backward not in (BACKWARD, INPUT):
            return UNPAIRED
    first = 0 if kind == FORWARD else (2 if kind == WEIGHT else 1)
    last = 2 if kind == BACKWARD else first
    for work in range(first, last + 1):
        if done_by[stage, micro_batch, work] != NONE:
            return TWICE
    before = done_by[stage, micro_batch, max(0, first - 1)]
    if first > 0 and (before == NONE or (before == action - 1 and order.paired[before])):
        return TOO_EARLY
    for work in range(first, last + 1):
        done_by[stage, micro_batch, work] = action
    return FINE


@jit
def _sequence(order, needs, feeds):
    """Return a sequence in which all actions can run, and where none is left that can.

    Ranks work on until they wait for another; whoever does what a rank waits for wakes it.
    """
    actions = order.kind.size
    ranks = order.first.size - 1
    sequence = np.empty(actions, np.int64)
    ran = np.zeros(actions, np.bool_)
    next_of = np.empty(ranks, np.int64)
    awake = np.empty(ranks, np.int64)  # a stack, with the first rank on top
    for rank in range(ranks):
        next_of[rank] = order.first[rank]
        awake[rank] = ranks - 1 - rank
    lies = np.ones(ranks, np.bool_)
    waiting = ranks
    at = 0
    while waiting > 0:
        waiting -= 1
        rank = awake[waiting]
        lies[rank] = False
        while next_of[rank] < order.first[rank + 1]:
            action = next_of[rank]
            size = 2 if order.paired[action] else 1
            ready = True
            for one in range(action, action + size):
                if needs[one] != NONE and not ran[needs[one]]:
                    ready = False
            if not ready:
                break
            for one in range(action, action + size):
                ran[one] = True
                sequence[at] = one
                at += 1
                if feeds[one] != NONE:
                    other = order.rank_of[order.stage[feeds[one]]]
                    if other != rank and not lies[other]:
                        awake[waiting] = other
                        waiting += 1
                        lies[other] = True
            next_of[rank] += size
    if at == actions:
        return sequence, NONE
    for rank in range(ranks):
        if next_of[rank] < order.first[rank + 1]:
            return sequence, next_of[rank]
    return sequence, NONE


@jit
def _program(order, needs, feeds, sequence):
    """Return the columns of actions in sequence."""
    actions = sequence.size
    place = np.empty(actions, np.int64)
    rank = np.empty(actions, np.int64)
    kind = np.empty(actions, np.int64)
    stage = np.empty(actions, np.int64)
    paired = np.empty(actions, np.bool_)
    for at in range(actions):
        action = sequence[at]
        place[action] = at
        kind[at] = order.kind[action]
        stage[at] = order.stage[action]
        rank[at] = order.rank_of[stage[at]]
        paired[at] = order.paired[action]
    linked = np.full(actions, NONE)
    sends = np.zeros(actions, np.bool_)
    receives = np.zeros(actions, np.bool_)
    for at in range(actions):
        action = sequence[at]
        if needs[action] != NONE:
            linked[at] = place[needs[action]]
            receives[at] = rank[linked[at]] != rank[at]
        if feeds[action] != NONE:
            sends[at] = rank[place[feeds[action]]] != rank[at]
    return Program(
        sequence,
        rank,
        kind,
        stage,
        linked,
        paired,
        sends,
        receives,
        order.first.size - 1,
        FINE,
        NONE,
        NONE,
    )
