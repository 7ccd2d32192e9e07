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
