"""Experts of many tokens, drawn from how popular they are.

The distribution is that of `perfmodel.compute.routing.assign`, by the faster kernel; how popular
experts are stays the same from draw to draw.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.compute.routing import (
    Routing,
    check_sizes,
    inclusion_probabilities,
    load_shares,
)

TRIAL_TOKENS = 4096
"""Tokens of a trial draw."""
TRIAL_POWER = 0.6
"""How far a trial is followed: choosing groups by their best two experts turns more weight into
more than as much more load. Of the reference counts of 58 layers (docs/routing.md) shares of groups
are off by 4.7 % (root mean square) without a trial, by 1.5 % after two."""


def draw_weights(
    routing: Routing,
    experts: int,
    top_k: int,
    layer: int = 0,
    groups: int = 1,
    group_limit: int = 1,
    trials: int = 0,
) -> Floats:
    """Return weights with which draws include each expert as often as it is to be.

    Parameters
    ----------
    routing : Routing
        One that fixes shares and draws tokens: uniform, dirichlet, two_level or empirical.
    experts, top_k : int
    layer : int
        Which draw of the shares; which layer of an empirical routing.
    groups, group_limit : int
        Groups of experts, and those that a token may use.
    trials : int
        Corrections of what the limit of groups shifts between experts, each by a trial draw.

    Returns
    -------
    array of float, shape (experts,)

    Raises
    ------
    DataError
        Sizes don't fit.

    Notes
    -----
    Without groups, weights ``-log(1 - q)`` of the inclusion probabilities ``q`` undo what draws
    without replacement shift (Rosén 1972). Groups are chosen by their two best keys, which favours
    busy groups; each trial divides that out again.
    """
    check_sizes(1, experts, top_k)
    wanted = inclusion_probabilities(load_shares(routing, experts, layer), top_k)
    weights: Floats = -np.log1p(-np.minimum(wanted, 1.0 - 1e-9))
    if group_limit >= groups:
        return weights
    for trial in range(trials):
        drawn = draw_tokens(
            weights, TRIAL_TOKENS, top_k, seed=routing.seed, draw=~trial,
            groups=groups, group_limit=group_limit,
        )  # fmt: skip
        # Sums of groups only: single experts would take on the noise of the trial.
        size = experts // groups
        seen = np.bincount(drawn.ravel() // size, minlength=groups) / TRIAL_TOKENS
        asked = wanted.reshape(groups, size).sum(axis=1)
        weights = weights * np.repeat((asked / np.maximum(seen, 1e-3)) ** TRIAL_POWER, size)
    return weights


def draw_tokens(
    weights: Floats,
    tokens: int,
    top_k: int,
    *,
    seed: int = 0,
    draw: int = 0,
    groups: int = 1,
    group_limit: int = 1,
) -> Integers:
    """Return the experts of every token.

    Parameters
    ----------
    weights : array of float, shape (experts,)
        From `draw_weights`.
    tokens, top_k : int
    seed, draw : int
        Independent draws of the same seed.
    groups, group_limit : int
        Groups of consecutive experts, and those that a token may use.

    Returns
    -------
    array of int64, shape (tokens, top_k)

    Raises
    ------
    DataError
        Sizes don't fit.
    """
    from perfmodel.kernels import token_draws as kernel
    from perfmodel.kernels.work import kernel_work

    check_sizes(tokens, weights.size, top_k)
    if weights.size % groups or top_k > weights.size // groups * group_limit:
        raise DataError(
            f"routing: {top_k} of {weights.size} experts in {group_limit} of {groups} groups"
        )
    assignment = np.empty((tokens, top_k), np.int64)
    stream = (seed * 1_000_003 + 2 * draw) % 2**62
    with kernel_work(raced_experts=tokens * (top_k + 2 * groups)):
        kernel.race_tokens(weights, top_k, groups, group_limit, stream, 0, assignment)
    return assignment
