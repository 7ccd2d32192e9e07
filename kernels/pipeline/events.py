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

KINDS = 4


class Durations(NamedTuple):
    """What actions and sends of a pipeline take."""

    work: np.ndarray  # float64[KINDS, stages] [s]
    send: np.ndarray  # float64[KINDS, stages]: of what an action makes, to another rank [s]
    together: np.ndarray  # float64[stages, stages]: forward pass of one stage beside backward pass
    # of another, from the start of both to the end of both [s]; empty: one after the other
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
    """Return durations of stages without sends, backward passes as long as their two parts.

    Parameters
    ----------
    forward, input_gradient, weight_gradient : float64[stages]
        [s].

    Returns
    -------
    Durations
    """
    stages = forward.size
    work = np.empty((KINDS, stages))
    for stage in range(stages):
        work[FORWARD, stage] = forward[stage]
        work[INPUT, stage] = input_gradient[stage]
        work[WEIGHT, stage] = weight_gradient[stage]
        work[BACKWARD, stage] = input_gradient[stage] + weight_gradient[stage]
    return Durations(work, np.zeros((KINDS, stages)), np.empty((0, 0)), 0.0, 0.0)


@jit_lean
def _arrival(program, durations, end, at):
    """When what an action needs has arrived, and when it was made [s]; 0 if it needs nothing."""
    made_by = program.needs[at]
    if made_by < 0:
        return 0.0, 0.0
    made = end[made_by]
    if program.receives[at]:
        return made + durations.send[program.kind[made_by], program.stage[made_by]], made
    return made, made


@jit_lean
def _received(program, durations, at, share):
    """How long a share of the send before an action takes [s]."""
    if not program.receives[at]:
        return 0.0
    made_by = program.needs[at]
    return share * durations.send[program.kind[made_by], program.stage[made_by]]


@jit_lean
def _sent(program, durations, at, share):
    """How long a share of the send after an action takes [s]."""
    if not program.sends[at]:
        return 0.0
    return share * durations.send[program.kind[at], program.stage[at]]


@jit_lean
def _begin(program, durations, end, at, free):
    """When an action can begin on a rank that is free from some time on [s]."""
    arrived, made = _arrival(program, durations, end, at)
    if durations.receiver == 0.0:
        return max(free, arrived)
    kept = _received(program, durations, at, durations.receiver)
    return max(max(free, made) + kept, arrived)


@jit_lean
def run_program(program, durations, start, end, free):
    """Let all actions run.

    Parameters
    ----------
    program : Program
        Of `link_order`, without a problem.
    durations : Durations
    start, end : float64[actions]
        Written, by action of the program [s].
    free : float64[ranks]
        Written: when the last action of each rank, and its send, are over [s].

    Returns
    -------
    float
        When the last action is over [s].
    """
    for rank in range(free.size):
        free[rank] = 0.0
    makespan = 0.0
    beside = durations.together.size > 0
    at = 0
    actions = program.rank.size
    while at < actions:
        rank = program.rank[at]
        stage = program.stage[at]
        begin = _begin(program, durations, end, at, free[rank])
        size = 1
        over = begin + durations.work[program.kind[at], stage]
        start[at] = begin
        if beside and program.paired[at]:
            size = 2
            # The second one's send is received after the first one's.
            kept = _received(program, durations, at, durations.receiver)
            begin = max(begin, _begin(program, durations, end, at + 1, free[rank] + kept))
            other = program.stage[at + 1]
            if program.kind[at] == FORWARD:
                over = begin + durations.together[stage, other]
            else:
                over = begin + durations.together[other, stage]
            start[at] = start[at + 1] = begin
        done = over
        for one in range(at, at + size):
            end[one] = over
            done += _sent(program, durations, one, durations.sender)
        free[rank] = done
        makespan = max(makespan, over)
        at += size
    return makespan


@jit
def run_order(order, program, durations):
    """Let a pipeline run.

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
    start = np.empty(actions)
    end = np.empty(actions)
    free = np.empty(ranks)
    makespan = run_program(program, durations, start, end, free)
    by_start = np.empty(actions)
    by_end = np.empty(actions)
    busy = np.zeros(ranks)
    sending = np.zeros(ranks)
    beside = durations.together.size > 0
    for at in range(actions):
        action = program.action[at]
        by_start[action] = start[at]
        by_end[action] = end[at]
        rank = program.rank[at]
        if not (beside and at > 0 and program.paired[at - 1]):
            busy[rank] += end[at] - start[at]
        sending[rank] += _sent(program, durations, at, durations.sender)
        sending[rank] += _received(program, durations, at, durations.receiver)
    # A last send may outlast the last action.
    idle = np.empty(ranks)
    for rank in range(ranks):
        idle[rank] = max(0.0, makespan - busy[rank] - sending[rank])
    return Timeline(by_start, by_end, makespan, busy, sending, idle)


@jit
def makespans(program, work, send, together, sender, receiver):
    """Return how long one pipeline takes with many durations [s].

    Parameters
    ----------
    program : Program
    work, send : float64[cases, KINDS, stages]
        [s].
    together : float64[cases, stages, stages]
        [s]; with no stages: pairs run one after the other.
    sender, receiver : float
        As in `Durations`.

    Returns
    -------
    float64[cases]
    """
    cases = work.shape[0]
    actions = program.rank.size
    start = np.empty(actions)
    end = np.empty(actions)
    free = np.empty(program.ranks)
    found = np.empty(cases)
    for case in range(cases):
        durations = Durations(work[case], send[case], together[case], sender, receiver)
        found[case] = run_program(program, durations, start, end, free)
    return found
