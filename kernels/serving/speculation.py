"""Speculation: tokens that a pass yields for a sequence when drafts are verified in it."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import PassTables


@jit
def tokens_per_pass(draft_length: float, acceptance: float) -> float:
    """Return the mean tokens that a sequence gains in a pass.

    Parameters
    ----------
    draft_length : float
        Drafted tokens gamma, verified at once.
    acceptance : float
        Chance alpha that one is taken, given those before it were.

    Returns
    -------
    float
        (1 - alpha^(gamma + 1)) / (1 - alpha): the drafts taken, and one token more of the
        model itself (Leviathan, Kalman, Matias: arXiv 2211.17192, equation 1).
    """
    if draft_length <= 0.0:
        return 1.0
    if acceptance >= 1.0:
        return draft_length + 1.0
    return (1.0 - acceptance ** (draft_length + 1.0)) / (1.0 - acceptance)


@jit
def pass_variation(draft_length: float, acceptance: float) -> float:
    """Return the variance of the tokens that a sequence gains in a pass.

    The tokens X are at least k with chance alpha^(k - 1), k up to gamma + 1; so the mean of
    their square is the sum of (2 k - 1) alpha^(k - 1).
    """
    square, chance, k = 0.0, 1.0, 1.0
    while k <= draft_length + 1.0:
        square += (2.0 * k - 1.0) * chance
        chance *= acceptance
        k += 1.0
    mean = tokens_per_pass(draft_length, acceptance)
    return max(square - mean * mean, 0.0)


@jit
def last_paying_batch(
    tables: PassTables,
    plain_row: int,
    row: int,
    draft_length: float,
    acceptance: float,
    context: float,
    most: float,
) -> float:
    """Return the largest batch whose tokens come faster with drafts than without.

    Parameters
    ----------
    tables : PassTables
    plain_row, row : int
        The layout without drafts, and the same with them.
    draft_length, acceptance : float
        As of `tokens_per_pass`.
    context : float
        Tokens that each sequence keeps.
    most : float
        Largest batch of interest, at least 1.

    Returns
    -------
    float
        0 where drafts never pay, `most` where they always do.

    Notes
    -----
    A pass that verifies drafts costs gamma + 1 tokens per sequence and the drafts themselves; it
    is worth as many passes without as it yields tokens. While a pass only reads weights the
    tokens come free; the more sequences, the more they cost. The last batch that pays is found by
    halving: about it, where sizes of captured passes change, a batch may differ from its
    neighbours.
    """
    gained = tokens_per_pass(draft_length, acceptance)
    verified = 1.0 + draft_length
    low, high = 0.0, most + 1.0
    batch = most
    while high - low > 1.0:
        plain = pass_times(tables, plain_row, 0.0, 0.0, 0.0, batch, context, 1.0, 0.0)[0]
        drafted = pass_times(tables, row, 0.0, 0.0, 0.0, batch, context, verified, 0.0)[0]
        if drafted < gained * plain:
            low = batch
        else:
            high = batch
        batch = math.floor(0.5 * (low + high))
        if batch <= low:
            break
    return low
