"""Experts of tokens as a race: the same distribution as of `kernels/routing.py`, with few draws.

An expert arrives after an exponential time at the rate of its weight; a token takes the first
``top_k`` to arrive. That is a draw one after the other without putting back, and the keys
``weight / -log(u)`` of `assign_tokens` are one over such times. Here only those are drawn that
can win: the next to arrive is an expert in proportion to the weights of those left.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.routing import unit_uniform

TRIES = 32
"""Draws from a table that may hit an expert taken before, ahead of a walk over those left."""
STRIDE = 1 << 16
"""Random numbers set aside for a token: at most ``TRIES + 2`` for each expert that arrives."""


@jit
def alias_tables(weights, groups):
    """Make tables from which an expert of a group is drawn with one random number.

    Parameters
    ----------
    weights : ndarray, shape (expert,)
        Relative popularity, >= 0.
    groups : int
        Equal consecutive groups.

    Returns
    -------
    keep : ndarray, shape (expert,)
        Probability that the place drawn stays.
    other : ndarray of int64, shape (expert,)
        The expert otherwise.
    totals : ndarray, shape (groups,)
        Sums of weights.

    Notes
    -----
    A. J. Walker 1977; M. D. Vose 1991.
    """
    experts = weights.shape[0]
    size = experts // groups
    keep = np.ones(experts)
    other = np.arange(experts)
    totals = np.zeros(groups)
    stack = np.empty(size, np.int64)  # poor from the left, rich from the right
    for group in range(groups):
        begin = group * size
        total = 0.0
        for e in range(begin, begin + size):
            total += weights[e]
        totals[group] = total
        if total <= 0.0:
            continue
        poor = 0
        rich = size
        for e in range(begin, begin + size):
            keep[e] = weights[e] * size / total
            if keep[e] < 1.0:
                stack[poor] = e
                poor += 1
            else:
                rich -= 1
                stack[rich] = e
        while poor > 0 and rich < size:
            poor -= 1
            low = stack[poor]
            high = stack[rich]
            other[low] = high
            keep[high] -= 1.0 - keep[low]
            if keep[high] < 1.0:
                rich += 1
                stack[poor] = high
                poor += 1
        for place in range(poor):  # what rounding leaves
            keep[stack[place]] = 1.0
    return keep, other, totals


@jit_lean
def next_expert(weights, keep, other, begin, size, taken, token, seed, index):
    """Draw the next expert of a group among those that the token has not taken.

    Parameters
    ----------
    weights, keep, other : ndarray, shape (expert,)
        See `alias_tables`.
    begin, size : int
        The group; at least one of its experts is not taken.
    taken : ndarray of int64, shape (expert,)
        Last token that took each expert; the one drawn is noted.
    token, seed, index : int
        Stream of random numbers, and the next of it.

    Returns
    -------
    expert, index : int
    """
    for _ in range(TRIES):
        place = unit_uniform(seed, index) * size
        index += 1
        e = begin + min(int(place), size - 1)
        if place - int(place) >= keep[e]:
            e = other[e]
        if taken[e] != token and weights[e] > 0.0:
            taken[e] = token
            return e, index
    rest = 0.0
    for e in range(begin, begin + size):
        if taken[e] != token:
            rest += weights[e]
    goal = unit_uniform(seed, index) * rest
    index += 1
    chosen = -1
    for e in range(begin, begin + size):
        if taken[e] != token:
            if chosen < 0 or weights[e] > 0.0:
                chosen = e
            goal -= weights[e]
            if goal < 0.0:
                break
    taken[chosen] = token
    return chosen, index


@jit
def race_tokens(weights, top_k, groups, group_limit, seed, first, assignment):
    """Draw every token's experts without replacement, in proportion to `weights`.

    Parameters
    ----------
    weights : ndarray, shape (expert,)
        Relative popularity, >= 0.
    top_k : int
        Distinct experts per token.
    groups, group_limit : int
        Equal consecutive groups of experts, of which a token may use `group_limit`: those with
        the largest sum of their two best keys (DeepSeek-V3 report, node-limited routing).
    seed : int
        Stream of random numbers.
    first : int
        Number of the first token, so that parts of a batch can be drawn apart.
    assignment : ndarray of int64, shape (token, top_k)
        Result.
    """
    experts = weights.shape[0]
    taken = np.full(experts, -1)
    if group_limit >= groups:
        keep, other, _ = alias_tables(weights, 1)
        for token in range(assignment.shape[0]):
            index = (first + token) * STRIDE
            for j in range(top_k):
                assignment[token, j], index = next_expert(
                    weights, keep, other, 0, experts, taken, token, seed, index
                )
        return
    size = experts // groups
    keep, other, totals = alias_tables(weights, groups)
    arrived = np.empty((groups, 2), np.int64)  # the next of a group and the one behind it
    times = np.empty((groups, 2))
    left = np.empty(groups)  # weights of those not drawn
    drawn = np.empty(groups, np.int64)
    scores = np.empty(groups)
    for token in range(assignment.shape[0]):
        index = (first + token) * STRIDE
        for g in range(groups):
            left[g] = totals[g]
            drawn[g] = 0
            clock = 0.0
            scores[g] = 0.0
            for j in range(2):
                arrived[g, j] = -1
                times[g, j] = math.inf
                if drawn[g] == size:
                    continue
                if left[g] > 1e-12 * totals[g]:
                    clock -= math.log(unit_uniform(seed, index)) / left[g]
                else:
                    clock = math.inf
                index += 1
                e, index = next_expert(
                    weights, keep, other, g * size, size, taken, token, seed, index
                )
                left[g] -= weights[e]
                drawn[g] += 1
                arrived[g, j] = e
                times[g, j] = clock
                scores[g] += 1.0 / max(clock, 1e-300)
        for _ in range(groups - group_limit):
            worst = 0
            for g in range(1, groups):
                if scores[g] < scores[worst]:
                    worst = g
            scores[worst] = math.inf
            arrived[worst, 0] = -1
        for j in range(top_k):
            g = -1
            for other_group in range(groups):
                if arrived[other_group, 0] >= 0 and (g < 0 or times[other_group, 0] < times[g, 0]):
                    g = other_group
            assignment[token, j] = arrived[g, 0]
            clock = times[g, 1]
            arrived[g, 0] = arrived[g, 1]
            times[g, 0] = clock
            arrived[g, 1] = -1
            times[g, 1] = math.inf
            if arrived[g, 0] >= 0 and drawn[g] < size:
                if left[g] > 1e-12 * totals[g]:
                    clock -= math.log(unit_uniform(seed, index)) / left[g]
                else:
                    clock = math.inf
                index += 1
                e, index = next_expert(
                    weights, keep, other, g * size, size, taken, token, seed, index
                )
                left[g] -= weights[e]
                drawn[g] += 1
                arrived[g, 1] = e
                times[g, 1] = clock
