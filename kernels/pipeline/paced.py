"""How long one pipeline takes in many cases: all of its passes, some cases at once.

Each pass begins when the one before it on its rank is over, and when what it needs of another stage
has arrived. So a pipeline is a list of steps, each of which reads when two others ended and writes
when it does, in all cases alike: one loop over numbers that lie together, which compilers turn into
instructions for several of them. They lie in few places, each used again once all have read it.

Once a pipeline is full, its ranks do the same again, some micro-batches later. All times are sums
and maxima of what is given: if all that a repetition and what follows wait for came later, by the
same time, than it did for the repetition before, then everything in them does in every further one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
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


BLOCK = 64
"""Cases that run at once, at most, each without its sends and with them: blocks are alike."""
LANES = 8
"""A block has so many, or whole times so many."""

# Columns of steps.
BEFORE = 0  # where the end of its rank's step before is, or 0: nothing is waited for
SOURCE = 1  # where the end of what it needs is, or 0
INTO = 2  # where its own goes
ROW = 3  # of what it takes
KEPT = 4  # 1: the step before sends what it made
SENT = 5  # 1: what it needs was sent
STEP_COLUMNS = 6


class Steps(NamedTuple):
    """A program, ready to run in many cases."""

    steps: np.ndarray  # int64[actions, STEP_COLUMNS]
    places: int  # for ends of steps
    last: np.ndarray  # int64[ranks with actions]: places of their last ends
    watched: np.ndarray  # int64[2, n]: those of `steady`


def steps_of(program: Program, row_of: np.ndarray, steady: np.ndarray | None = None) -> Steps:
    """Return the steps of a program, of which none runs beside another.

    Parameters
    ----------
    program : Program
        Of `perfmodel.kernels.pipeline.link.link_order`, without a problem.
    row_of : int64[KINDS, stages]
        Row of what each action takes.
    steady : int64[2, n], optional
        Of `perfmodel.kernels.pipeline.paced.repetitions`.
    """
    actions = program.action.size
    narrow = program.rank.astype(np.min_scalar_type(program.ranks))  # sorts by digits
    by_rank = np.argsort(narrow, kind="stable")
    follows = np.flatnonzero(np.diff(program.rank[by_rank]) == 0)
    before = np.full(actions, NONE)
    before[by_rank[follows + 1]] = by_rank[follows]
    needs = program.needs
    reads = np.bincount(before[before != NONE], minlength=actions)
    last = np.flatnonzero(reads == 0)
    reads += np.bincount(needs[needs != NONE], minlength=actions)
    watched = np.empty((2, 0), np.int64) if steady is None else steady
    for kept in (last, *watched):
        reads[kept] += 1  # once all is over
    into, spare = np.zeros(actions + 1, np.int64), np.empty(actions, np.int64)  # one for `NONE`
    places = int(write_places(before, needs, reads, into, spare))
    steps = np.empty((actions, STEP_COLUMNS), np.int64)
    steps[:, BEFORE], steps[:, SOURCE], steps[:, INTO] = into[before], into[needs], into[:-1]
    steps[:, ROW] = row_of[program.kind, program.stage]
    steps[:, KEPT] = (before != NONE) & program.sends[before]
    steps[:, SENT] = program.receives
    return Steps(steps, places, into[last], into[watched])


@jit_lean
def write_places(before, needs, reads, into, spare):
    """Write where the end of every action goes, and return how many places that takes.

    Parameters
    ----------
    before, needs : int64[actions]
        Actions whose ends each one reads, or `NONE`.
    reads : int64[actions]
        How often each end is read. Overwritten.
    into : int64[actions + 1]
        Result, but for the last: a place of its own, never the one just read from.
    spare : int64[actions]
        Overwritten.
    """
    places, spares = 1, 0
    for action in range(reads.size):
        if spares > 0:
            spares -= 1
            into[action] = spare[spares]
        else:
            into[action] = places
            places += 1
        for source in (before[action], needs[action]):
            if source != NONE:
                reads[source] -= 1
                if reads[source] == 0:
                    spare[spares] = into[source]
                    spares += 1
    return places


@jit
def paced_makespans(steps, places, last, watched, work, sends, keeps):
    """Return how long one pipeline takes in every case, and what repetitions would add [s].

    Parameters
    ----------
    steps, places, last, watched
        The fields of `Steps`.
    work : float64[rows, cases]
        What actions take [s].
    sends : float64[cases]
        What the send of what an action makes to another rank takes [s].
    keeps : float
        Share of it that keeps the sender from working on [1].

    Returns
    -------
    makespan : float64[2, cases]
        Without sends, and with them.
    growth : float64[2, cases]
        What each further repetition adds; NaN where that does not show.
    """
    rows, cases = work.shape
    makespan, growth = np.empty((2, cases)), np.empty((2, cases))
    block = -(-cases // max(-(-cases // BLOCK), 1))
    block = -(-block // LANES) * LANES if block > LANES else block
    takes, end = np.empty((rows, block)), np.empty((places, 2 * block))
    sent, kept = np.empty(block), np.empty(block)
    for first in range(0, cases, max(block, 1)):
        for row in range(rows):
            for lane in range(block):  # the last case stands in for those there aren't
                takes[row, lane] = work[row, min(first + lane, cases - 1)]
        for lane in range(block):
            sent[lane] = sends[min(first + lane, cases - 1)]
            kept[lane], end[0, lane], end[0, block + lane] = keeps * sent[lane], 0.0, 0.0
        run_steps(steps, takes, sent, kept, end)
        for lane in range(2 * block):
            one, case = lane // block, first + lane % block
            if case < cases:
                makespan[one, case] = longest = latest(last, end, lane)
                growth[one, case] = grown(watched, end, lane, SAME * longest)
    return makespan, growth


def makespans_of_all(
    steps: np.ndarray,
    places: int,
    last: np.ndarray,
    watched: np.ndarray,
    work: np.ndarray,
    sends: np.ndarray,
    keeps: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `paced_makespans` does, in NumPy and all cases at once: where nothing compiles.

    The same digits: each step is one row of numbers, which costs what a few of them do one by one.
    """
    takes, sent = np.concatenate((work, work), axis=1), np.concatenate((0.0 * sends, sends))
    kept, end = keeps * sent, np.zeros((places, sent.size))
    for before, source, into, row, keeps_sender, was_sent in steps.tolist():
        free = end[before] + keeps_sender * kept
        end[into] = np.maximum(free, end[source] + was_sent * sent) + takes[row]
    longest, growth = end[last].max(axis=0), np.full(sent.size, np.nan)
    if watched.size:
        later = end[watched[0]] - end[watched[1]]
        alike = np.abs(later - later[0]).max(axis=0) <= SAME * longest
        growth[alike] = later[0][alike]
    return longest.reshape(2, -1), growth.reshape(2, -1)


@jit_lean
def run_steps(steps, takes, sent, kept, end):
    """Let all steps run: in every lane without sends, and as far behind with them.

    Parameters
    ----------
    steps : int64[actions, STEP_COLUMNS]
    takes : float64[rows, lanes]
        [s].
    sent, kept : float64[lanes]
        How long what is sent takes to arrive, and how long it keeps its sender [s].
    end : float64[places, 2 lanes]
        Result; 0 in the first of them.
    """
    lanes = end.shape[1] // 2  # so compilers know that none is negative
    for step in range(steps.shape[0]):
        before, source, into = steps[step, BEFORE], steps[step, SOURCE], steps[step, INTO]
        row = steps[step, ROW]
        keeps, sends = float(steps[step, KEPT]), float(steps[step, SENT])
        for one in range(lanes):
            taken = takes[row, one]
            without = max(end[before, one], end[source, one]) + taken
            free = end[before, lanes + one] + keeps * kept[one]
            there = end[source, lanes + one] + sends * sent[one]
            end[into, one], end[into, lanes + one] = without, max(free, there) + taken


@jit_lean
def latest(last, end, lane):
    """Return the latest of the last ends."""
    found = 0.0
    for one in range(last.size):
        found = max(found, end[last[one], lane])
    return found


@jit_lean
def grown(watched, end, lane, same):
    """Return by how much all that is watched comes later each time; NaN if not by the same."""
    found, apart = np.nan, 0.0
    for one in range(watched.shape[1]):
        later = end[watched[0, one], lane] - end[watched[1, one], lane]
        found = later if one == 0 else found
        apart = max(apart, abs(later - found))
    return found if apart <= same else np.nan
