"""When everything happens in a pipeline whose ranks do their actions in order; what they hold.

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


@jit_lean
def change(kind, until_input, until_weight):
    """What the bytes of a stage change by with an action of a kind, after it or as it begins."""
    if kind == FORWARD:
        return until_input + until_weight
    if kind == BACKWARD:
        return -(until_input + until_weight)
    return -until_input if kind == INPUT else -until_weight


@jit
def peaks(order, until_input, until_weight):
    """Return the most that every rank holds at once [B].

    That is a matter of order alone: a forward pass adds as it begins, a backward pass frees
    when it is over.

    Parameters
    ----------
    order : Order
    until_input, until_weight : float64[stages]
        What the forward pass of a micro-batch keeps until the gradients of the stage's input,
        and until those of its weights, are there [B].

    Returns
    -------
    float64[ranks]
    """
    ranks = order.first.size - 1
    found = np.zeros(ranks)
    for rank in range(ranks):
        held = 0.0
        for action in range(order.first[rank], order.first[rank + 1]):
            stage = order.stage[action]
            held += change(order.kind[action], until_input[stage], until_weight[stage])
            found[rank] = max(found[rank], held)
    return found


@jit
def fullest(first, kind, own, classes):
    """Return what ranks hold at the moments of which one is the fullest, whatever stages keep.

    Of stages of every class, micro-batches between their forward pass and the gradients of their
    weights. No moment before it has as many of every class, and none that is left out more. What a
    rank holds at most is the largest of these numbers times what stages of their class keep.

    Parameters
    ----------
    first, kind
        Of an `Order`.
    own : int64[actions]
        Class of the stage of each: those of one class keep as much.
    classes : int

    Returns
    -------
    held : int64[moments, classes]
    begin : int64[ranks + 1]
        Moments of rank r are ``begin[r]`` to ``begin[r + 1] - 1``.
    """
    held, begin = np.empty((kind.size, classes), np.int64), np.empty(first.size, np.int64)
    now = np.empty(classes, np.int64)
    begin[0] = end = 0
    for rank in range(first.size - 1):
        for one in range(classes):
            now[one] = 0
        for action in range(first[rank], first[rank + 1]):
            if kind[action] != FORWARD:
                now[own[action]] -= kind[action] != INPUT
                continue
            now[own[action]] += 1
            if action + 1 < first[rank + 1] and kind[action + 1] == FORWARD:
                continue  # the next moment is fuller
            if not _covered(now, held, begin[rank], end):
                for one in range(classes):
                    held[end, one] = now[one]
                end += 1
        begin[rank + 1] = end
    return held[:end].copy(), begin


@jit_lean
def _covered(now, held, start, end):
    """Tell whether some of the moments has as many of every class."""
    for moment in range(start, end):
        most = True
        for own in range(now.size):
            most = most and now[own] <= held[moment, own]
        if most:
            return True
    return False


@jit
def held_over_time(order, timeline, until_input, until_weight):
    """Return what every rank holds from when on, a step per action of its order.

    Parameters
    ----------
    order : Order
    timeline : Timeline
    until_input, until_weight : float64[stages]
        As in `peaks`.

    Returns
    -------
    float64[actions]
        When it changes: forward passes as they begin, others when they are over [s].
    float64[actions]
        What the rank holds from then on [B].
    """
    actions = order.kind.size
    times = np.empty(actions)
    held = np.empty(actions)
    for rank in range(order.first.size - 1):
        now = 0.0
        for action in range(order.first[rank], order.first[rank + 1]):
            stage = order.stage[action]
            kind = order.kind[action]
            now += change(kind, until_input[stage], until_weight[stage])
            held[action] = now
            times[action] = timeline.start[action] if kind == FORWARD else timeline.end[action]
    return times, held
