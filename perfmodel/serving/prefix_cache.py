"""How much of prompts the cache holds already, from how popular their beginnings are.

Blocks that no request uses stay until others need their place, the least recently used first.
Che's approximation: a block stays for a time that is the same for all, the time in which so many
others come that they fill the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.errors import StrategyError

EXACT_RANKS = 4096
"""Prefixes that are counted one by one; rarer ones in groups, each a few per cent of its rank."""
GROUPS = 2048


@dataclass(frozen=True)
class PrefixCache:
    """What a cache holds of prompts that begin alike.

    Attributes
    ----------
    hit_rate : float
        Share of requests whose prefix is in the cache.
    tokens : float
        Tokens of a prompt that the cache holds, on average.
    stay : float
        Requests that come until a block is dropped that nobody asks for; inf: none ever is.
    """

    hit_rate: float
    tokens: float
    stay: float


def prefix_cache(
    prefixes: int,
    exponent: float,
    prefix_tokens: float,
    blocks: float,
    block_tokens: float,
    other_tokens: float = 0.0,
) -> PrefixCache:
    """Return what a cache holds of prompts whose beginnings are more and less popular.

    Parameters
    ----------
    prefixes : int
        Different beginnings N.
    exponent : float
        Of Zipf's law: the r-th is asked for in proportion to r^-exponent; 0: all alike.
    prefix_tokens : float
        Tokens of each [1].
    blocks : float
        Blocks that running requests leave to the cache.
    block_tokens : float
        Tokens of a block; only whole blocks are found again.
    other_tokens : float
        Tokens of a request, rest of the prompt and answer, that nobody asks for again but that
        stay as long as others.

    Raises
    ------
    StrategyError
        No prefixes, a negative length or number of blocks, or an exponent that is no number.

    Notes
    -----
    With n blocks per prefix, u per rest and p_r the popularity, T solves
    n sum_r (1 - exp(-p_r T)) + u T = blocks, and the hit rate is sum_r p_r (1 - exp(-p_r T))
    (Che, Tung and Wang 2002, IEEE JSAC 20(7), section IV; Fricker, Robert and Roberts 2012,
    arXiv:1202.3974, on why it is exact). The root is found by `scipy.optimize.brentq`.

    Examples
    --------
    >>> found = prefix_cache(1000, 0.9, 1024, blocks=6400, block_tokens=16)
    >>> round(found.hit_rate, 3)
    0.476
    """
    if prefixes < 1 or not math.isfinite(exponent):
        raise StrategyError("prefixes: at least 1, with a finite exponent of popularity")
    if min(prefix_tokens, blocks, other_tokens) < 0 or block_tokens <= 0:
        raise StrategyError("prefixes: lengths and blocks cannot be negative")
    popularity, number = popularities(prefixes, exponent)
    each = float(prefix_tokens // block_tokens)
    rest = other_tokens / block_tokens
    found = each * block_tokens
    if each == 0.0 or (blocks >= each * prefixes and rest == 0.0):
        return PrefixCache(1.0, found, math.inf)
    if blocks <= 0.0:
        return PrefixCache(0.0, 0.0, 0.0)

    def filled(log_stay: float) -> float:
        stay = math.exp(log_stay)
        held = each * float(np.sum(number * -np.expm1(-popularity * stay)))
        return held + rest * stay - blocks

    from scipy.optimize import brentq

    high = math.log(2.0 * blocks / each + 2.0)
    while filled(high) < 0.0:
        high += 1.0
    stay = math.exp(brentq(filled, -60.0, high, xtol=1e-12))
    rate = float(np.sum(number * popularity * -np.expm1(-popularity * stay)))
    return PrefixCache(rate, rate * found, stay)


def popularities(prefixes: int, exponent: float) -> tuple[Floats, Floats]:
    """Return chances by Zipf's law, and for how many prefixes each stands.

    Parameters
    ----------
    prefixes : int
        Different prefixes N.
    exponent : float
        Of the law.

    Returns
    -------
    popularity, number : ndarray, shape (groups,)
        `popularity` of each of `number` prefixes; ``sum(popularity * number)`` is 1.
    """
    first = np.arange(1.0, min(prefixes, EXACT_RANKS) + 1.0)
    number = np.ones(first.size)
    if prefixes > EXACT_RANKS:
        edges = np.unique(np.round(np.geomspace(EXACT_RANKS, prefixes, GROUPS + 1)))
        number = np.concatenate((number, np.diff(edges)))
        first = np.concatenate((first, 0.5 * (edges[1:] + edges[:-1] + 1.0)))
    # Of large numbers of prefixes the rarest are 10^-300 as popular as the first.
    weight = np.exp(-exponent * np.log(first))
    return weight / np.sum(weight * number), number
