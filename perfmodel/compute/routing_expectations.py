"""What a routing leads to on average: active experts, the largest load, imbalance of ranks.

Functions of inclusion probabilities need no draw and take whole grids at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import DataError
from perfmodel.compute.routing import Routing, load_shares, loads

Floats = NDArray[np.float64]

MANY_TOKENS = 1 << 14
"""Stands for the limit of many tokens where loads depend on their number."""


def expected_active_experts(inclusion: ArrayLike, tokens: ArrayLike) -> Floats:
    """Return the expected number of experts that see at least one token.

    Parameters
    ----------
    inclusion : array_like, shape (expert,)
        Probability that a token uses each expert, 0 to 1.
    tokens : array_like of float
        Any shape.

    Returns
    -------
    ndarray
        Shape of `tokens`: ``sum(1 - (1 - q)^tokens)``. For uniform routing this is
        ``E (1 - (1 - k/E)^T)``.
    """
    chosen = np.asarray(inclusion, np.float64)
    count = np.asarray(tokens, np.float64)
    with np.errstate(divide="ignore"):
        missed = np.exp(count[..., None] * np.log1p(-chosen))
    return np.asarray((1.0 - missed).sum(axis=-1))


def expected_largest_load(inclusion: ArrayLike, tokens: ArrayLike) -> Floats:
    """Return the expected load of the busiest expert.

    Parameters
    ----------
    inclusion : array_like, shape (expert,)
        Probability that a token uses each expert.
    tokens : array_like of int
        Any shape, >= 1.

    Returns
    -------
    ndarray
        ``sum over m of 1 - prod(P(load <= m))`` with independent binomial loads: the
        tie between loads, whose sum is fixed, is weak for more than a few experts.
    """
    from scipy.special import bdtr

    chosen = np.asarray(inclusion, np.float64)
    flat = np.asarray(tokens, np.int64).reshape(-1)
    result = np.empty(flat.size)
    for i, count in enumerate(flat):
        mean = count * chosen.max()
        spread = 8.0 * np.sqrt(mean + 1.0) + 8.0
        low, high = max(0, int(mean - spread)), min(int(count), int(mean + spread) + 1)
        step = max(1, (high - low) // 256)
        grid = np.arange(low, high, step, dtype=np.float64)
        below = bdtr(grid[:, None], int(count), np.minimum(chosen, 1.0)).prod(axis=1)
        widths = np.diff(np.append(grid, high))
        following = np.append(below[1:], 1.0)
        tail = 1.0 - (below if step == 1 else 0.5 * (below + following))
        result[i] = low + (tail * widths).sum()
    return result.reshape(np.shape(tokens))


def imbalance(
    routing: Routing,
    experts: int,
    top_k: int,
    ranks: int,
    tokens: int | None = None,
    draws: int = 64,
    quantiles: Sequence[float] = (0.1, 0.5, 0.9),
) -> Floats:
    """Return quantiles of the busiest rank's load relative to the mean.

    Parameters
    ----------
    routing : Routing
    experts, top_k : int
    ranks : int
        Expert-parallel ranks; experts are spread as evenly as they go.
    tokens : int, optional
        None: the limit of many tokens, shares alone.
    draws : int
        Draws of the distribution, or layers of an empirical one.
    quantiles : sequence of float
        0 to 1. The tail of one layer is scattered, so one value says little.

    Returns
    -------
    ndarray, shape (1 + quantile,)
        Mean over the draws, then the quantiles.
    """
    edges = np.linspace(0, experts, ranks + 1).astype(np.int64)[:-1]
    if ranks > experts:
        raise DataError(f"routing: {experts} experts cannot be spread over {ranks} ranks")
    values = np.empty(draws if routing.random else 1)
    for draw in range(values.size):
        if tokens is None and routing.distribution not in ("identical", "power_law"):
            own = load_shares(routing, experts, draw)
        else:
            own = loads(routing, tokens or MANY_TOKENS, experts, top_k, draw).astype(np.float64)
        values[draw] = np.add.reduceat(own, edges).max() / own.sum() * ranks
    return np.concatenate([[values.mean()], np.quantile(values, np.asarray(quantiles))])
