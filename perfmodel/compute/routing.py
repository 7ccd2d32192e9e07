"""Which experts the tokens of a mixture-of-experts layer go to.

A `Routing` names a distribution of load over experts. From it follow

- assignments of tokens to experts, never the same expert twice for a token;
- loads, whole numbers that sum to tokens times experts per token.

docs/routing.md describes the distributions and how they compare with real loads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.base.routing import COUNTED, Routing

MOST = 2**27  # tokens, experts; beyond any layer, and drawn within seconds
# Two-level model of reference loads: 58 layers of DeepSeek-V3 on MMLU, counts of
# huawei-csl/wse-workload-generator 85e1ae7; fit of the logarithm of load / mean.
GROUP_DEVIATION = 0.160  # between the groups of experts, normal
EXPERT_FREEDOM = 6.04  # within a group, Student's t
EXPERT_SCALE = 0.380
LEVEL_GROUPS = 8  # the model's own groups of consecutive experts

DRAWN_CELLS = 1 << 22
"""Tokens times experts up to which loads are drawn token by token; above it their
deviation from the mean is normal to a good approximation, and a draw would be slow."""


def check_sizes(tokens: int, experts: int, top_k: int, ranks: int = 1) -> None:
    """Refuse sizes that no router could have.

    Raises
    ------
    DataError
    """
    for name, number in (("tokens", tokens), ("experts", experts), ("top_k", top_k)):
        if number != int(number) or number < 1:
            raise DataError(f"routing: {name} is {number}; it must be a whole number of at least 1")
        if number > MOST:
            raise DataError(f"routing: {name} is {number}; at most {MOST:,} are routed")
    if top_k > experts:
        raise DataError(f"routing: {top_k} experts per token, but the layer has {experts}")
    if ranks < 1 or experts % ranks:
        raise DataError(f"routing: {experts} experts don't divide evenly among {ranks} ranks")


def load_shares(routing: Routing, experts: int, draw: int = 0) -> Floats:
    """Return each expert's share of the load in the limit of many tokens.

    Parameters
    ----------
    routing : Routing
        Not ``power_law`` or ``identical``, whose loads depend on the tokens.
    experts : int
    draw : int
        Which draw of a random distribution; which layer of an empirical one.

    Returns
    -------
    ndarray, shape (expert,)
        Sum 1. Shares above ``1 / top_k`` cannot come out; see `inclusion_probabilities`.
    """
    name = routing.distribution
    if name in ("uniform", "balanced"):
        return np.full(experts, 1.0 / experts)
    if name == "empirical":
        counts = np.array(routing.counts[draw % len(routing.counts)])
        if counts.size != experts:
            raise DataError(
                f"routing: counts of {counts.size} experts, but the layer has {experts}"
            )
        return counts / counts.sum()
    from scipy.special import gammaincinv, ndtri, stdtrit  # slow to import

    u = _uniforms(routing.seed, draw, experts + LEVEL_GROUPS)
    if name == "dirichlet":
        drawn = np.maximum(gammaincinv(routing.value, u[:experts]), 1e-300)
    elif name == "two_level":
        groups = LEVEL_GROUPS if experts % LEVEL_GROUPS == 0 else 1
        group = GROUP_DEVIATION * ndtri(u[experts : experts + groups])
        own = EXPERT_SCALE * stdtrit(EXPERT_FREEDOM, u[:experts])
        drawn = np.exp(np.repeat(group, experts // groups) + own)
    else:
        raise DataError(f"routing '{name}': loads depend on the number of tokens")
    return np.asarray(drawn / drawn.sum())


def inclusion_probabilities(shares: Floats, top_k: float) -> Floats:
    """Return the probability that a token uses each expert, sum `top_k`.

    Shares above ``1 / top_k`` are cut there, as a token uses an expert at most once; the
    rest goes to the other experts in proportion.
    """
    chosen = np.minimum(shares * top_k, 1.0)
    for _ in range(shares.size):
        missing = top_k - chosen.sum()
        room = chosen < 1.0
        if missing <= 1e-12 * top_k or not room.any():
            break
        free = chosen[room].sum()
        scaled = chosen[room] * (1.0 + missing / free) if free > 0.0 else missing / room.sum()
        chosen[room] = np.minimum(scaled, 1.0)
    return np.asarray(chosen)


def assign(routing: Routing, tokens: int, experts: int, top_k: int, draw: int = 0) -> Integers:
    """Return the experts of every token.

    Parameters
    ----------
    routing : Routing
    tokens, experts, top_k : int
    draw : int
        Independent draws of the same distribution.

    Returns
    -------
    ndarray of int64, shape (token, top_k)
        Different experts in every row.

    Raises
    ------
    DataError
        Sizes don't fit.

    Notes
    -----
    A draw without replacement in proportion to the shares would flatten them: a
    token that has the most popular expert takes the others from the rest. Its
    weights are ``-log(1 - q)`` of the wanted inclusion probabilities ``q``, which
    undoes that (Rosén 1972).
    """
    from perfmodel.kernels import routing as kernel
    from perfmodel.kernels.work import kernel_work

    check_sizes(tokens, experts, top_k)
    _check_groups(routing, experts, top_k)
    assignment = np.empty((tokens, top_k), np.int64)
    if routing.distribution in COUNTED:
        counts = loads(routing, tokens, experts, top_k, draw)
        with kernel_work(assigned_tokens=tokens * top_k):
            kernel.spread_loads(counts, tokens, top_k, assignment)
        return assignment
    chosen = inclusion_probabilities(load_shares(routing, experts, draw), top_k)
    weights = -np.log1p(-np.minimum(chosen, 1.0 - 1e-9))
    with kernel_work(drawn_experts=tokens * experts):
        kernel.assign_at_once(
            weights, top_k, routing.groups, routing.group_limit, _stream(routing.seed, draw) + 1, 0,
            assignment,
        )  # fmt: skip
    return assignment


def loads(
    routing: Routing, tokens: int, experts: int, top_k: int, draw: int = 0, ranks: int = 1
) -> Integers:
    """Return the tokens that go to each expert, sum ``tokens top_k``.

    Parameters
    ----------
    routing : Routing
    tokens, experts, top_k, draw : int
        See `assign`.
    ranks : int
        ``power_law`` only: its rounding goes rank by rank, and it puts the busiest first.

    Returns
    -------
    ndarray of int64, shape (expert,)
    """
    from perfmodel.kernels import routing as kernel
    from perfmodel.kernels.work import kernel_work

    check_sizes(tokens, experts, top_k, ranks)
    _check_groups(routing, experts, top_k)
    result = np.zeros(experts, np.int64)
    name = routing.distribution
    if name == "identical":
        result[:top_k] = tokens
    elif name == "balanced":
        # evenly over ranks too: the experts with one token more are spread out
        edges = np.arange(experts + 1) * (tokens * top_k)
        result[:] = np.diff(edges // experts)
    elif name == "power_law":
        with kernel_work(drawn_experts=experts):
            kernel.power_law_loads(
                routing.value, tokens, top_k, ranks, _stream(routing.seed, draw), result
            )
    elif tokens * experts <= DRAWN_CELLS or routing.groups > routing.group_limit:
        assignment = assign(routing, tokens, experts, top_k, draw)
        result[:] = np.bincount(assignment.ravel(), minlength=experts)
    else:
        from scipy.special import ndtri

        chosen = inclusion_probabilities(load_shares(routing, experts, draw), top_k)
        noise = ndtri(_uniforms(routing.seed, draw, 2 * experts + LEVEL_GROUPS)[-experts:])
        drawn = tokens * chosen + noise * np.sqrt(tokens * chosen * (1.0 - chosen))
        with kernel_work(drawn_experts=experts):
            kernel.whole_loads(np.maximum(drawn, 0.0), tokens, top_k, result)
    return result


class RankLoads(NamedTuple):
    """What the busiest expert-parallel rank has to do.

    Attributes
    ----------
    tokens : int
        Tokens with at least one expert on the rank.
    loads : ndarray of int64, shape (local expert,)
        Tokens per expert, descending.
    """

    tokens: int
    loads: Integers


@lru_cache(maxsize=1 << 14)
def rank_loads(
    routing: Routing, tokens: int, experts: int, top_k: int, ranks: int, draw: int = 0
) -> RankLoads:
    """Return the loads of the busiest of `ranks` expert-parallel ranks.

    Parameters
    ----------
    routing : Routing
    tokens : int
        Tokens of all ranks together.
    experts, top_k, draw : int
        See `assign`.
    ranks : int
        Hold equal consecutive shares of the experts.

    Raises
    ------
    DataError
        Sizes don't fit.
    """
    from perfmodel.kernels import routing as kernel
    from perfmodel.kernels.work import kernel_work

    counts = loads(routing, tokens, experts, top_k, draw, ranks)
    size = experts // ranks
    rank = int(np.argmax(counts.reshape(ranks, size).sum(axis=1)))
    own = counts[rank * size : (rank + 1) * size]
    if routing.distribution == "balanced":
        here = min(tokens, int(own.sum()))
    elif ranks == 1:
        here = tokens
    else:
        here = round(tokens * (1.0 - np.prod(1.0 - own / tokens)))
        if routing.distribution in COUNTED:
            with kernel_work(assigned_tokens=tokens * top_k):
                places = rank * size, (rank + 1) * size
                here = int(kernel.tokens_of_rank(counts, tokens, top_k, *places))
        here = max(here, int(own.max()), -(-int(own.sum()) // top_k))
    return RankLoads(here, np.sort(own)[::-1].copy())


def _stream(seed: int, draw: int) -> int:
    """Return the random stream of a draw; streams of one seed don't meet."""
    return seed * 1_000_003 + 2 * draw


def _uniforms(seed: int, draw: int, count: int) -> Floats:
    from perfmodel.kernels.elementwise import over_columns
    from perfmodel.kernels.routing import unit_uniform

    uniforms: Floats = over_columns(unit_uniform)(_stream(seed, draw), np.arange(count))
    return uniforms


def _check_groups(routing: Routing, experts: int, top_k: int) -> None:
    if experts % routing.groups:
        raise DataError(f"routing: {experts} experts don't divide into {routing.groups} groups")
    if top_k > experts // routing.groups * routing.group_limit:
        raise DataError(
            f"routing: {routing.group_limit} groups of {experts // routing.groups} experts hold "
            f"fewer than {top_k}"
        )
