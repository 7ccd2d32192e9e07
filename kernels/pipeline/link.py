"""What actions wait for, and one sequence in which all of them can run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Order

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


@jit_lean
def write_sequence(first, paired, needs, feeds, other, sequence, ran, next_of, awake, lies):
    """Write a sequence in which all actions can run, and return how many there are in it.

    Ranks work on until they wait for another; whoever does what a rank waits for wakes it.

    Parameters
    ----------
    first, paired
        Of an `Order`.
    needs, feeds, other : int64[actions]
        What an action waits for, what waits for it, and on which rank that is; or `NONE`.
    sequence : int64[actions]
        Result.
    ran : bool[actions]
        False.
    next_of : int64[ranks]
        The first action of every rank; where each waits, in the end.
    awake : int64[ranks]
        All of them, a stack: the first one on top.
    lies : bool[ranks]
        Whether each is there: true.
    """
    waiting, at = awake.size, 0
    while waiting > 0:
        waiting -= 1
        rank = awake[waiting]
        lies[rank] = False
        while next_of[rank] < first[rank + 1]:
            action = next_of[rank]
            behind = action + (2 if paired[action] else 1)
            ready = True
            for one in range(action, behind):
                ready = ready and (needs[one] == NONE or ran[needs[one]])
            if not ready:
                break
            for one in range(action, behind):
                ran[one] = True
                sequence[at] = one
                at += 1
                if feeds[one] != NONE and other[one] != rank and not lies[other[one]]:
                    awake[waiting] = other[one]
                    waiting += 1
                    lies[other[one]] = True
            next_of[rank] = behind
    return at


def link_order(order: Order) -> Program:
    """Link actions with what they wait for, and check that they can all run.

    A forward pass waits for that of the stage before, a backward pass (or its part for the
    input) for that of the stage after. What an action needs of its own stage comes before it on
    its rank. Two that run together wait for all that either needs. No kernel itself: only the
    sequence is a matter of one action after the other.

    Parameters
    ----------
    order : Order

    Returns
    -------
    Program
        Its columns are empty where `problem` is not `FINE`.
    """
    done_by = _done_by(order)
    problem, place, found = _problem(order, done_by)
    if problem != FINE:
        return _failed(order, problem, place, found)
    needs = _needs(order, done_by)
    feeds, other = np.full_like(needs, NONE), np.full_like(needs, NONE)
    needed = np.flatnonzero(needs != NONE)
    feeds[needs[needed]] = needed
    other[needs[needed]] = order.rank_of[order.stage[needed]]
    sequence, ran = np.empty_like(needs), np.zeros(needs.size, np.bool_)
    next_of, ranks = order.first[:-1].copy(), order.first.size - 1
    awake, lies = np.arange(ranks)[::-1].copy(), np.ones(ranks, np.bool_)
    linked = order.first, order.paired, needs, feeds, other
    if write_sequence(*linked, sequence, ran, next_of, awake, lies) < needs.size:
        stuck = next_of[next_of < order.first[1:]][0]
        return _failed(order, STUCK, int(stuck), NONE)
    return _program(order, needs, other, sequence)


def _failed(order: Order, problem: int, place: int, found: int) -> Program:
    none, no = np.empty(0, np.int64), np.empty(0, np.bool_)
    ranks = order.first.size - 1
    return Program(none, none, none, none, none, no, no, no, ranks, problem, place, found)


_FIRST_WORK = np.array([0, 1, 1, 2])
_LAST_WORK = np.array([0, 2, 1, 2])  # a whole backward pass is both kinds of gradients


def _known(order: Order) -> np.ndarray:
    """Tell which actions are of a stage and a micro-batch that there are, in one copy of both."""
    stages, batches = order.rank_of.size, order.micro_batches
    known = (order.stage >= 0) & (order.stage < stages)
    known &= (order.micro_batch >= 0) & (order.micro_batch < batches)
    copy = order.stage // (stages // order.copies)
    return known & (order.micro_batch // (batches // order.copies) == copy)


def _done_by(order: Order) -> np.ndarray:
    """Return who does what first, int64[stages, micro-batches, WORKS]; actions: nobody."""
    actions, batches = order.kind.size, order.micro_batches
    found = np.full((order.rank_of.size, batches, WORKS), actions)
    known = np.flatnonzero(_known(order))[::-1]  # of several, the first is written last: it stays
    kind = order.kind[known]
    cell = (order.stage[known] * batches + order.micro_batch[known]) * WORKS
    flat, weights = found.reshape(-1), np.flatnonzero((kind == BACKWARD) | (kind == WEIGHT))
    flat[cell + _FIRST_WORK[kind]] = known  # whole backward passes do the weights as well:
    flat[cell[weights] + _LAST_WORK[BACKWARD]] = known[weights]
    return found


def _problem(order: Order, done_by: np.ndarray) -> tuple[int, int, int]:
    """Return the first thing that is wrong: problem, place and what is missing."""
    actions = np.arange(order.kind.size)
    rank = np.repeat(np.arange(order.first.size - 1), np.diff(order.first))
    known = _known(order)
    stage, batch = (np.where(known, one, 0) for one in (order.stage, order.micro_batch))
    first, last = _FIRST_WORK[order.kind], _LAST_WORK[order.kind]
    cell, done = (stage * order.micro_batches + batch) * WORKS, done_by.reshape(-1)
    twice = (done[cell + first] != actions) | (done[cell + last] != actions)
    before = done[cell + np.maximum(first - 1, 0)]
    beside = (before == actions - 1) & np.roll(order.paired, 1)
    early = (first > 0) & ((before > actions) | beside)
    checks = [~known, order.rank_of[stage] != rank, _unpaired(order, rank), twice, early]
    if any(one.any() for one in checks):
        wrong = np.select(checks, [UNKNOWN, WRONG_RANK, UNPAIRED, TWICE, TOO_EARLY], FINE)
        place = int(np.flatnonzero(wrong)[0])
        return int(wrong[place]), place, NONE
    stages, batches, _ = done_by.shape
    own = np.arange(stages) // (stages // order.copies)
    missing = done_by == actions.size
    missing &= (own[:, None] == np.arange(batches) // (batches // order.copies))[..., None]
    if missing.any():
        return MISSING, NONE, int(np.flatnonzero(missing)[0])
    return FINE, NONE, NONE


def _unpaired(order: Order, rank: np.ndarray) -> np.ndarray:
    """Tell which actions are marked as running together with what they cannot run with."""
    if not order.paired.any():
        return order.paired
    after = np.arange(1, order.kind.size + 1)
    alone = after >= order.first[rank + 1]  # the last one of its rank
    after[alone] = 0
    kinds = np.sort(np.stack((order.kind, order.kind[after])), axis=0)
    pair = (kinds[0] == FORWARD) & np.isin(kinds[1], (BACKWARD, INPUT))
    return order.paired & (alone | order.paired[after] | ~pair)


def _needs(order: Order, done_by: np.ndarray) -> np.ndarray:
    """Return what every action waits for on another stage, int64[actions], or `NONE`."""
    depth = order.rank_of.size // order.copies
    place, needs = order.stage % depth, np.full(order.kind.size, NONE)
    behind = np.flatnonzero((order.kind == FORWARD) & (place > 0))
    needs[behind] = done_by[order.stage[behind] - 1, order.micro_batch[behind], 0]
    back = (order.kind == BACKWARD) | (order.kind == INPUT)
    ahead = np.flatnonzero(back & (place < depth - 1))
    needs[ahead] = done_by[order.stage[ahead] + 1, order.micro_batch[ahead], 1]
    return needs


def _program(order: Order, needs: np.ndarray, other: np.ndarray, sequence: np.ndarray) -> Program:
    """Return the columns of actions in sequence."""
    place = np.full(sequence.size + 1, NONE)  # the last one: of what nobody waits for
    place[sequence] = np.arange(sequence.size)
    stage, linked = order.stage[sequence], place[needs[sequence]]
    rank = order.rank_of[stage]
    return Program(
        sequence,
        rank,
        order.kind[sequence],
        stage,
        linked,
        order.paired[sequence],
        (other[sequence] != NONE) & (other[sequence] != rank),
        (linked != NONE) & (rank[linked] != rank),
        order.first.size - 1,
        FINE,
        NONE,
        NONE,
    )
