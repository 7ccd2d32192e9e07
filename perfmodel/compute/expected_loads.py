"""Loads of uniformly random routing in closed form, in place of draws.

Serving asks for thousands of loads, and its mean matters, not a draw: an expert has a binomial
number of tokens, ranks the sums of theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.compute.grouped_gemm import Loads

BINS = 10
"""Sizes that stand for the spread of one load; an edge lies on a multiple of `BIN_ROWS`."""
BIN_ROWS = 8.0
"""Rows of the lowest tile: sizes between its multiples take as many tiles."""
REACH = 5.0
"""Standard deviations on either side of the mean that the bins cover."""
FEW_ROWS = 16.0
"""Rows of a rank up to which their distribution is summed whole by whole number."""
_RULE = np.polynomial.legendre.leggauss(48)


class ExpectedLoads(NamedTuple):
    """Loads of busiest ranks, as `perfmodel.compute.routing.rank_loads` draws them.

    Attributes
    ----------
    loads : Loads
        Sizes, with the expected number of experts that have each.
    here : ndarray, shape (load,)
        Tokens with at least one expert on the rank.
    rows : ndarray, shape (load,)
        Token and expert pairs on the rank.
    """

    loads: Loads
    here: Floats
    rows: Floats


def expected_loads(
    tokens: Floats,
    experts: Floats,
    top_k: Floats,
    ranks: Floats,
    groups: int = 1,
    group_limit: int = 1,
) -> ExpectedLoads:
    """Return the expected load of the busiest rank where every expert is as likely.

    Parameters
    ----------
    tokens, experts, top_k, ranks : array of float64, shape (load,)
        Tokens of all ranks together, experts of the layer and of a token, and ranks that hold
        equal shares of the experts.
    groups, group_limit : int
        Experts stand in so many groups, and a token visits only so many of them.

    Returns
    -------
    ExpectedLoads

    Notes
    -----
    A token visits an expert with probability ``q = k / E``, so an expert's tokens are binomial
    (T, q) and ``E (1 - (1 - q)^T)`` experts have any, groups or not. A rank's rows are a sum over
    tokens with mean ``T k / e`` and the variance of `_rank_variance`; their expected maximum
    over e ranks follows from the distribution of one rank to the power of e, and scales q of
    the experts there.
    """
    mean = tokens * top_k / ranks
    chosen = top_k / experts
    most = np.where(
        ranks > 1.0,
        expected_maximum(
            mean, tokens * _rank_variance(experts, top_k, ranks, groups, group_limit), ranks
        ),
        mean,
    )
    own = experts / ranks
    most = np.minimum(most, tokens * np.minimum(top_k, own))
    likely = np.minimum(chosen * most / mean, 1.0)
    sizes, counts = _binned_binomial(tokens, likely)
    counts = counts * own[:, None]
    used = counts > 1e-12
    here = np.where(ranks > 1.0, tokens * (1.0 - (1.0 - likely) ** own), tokens)
    return ExpectedLoads(
        Loads(
            tokens=tokens,
            offsets=np.concatenate([[0], np.cumsum(used.sum(axis=1))]),
            sizes=sizes[used],
            counts=counts[used],
        ),
        here=np.maximum(here, most / np.minimum(top_k, own)),
        rows=most,
    )


def expected_maximum(mean: Floats, variance: Floats, ranks: Floats) -> Floats:
    """Return the expected largest of equally distributed sums with a fixed total.

    Parameters
    ----------
    mean, variance : array of float64
        Of one sum.
    ranks : array of float64
        How many there are, at least 2.

    Notes
    -----
    ``E[max] = sum over x of 1 - F(x)^e`` with F binomial of the same mean and variance. Beyond
    `FEW_ROWS`, and where the variance exceeds the mean, sums are gamma-distributed. That they add
    up to ``e mean`` widens their differences by ``e / (e - 1)``.
    """
    from scipy.special import gammaincinv

    number = ranks[:, None]
    wide = variance * ranks / np.maximum(ranks - 1.0, 1.0)
    shape = np.maximum(mean, 1e-12) ** 2 / np.maximum(wide, 1e-12)
    nodes, weights = _RULE
    # E[max] = integral of quantile(u^(1/e)) over u in (0, 1)
    level = ((nodes + 1.0) / 2.0)[None, :] ** (1.0 / number)
    quantile = gammaincinv(shape[:, None], level) * (mean / shape)[:, None]
    found = (quantile * weights / 2.0).sum(axis=1)
    few = (mean <= FEW_ROWS) & (wide < mean)
    chance = np.clip(1.0 - wide[few] / mean[few], 1e-3, 1.0)
    values = np.broadcast_to(np.arange(4.0 * FEW_ROWS), (int(few.sum()), int(4 * FEW_ROWS)))
    below = _binomial(values, mean[few] / chance, chance)
    found[few] = (1.0 - below ** number[few]).sum(axis=1)
    return np.asarray(np.maximum(found, mean))


def _rank_variance(
    experts: Floats, top_k: Floats, ranks: Floats, groups: int, group_limit: int
) -> Floats:
    """Return the variance of a token's choices that lie on one rank.

    Without groups they are hypergeometric: k draws from E experts of which E/e count. With
    groups, the experts that may be chosen and lie on the rank vary first.
    """
    share = 1.0 / ranks
    if group_limit >= groups:
        return np.asarray(
            top_k * share * (1.0 - share) * (experts - top_k) / np.maximum(experts - 1.0, 1.0)
        )
    open_experts = experts * group_limit / groups
    kept = group_limit / groups
    # Groups of a rank, or the part of one group that it holds.
    held = np.maximum(groups / ranks, 1.0)
    part = np.minimum(groups / ranks, 1.0)
    spread = held * kept * (1.0 - kept) * (groups - held) / max(groups - 1.0, 1.0)
    # choices on the rank given j open groups of it: k p, p = j part / group_limit
    between = (top_k * part / group_limit) ** 2 * spread
    first = held * kept * part / group_limit
    second = first**2 + spread * (part / group_limit) ** 2
    finite = (open_experts - top_k) / np.maximum(open_experts - 1.0, 1.0)
    return np.asarray(between + top_k * (first - second) * finite)


def _binned_binomial(tokens: Floats, chance: Floats) -> tuple[Floats, Floats]:
    """Return the mean size in each bin, and its probability, both of shape (load, bin)."""
    mean = tokens * chance
    deviation = np.sqrt(mean * (1.0 - chance))
    span = np.maximum(2.0 * REACH * deviation, 1.0)
    width = BIN_ROWS * np.ceil(span / (BIN_ROWS * (BINS - 2)))
    low = width * np.floor(np.maximum(mean - REACH * deviation, 0.0) / width)
    edges = low[:, None] + width[:, None] * np.arange(BINS)[None, :]
    below = _binomial(edges, tokens, chance)
    # E[X; X <= x] = T q P(X' <= x - 1) with one token fewer
    partial = mean[:, None] * _binomial(edges - 1.0, tokens - 1.0, chance)
    ends = np.ones((tokens.size, 1))
    probability = np.diff(np.hstack([0.0 * ends, below, ends]), axis=1)
    moment = np.diff(np.hstack([0.0 * ends, partial, ends * mean[:, None]]), axis=1)
    probability = np.where(probability > 1e-9, probability, 0.0)
    size = np.divide(moment, probability, out=np.zeros_like(moment), where=probability > 0.0)
    return np.maximum(size, 0.0), probability


def _binomial(value: Floats, tokens: Floats, chance: Floats) -> Floats:
    """Return P(X <= value) of binomial X, elementwise over the rows of `value`."""
    from scipy.special import betainc

    trials, q = tokens[:, None], np.clip(chance, 0.0, 1.0)[:, None]
    inside = (value >= 0.0) & (value < trials)
    x = np.where(inside, value, 0.0)
    found = betainc(np.maximum(trials - x, 1e-9), x + 1.0, 1.0 - q)
    return np.where(inside, found, (value >= trials) & (value >= 0.0))
