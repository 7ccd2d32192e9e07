"""What ranks of a pipeline hold between forward and backward passes: most of it, and over time."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT


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
