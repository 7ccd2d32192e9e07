"""Distinct groups that the experts of a token lie in, by hand and against draws."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.collective.expert_exchange import distinct_groups


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
