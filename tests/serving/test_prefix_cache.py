"""Che's approximation against a cache that drops the least recently used."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.serving.prefix_cache import EXACT_RANKS, popularities, prefix_cache


def simulated(prefixes: int, exponent: float, blocks: int, rest: int, requests: int = 60_000):
    """Return the hit rate of prefixes of 4 blocks, with requests' other blocks beside them."""
    random = np.random.default_rng(9)
    weight = np.arange(1, prefixes + 1) ** -exponent
    asked = random.choice(prefixes, requests, p=weight / weight.sum())
    kept: OrderedDict[tuple[str, int], int] = OrderedDict()
    size, hits = 0, 0
    for number, prefix in enumerate(asked):
        key = ("prefix", int(prefix))
        if key in kept:
            kept.move_to_end(key)
            hits += number >= requests // 5
        else:
            kept[key] = 4
            size += 4
        if rest:
            kept["rest", number] = rest
            size += rest
        while size > blocks:
            size -= kept.popitem(last=False)[1]
    return hits / (requests - requests // 5)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.2])
@pytest.mark.parametrize(("blocks", "rest"), [(400, 0), (1600, 0), (1600, 6)])
def test_hit_rate_is_that_of_a_real_cache(exponent, blocks, rest):
    found = prefix_cache(1000, exponent, 64, blocks, 16, other_tokens=16 * rest)
    assert found.hit_rate == pytest.approx(simulated(1000, exponent, blocks, rest), abs=0.012)
    assert found.tokens == pytest.approx(64 * found.hit_rate)


def test_ends():
    assert prefix_cache(10, 1.0, 64, 40, 16).hit_rate == 1.0
    assert prefix_cache(10, 1.0, 64, 40, 16).stay == math.inf
    assert prefix_cache(10, 1.0, 64, 0, 16).hit_rate == 0.0
    assert prefix_cache(10, 1.0, 15, 5, 16).tokens == 0.0  # no whole block
    assert prefix_cache(1, 1.0, 64, 1e9, 16, other_tokens=64).hit_rate == pytest.approx(1.0)


def test_prefixes_alike_are_hit_as_often_as_they_are_held():
    assert prefix_cache(1000, 0.0, 64, 1000, 16).hit_rate == pytest.approx(0.25)


def test_more_room_and_popularity_hit_more():
    rooms = [prefix_cache(500, 0.9, 64, blocks, 16, 160.0).hit_rate for blocks in (10, 100, 1000)]
    assert rooms == sorted(rooms)
    assert rooms[0] < rooms[2]
    laws = [prefix_cache(500, exponent, 64, 200, 16).hit_rate for exponent in (0, 0.5, 1, 2)]
    assert laws == sorted(laws)


def test_groups_of_rare_prefixes_are_as_all_of_them():
    count = 50 * EXACT_RANKS
    popularity, number = popularities(count, 0.8)
    assert np.sum(number) == count
    assert np.sum(number * popularity) == pytest.approx(1.0)
    exact = np.arange(1, count + 1) ** -0.8
    assert popularity[0] == pytest.approx(1 / exact.sum(), rel=1e-5)


@pytest.mark.parametrize(
    "wrong", [(0, 1.0, 64, 10, 16), (5, math.nan, 64, 10, 16), (5, 1.0, -1, 10, 16)]
)
def test_impossible_questions_are_refused(wrong):
    with pytest.raises(StrategyError, match="prefixes"):
        prefix_cache(*wrong)
