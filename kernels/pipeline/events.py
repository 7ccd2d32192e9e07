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

from perfmodel.kernels._jit import jit
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT


class Durations(NamedTuple):
    """What actions and sends of a pipeline take."""

    work: np.ndarray  # float64[KINDS, stages] [s]
    send: np.ndarray  # float64[KINDS, stages]: of what an action makes, to another rank [s]
    together: np.ndarray  # float64[stages, stages]: forward pass of one stage beside the
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


def plain_durations(
    forward: np.ndarray, input_gradient: np.ndarray, weight_gradient: np.ndarray
) -> Durations:
    """Return durations without sends; backward passes take as long as their parts.

    Parameters
    ----------
    forward, input_gradient, weight_gradient : float64[stages]
        [s].

    Returns
    -------
    Durations
    """
    work = np.empty((KINDS, forward.size))
    work[FORWARD], work[INPUT], work[WEIGHT] = forward, input_gradient, weight_gradient
    work[BACKWARD] = work[INPUT] + work[WEIGHT]
    return Durations(work, np.zeros_like(work), np.empty((0, 0)), 0.0, 0.0)


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
    work, send, together, sender, receiver = durations
    actions, ranks = program.rank.size, program.ranks
    start, end = np.empty(actions), np.empty(actions)  # by action of the order
    arrived = np.empty(actions)  # by action of the program: where what it made is needed
    free, busy, sending = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    beside = together.shape[0] > 0
    makespan = begin = 0.0
    for at in range(actions):
        rank, kind, stage = program.rank[at], program.kind[at], program.stage[at]
        source = program.needs[at]
        # 1. What it needs, and its rank.
        if program.receives[at]:
            takes = receiver * send[program.kind[source], program.stage[source]]
            sending[rank] += takes
            if receiver > 0.0:
                free[rank] = max(free[rank], end[program.action[source]]) + takes
        if source >= 0:
            begin = max(begin, arrived[source])
        if beside and program.paired[at]:
            continue  # begins with the next one
        begin = max(begin, free[rank])
        # 2. How long it takes.
        first, takes = at, work[kind, stage]
        if beside and at > 0 and program.paired[at - 1]:
            first = at - 1
            if kind == FORWARD:
                takes = together[stage, program.stage[first]]
            else:
                takes = together[program.stage[first], stage]
        # 3. What is over then, and what is sent.
        over = begin + takes
        free[rank], makespan = over, max(makespan, over)
        busy[rank] += over - begin
        for at_once in range(first, at + 1):
            start[program.action[at_once]], end[program.action[at_once]] = begin, over
            arrived[at_once] = over
            if program.sends[at_once]:
                takes = send[program.kind[at_once], program.stage[at_once]]
                arrived[at_once] += takes
                free[rank] += sender * takes
                sending[rank] += sender * takes
        begin = 0.0
    # The send of a last action may outlast all actions.
    idle = np.empty(ranks)
    for rank in range(ranks):
        idle[rank] = max(0.0, makespan - busy[rank] - sending[rank])
    return Timeline(start, end, makespan, busy, sending, idle)
