"""When everything happens in a pipeline whose ranks each do their actions in order.

An action begins when its rank is free and what it needs has arrived. Sends come on top:

- a send takes its time from the end of what made it until it has arrived;
- the share of it that is not hidden keeps the sender from working on, or the receiver, who
  then takes that long before the action, and not before what it receives was made.

All times are sums and maxima of what is given, so they are exact, whatever the stages take.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.kernels.pipeline.repetition import growths

KINDS = 4
BLOCK = 8
"""Cases that run at once."""


class Durations(NamedTuple):
    """What actions and sends of a pipeline take, in each of some cases."""

    work: np.ndarray  # float64[KINDS, stages, cases] [s]
    send: np.ndarray  # float64[KINDS, stages, cases]: of what an action makes, to another rank [s]
    together: np.ndarray  # float64[stages, stages, cases]: forward pass of one stage beside the
    # backward pass of another, both from start to end [s]; no stages: one after the other
    sender: float  # share of a send that keeps its sender [1]
    receiver: float  # share that keeps its receiver [1]


class Timeline(NamedTuple):
    """When everything happens, by action of the order, and by rank."""

    start: np.ndarray  # float64[actions] [s]
    end: np.ndarray  # float64[actions] [s]
    makespan: float  # [s]
    busy: np.ndarray  # float64[ranks]: with actions [s]
    sending: np.ndarray  # float64[ranks]: kept by sends [s]
    idle: np.ndarray  # float64[ranks]: the rest of the makespan [s]


@jit
def plain_durations(forward, input_gradient, weight_gradient):
    """Return durations of one case without sends; backward passes take as long as their parts.

    Parameters
    ----------
    forward, input_gradient, weight_gradient : float64[stages]
        [s].

    Returns
    -------
    Durations
    """
    stages = forward.size
    work = np.empty((KINDS, stages, 1))
    for stage in range(stages):
        work[FORWARD, stage, 0] = forward[stage]
        work[INPUT, stage, 0] = input_gradient[stage]
        work[WEIGHT, stage, 0] = weight_gradient[stage]
        work[BACKWARD, stage, 0] = input_gradient[stage] + weight_gradient[stage]
    return Durations(work, np.zeros((KINDS, stages, 1)), np.empty((0, 0, 1)), 0.0, 0.0)


class Run(NamedTuple):
    """What a run of `BLOCK` cases reads and writes."""

    work: np.ndarray  # float64[KINDS, stages, BLOCK]: of these cases, as in `Durations` [s]
    send: np.ndarray  # float64[KINDS, stages, BLOCK] [s]
    together: np.ndarray  # float64[stages, stages, BLOCK] [s]
    start: np.ndarray  # float64[actions or 0, BLOCK] [s]
    end: np.ndarray  # float64[actions or 0, BLOCK] [s]
    arrived: np.ndarray  # float64[actions + 1, BLOCK]: where what an action made is needed [s]
    free: np.ndarray  # float64[ranks, BLOCK]: the last action, and its send, are over [s]
    begin: np.ndarray  # float64[BLOCK]: of an action, as far as known [s]
    makespan: np.ndarray  # float64[BLOCK] [s]


@jit
def new_run(program, durations, starts):
    """Return room for a run, and for when actions start and end if that is wanted or needed."""
    actions = program.rank.size
    kinds, stages, _ = durations.work.shape
    pairs = durations.together.shape[0]
    return Run(
        np.empty((kinds, stages, BLOCK)),
        np.empty((kinds, stages, BLOCK)),
        np.empty((pairs, pairs, BLOCK)),
        np.empty((actions if starts else 0, BLOCK)),
        np.empty((actions if starts or durations.receiver > 0.0 else 0, BLOCK)),
        np.empty((actions + 1, BLOCK)),
        np.empty((program.ranks, BLOCK)),
        np.empty(BLOCK),
        np.empty(BLOCK),
    )


@jit_lean
def _take(ours, theirs, case):
    """Copy the durations of a block of cases; the last case stands in for those there are not."""
    rows, columns, cases = theirs.shape
    for row in range(rows):
        for column in range(columns):
            for one in range(BLOCK):
                ours[row, column, one] = theirs[row, column, min(case + one, cases - 1)]


@jit_lean
def run_program(program, durations, case, run):
    """Let all actions run, in `BLOCK` cases at once.

    All cases take the same steps, so that each step is one loop over cases.

    Parameters
    ----------
    program : Program
        Of `link_order`, without a problem.
    durations : Durations
    case : int
        The first of the cases.
    run : Run
        Written, by action of the program.
    """
    _take(run.work, durations.work, case)
    _take(run.send, durations.send, case)
    _take(run.together, durations.together, case)
    sender, receiver = durations.sender, durations.receiver
    start, end, arrived, free, begin = run.start, run.end, run.arrived, run.free, run.begin
    beside, starts, ends = run.together.shape[0] > 0, start.shape[0] > 0, end.shape[0] > 0
    actions = program.rank.size
    for one in range(BLOCK):
        run.makespan[one] = begin[one] = arrived[actions, one] = 0.0
        for rank in range(free.shape[0]):
            free[rank, one] = 0.0
    if not (beside or starts or ends):
        _run_plain(program, sender, run.work, run.send, arrived, free, run.makespan)
        return
    for at in range(actions):
        rank, kind, stage = program.rank[at], program.kind[at], program.stage[at]
        source = program.needs[at]
        # 1. What it needs, and its rank.
        if receiver > 0.0 and program.receives[at]:
            takes = run.send[program.kind[source], program.stage[source]]
            for one in range(BLOCK):
                free[rank, one] = max(free[rank, one], end[source, one]) + receiver * takes[one]
        if source >= 0:
            for one in range(BLOCK):
                begin[one] = max(begin[one], arrived[source, one])
        if beside and program.paired[at]:
            continue  # begins with the next one
        for one in range(BLOCK):
            begin[one] = max(begin[one], free[rank, one])
        # 2. How long it takes.
        first = at
        takes = run.work[kind, stage]
        if beside and at > 0 and program.paired[at - 1]:
            first = at - 1
            if kind == FORWARD:
                takes = run.together[stage, program.stage[first]]
            else:
                takes = run.together[program.stage[first], stage]
        # 3. What is over then, and what is sent.
        for one in range(BLOCK):
            free[rank, one] = begin[one] + takes[one]
            run.makespan[one] = max(run.makespan[one], free[rank, one])
        for action in range(first, at + 1):
            for one in range(BLOCK):
                arrived[action, one] = free[rank, one]
            if ends:
                for one in range(BLOCK):
                    end[action, one] = free[rank, one]
            if starts:
                for one in range(BLOCK):
                    start[action, one] = begin[one]
        for action in range(first, at + 1):
            if program.sends[action]:
                takes = run.send[program.kind[action], program.stage[action]]
                for one in range(BLOCK):
                    arrived[action, one] += takes[one]
                    free[rank, one] += sender * takes[one]
        for one in range(BLOCK):
            begin[one] = 0.0


@jit_lean
def _run_plain(program, sender, work, send, arrived, free, makespan):
    """Run all actions where none runs beside another, and no send keeps its receiver."""
    actions = program.rank.size
    for at in range(actions):
        rank, kind, stage = program.rank[at], program.kind[at], program.stage[at]
        source = program.needs[at]
        if source < 0:
            source = actions  # nothing: always there
        sends = 1.0 if program.sends[at] else 0.0
        keeps = sender * sends
        for one in range(BLOCK):
            over = max(free[rank, one], arrived[source, one]) + work[kind, stage, one]
            arrived[at, one] = over + sends * send[kind, stage, one]
            free[rank, one] = over + keeps * send[kind, stage, one]
            makespan[one] = max(makespan[one], over)


@jit
def run_order(order, program, durations):
    """Let a pipeline run, in the first case.

    Parameters
    ----------
    order : Order
    program : Program
        The same, linked (`link_order`), without a problem.
    durations : Durations

    Returns
    -------
    Timeline
    """
    actions = program.rank.size
    ranks = program.ranks
    run = new_run(program, durations, True)
    run_program(program, durations, 0, run)
    start = np.empty(actions)
    end = np.empty(actions)
    busy = np.zeros(ranks)
    sending = np.zeros(ranks)
    beside = durations.together.shape[0] > 0
    for at in range(actions):
        action, rank = program.action[at], program.rank[at]
        start[action] = run.start[at, 0]
        end[action] = run.end[at, 0]
        if not (beside and at > 0 and program.paired[at - 1]):
            busy[rank] += end[action] - start[action]
        if program.sends[at]:
            takes = durations.send[program.kind[at], program.stage[at], 0]
            sending[rank] += durations.sender * takes
        if program.receives[at]:
            source = program.needs[at]
            takes = durations.send[program.kind[source], program.stage[source], 0]
            sending[rank] += durations.receiver * takes
    # The send of a last action may outlast all actions.
    idle = np.empty(ranks)
    for rank in range(ranks):
        idle[rank] = max(0.0, run.makespan[0] - busy[rank] - sending[rank])
    return Timeline(start, end, run.makespan[0], busy, sending, idle)


@jit
def makespans(program, durations):
    """Return how long one pipeline takes in every case [s].

    Parameters
    ----------
    program : Program
    durations : Durations

    Returns
    -------
    float64[cases]
    """
    return paced_makespans(program, durations, np.empty((1, 0), np.int64))[0]


@jit
def paced_makespans(program, durations, steady):
    """Return how long one pipeline takes in every case, and what repetitions would add [s].

    Parameters
    ----------
    program : Program
    durations : Durations
    steady : int64[SHOWN, n]
        Of `perfmodel.kernels.pipeline.repetition.repetitions`.

    Returns
    -------
    makespan : float64[cases]
    growth : float64[cases]
        What each further repetition adds; NaN where that does not show.
    """
    cases = durations.work.shape[2]
    run = new_run(program, durations, False)
    found, growth = np.empty(cases), np.empty(cases)
    grown, room = np.empty(BLOCK), np.empty(BLOCK)
    for case in range(0, cases, BLOCK):
        run_program(program, durations, case, run)
        growths(steady, run, grown, room)
        for one in range(min(BLOCK, cases - case)):
            found[case + one], growth[case + one] = run.makespan[one], grown[one]
    return found, growth
