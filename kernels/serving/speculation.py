"""Speculation: tokens that a pass yields for a sequence when drafts are verified in it."""

from __future__ import annotations

from perfmodel.kernels._jit import jit


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
