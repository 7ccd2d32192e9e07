"""Distinct groups that the experts of a token lie in, by hand and against draws."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.collective.expert_exchange import distinct_groups, distinct_places


def test_distinct_groups_by_hand():
    # one choice meets one group; all experts meet all groups
    assert distinct_groups(8, 1, 256) == pytest.approx(1.0)
    assert distinct_groups(8, 8, 8) == pytest.approx(8.0)
    # two of four experts on two ranks: both on one rank with probability 1/3
    assert distinct_groups(2, 2, 4) == pytest.approx(2 * 1 / 3 * 1 / 2 + 2 * 2 / 3)
    assert distinct_groups(1, 5, 64) == pytest.approx(1.0)


def test_distinct_groups_against_draws():
    random = np.random.default_rng(2)
    experts, top_k, ranks = 32, 6, 8
    draws = np.argsort(random.random((20_000, experts)), axis=1)[:, :top_k] // (experts // ranks)
    met = np.mean([len(set(row)) for row in draws.tolist()])
    assert distinct_groups(ranks, top_k, experts) == pytest.approx(met, rel=0.01)


@pytest.mark.parametrize(
    ("places", "groups", "chosen", "best"),
    [
        (8, 8, 4, 1),
        (8, 8, 4, 2),
        (64, 8, 4, 2),
        (32, 8, 4, 2),
        (4, 8, 4, 2),
        (2, 8, 4, 2),
        (16, 4, 2, 1),
    ],
)
def test_places_of_limited_groups_against_draws(places, groups, chosen, best):
    # Scores of 256 experts; the groups with the best one or two, then the eight best of these.
    random = np.random.default_rng(4)
    experts, top_k, draws = 256, 8, 6_000
    scores = random.random((draws, groups, experts // groups))
    value = np.sort(scores, axis=2)[:, :, -best:].sum(axis=2)
    kept = np.argsort(value, axis=1)[:, -chosen:]
    allowed = np.zeros((draws, groups), bool)
    np.put_along_axis(allowed, kept, True, axis=1)
    limited = np.where(allowed[:, :, None], scores, -1.0).reshape(draws, experts)
    lies = np.argsort(limited, axis=1)[:, -top_k:] // (experts // places)
    met = np.mean([len(set(row)) for row in lies.tolist()])
    assert distinct_places(places, top_k, experts, groups, chosen) == pytest.approx(met, rel=0.02)


def test_limits_that_bind_nothing_and_bounds():
    for places in (1.0, 2.0, 8.0, 64.0):
        free = distinct_groups(places, 8, 256.0)
        assert distinct_places(places, 8, 256.0, 8.0, 8.0) == free
        limited = distinct_places(places, 8, 256.0, 8.0, 4.0)
        assert 1.0 <= limited <= min(places, 8.0) + 1e-12
    # Fewer choices than groups: each in a group of its own.
    assert distinct_places(8.0, 2, 256.0, 8.0, 4.0) == pytest.approx(2.0)
