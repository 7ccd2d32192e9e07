"""Loads of random routing in closed form, and experts of many tokens, drawn.

Serving asks for thousands of loads, and its mean matters, not a draw: an expert has a binomial
number of tokens, ranks the sums of theirs. Experts are as likely as each other ("uniform"), or
popular as real ones are ("two_level", `perfmodel.compute.routing`).

The distribution of drawn tokens is that of `perfmodel.compute.routing.assign`, by the faster
kernel; how popular experts are stays the same from draw to draw.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.base.routing import Routing
from perfmodel.compute.grouped_gemm import Loads
from perfmodel.compute.routing import (
    EXPERT_FREEDOM,
    EXPERT_SCALE,
    GROUP_DEVIATION,
    LEVEL_GROUPS,
    check_sizes,
    inclusion_probabilities,
    load_shares,
)

BINS = 10
"""Sizes that stand for the spread of one load; an edge lies on a multiple of `BIN_ROWS`."""
BIN_ROWS = 8.0
"""Rows of the lowest tile: sizes between its multiples take as many tiles."""
REACH = 5.0
"""Standard deviations on either side of the mean that the bins cover."""
FEW_ROWS = 16.0
"""Rows of a rank up to which their distribution is summed whole by whole number."""
NODES = 16
"""Popularities that stand for those of all experts."""
DISTRIBUTIONS = ("uniform", "two_level")
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
    *,
    distribution: str = "uniform",
) -> ExpectedLoads:
    """Return the expected load of the busiest rank.

    Parameters
    ----------
    tokens, experts, top_k, ranks : array of float64, shape (load,)
        Tokens of all ranks together, experts of the layer and of a token, and ranks that hold
        equal shares of the experts.
    groups, group_limit : int
        Experts stand in so many groups, and a token visits only so many of them.
    distribution : {"uniform", "two_level"}
        As `perfmodel.base.routing.Routing` has them.

    Returns
    -------
    ExpectedLoads

    Notes
    -----
    A token visits an expert of popularity w with probability ``q = k w / E``, so its tokens are
    binomial (T, q) and ``sum over experts of 1 - (1 - q)^T`` have any, groups or not. A rank's
    rows are a sum over tokens with mean ``T k / e``, the variance of `_rank_variance` and that of
    its experts' popularity; their expected maximum over e ranks (`expected_maximum`) scales q of
    the experts there.
    """
    mean = tokens * top_k / ranks
    own = experts / ranks
    variance = tokens * _rank_variance(experts, top_k, ranks, groups, group_limit)
    if distribution != "uniform":
        variance = variance + mean**2 * _popularity_variance(experts, ranks)
    most = np.where(ranks > 1.0, expected_maximum(mean, variance, ranks), mean)
    most = np.minimum(most, tokens * np.minimum(top_k, own))
    likely = _chances(top_k / experts, distribution)
    likely = np.minimum(likely * (most / mean)[:, None], 1.0)
    sizes, counts = _binned_binomial(tokens, likely)
    counts = counts * own[:, None]
    used = counts > 1e-12
    missed = (1.0 - likely.mean(axis=1)) ** own
    here = np.where(ranks > 1.0, tokens * (1.0 - missed), tokens)
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


FINE_NODES = 256
"""The same for their variance, which rests on the few most popular."""


@lru_cache(maxsize=2)
def popularities(nodes: int = NODES) -> Floats:
    """Return popularities with mean 1 that stand for those of real experts, shape (nodes,).

    Logarithms are a group's normal number and an expert's Student t: together a t that is as
    wide, at the middles of equally likely ranges.
    """
    from scipy.special import stdtrit

    narrowing = (EXPERT_FREEDOM - 2.0) / EXPERT_FREEDOM
    scale = np.sqrt(EXPERT_SCALE**2 + GROUP_DEVIATION**2 * narrowing)
    found = np.exp(scale * stdtrit(EXPERT_FREEDOM, (np.arange(nodes) + 0.5) / nodes))
    return np.asarray(found / found.mean())


def _chances(mean: Floats, distribution: str) -> Floats:
    """Return the chances that a token visits experts of every popularity, shape (load, node)."""
    if distribution == "uniform":
        return mean[:, None]
    distinct, inverse = np.unique(mean, return_inverse=True)
    shares = popularities() / NODES
    found = [inclusion_probabilities(shares, float(each) * NODES) for each in distinct]
    return np.array(found)[np.ravel(inverse)]


def _popularity_variance(experts: Floats, ranks: Floats) -> Floats:
    """Return the squared coefficient of variation of the popularity of ranks."""
    group = np.expm1(GROUP_DEVIATION**2)
    within = max(float(np.mean(popularities(FINE_NODES) ** 2)) - 1.0 - group, 0.0)
    own = experts / ranks
    together = np.maximum(LEVEL_GROUPS / ranks, 1.0)  # groups of a rank
    grouped = np.where(experts % LEVEL_GROUPS == 0, group / together, 0.0)
    return np.asarray((grouped + within / own) * (1.0 - 1.0 / ranks))


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


def _binned_binomial(tokens: Floats, chances: Floats) -> tuple[Floats, Floats]:
    """Return the mean size in each bin, and its probability, both of shape (load, bin).

    `chances` has shape (load, node); nodes are equally likely.
    """
    count = tokens[:, None]
    means = count * chances
    reach = REACH * np.sqrt(means * (1.0 - chances))
    least = np.maximum(means - reach, 0.0).min(axis=1)
    span = np.maximum((means + reach).max(axis=1) - least, 1.0)
    width = BIN_ROWS * np.ceil(span / (BIN_ROWS * (BINS - 2)))
    low = width * np.floor(least / width)
    edges = low[:, None] + width[:, None] * np.arange(BINS)[None, :]
    probability = np.zeros((tokens.size, BINS + 1))
    moment = np.zeros((tokens.size, BINS + 1))
    ends = np.ones((tokens.size, 1))
    for chance, mean in zip(chances.T, means.T, strict=True):
        below = _binomial(edges, tokens, chance)
        # E[X; X <= x] = T q P(X' <= x - 1) with one token fewer
        partial = mean[:, None] * _binomial(edges - 1.0, tokens - 1.0, chance)
        probability += np.diff(np.hstack([0.0 * ends, below, ends]), axis=1)
        moment += np.diff(np.hstack([0.0 * ends, partial, ends * mean[:, None]]), axis=1)
    probability = np.where(probability > 1e-9, probability, 0.0)
    size = np.divide(moment, probability, out=np.zeros_like(moment), where=probability > 0.0)
    return np.maximum(size, 0.0), probability / chances.shape[1]


def _binomial(value: Floats, tokens: Floats, chance: Floats) -> Floats:
    """Return P(X <= value) of binomial X, elementwise over the rows of `value`."""
    from scipy.special import betainc

    trials, q = tokens[:, None], np.clip(chance, 0.0, 1.0)[:, None]
    inside = (value >= 0.0) & (value < trials)
    x = np.where(inside, value, 0.0)
    found = betainc(np.maximum(trials - x, 1e-9), x + 1.0, 1.0 - q)
    return np.where(inside, found, (value >= trials) & (value >= 0.0))


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
    from perfmodel.kernels import routing as kernel
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
