"""Races draw what keys of all experts draw, with few random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.routing import assign_tokens
from perfmodel.kernels.token_draws import alias_tables, race_tokens


def popular(experts: int) -> np.ndarray:
    return np.exp(np.random.default_rng(4).normal(0.0, 0.8, experts))


def raced(weights: np.ndarray, tokens: int, top_k: int, groups: int, limit: int) -> np.ndarray:
    found = np.empty((tokens, top_k), np.int64)
    race_tokens(weights, top_k, groups, limit, 11, 0, found)
    return found


def test_tables_hold_the_weights() -> None:
    weights = popular(48)
    keep, other, totals = alias_tables(weights, 6)
    share = keep.copy()
    np.add.at(share, other, 1.0 - keep)
    np.testing.assert_allclose(share / 8 * np.repeat(totals, 8), weights, rtol=1e-12)
    assert (other // 8 == np.arange(48) // 8).all()


@pytest.mark.parametrize(("groups", "limit"), [(1, 1), (8, 3)])
def test_experts_come_as_often_as_by_keys(groups: int, limit: int) -> None:
    """Experts, and pairs of them, against `assign_tokens`: differences are those of chance."""
    weights, tokens = popular(32), 1200
    found = raced(weights, tokens, 4, groups, limit)
    keys = np.empty_like(found)
    assign_tokens(weights, 4, groups, limit, 5, 0, keys)
    for one in (found, keys):
        assert all(len(set(row)) == 4 for row in one.tolist())
        assert max(len(set(row)) for row in (one // (32 // groups)).tolist()) <= limit
    seen = []
    for one in (found, keys):
        uses = np.zeros((tokens, 32))
        np.put_along_axis(uses, one, 1.0, axis=1)
        seen.append(uses.T @ uses / tokens)
    spread = np.sqrt(sum(part * (1.0 - part) for part in seen) / tokens)
    distance = (seen[0] - seen[1])[spread > 0.0] / spread[spread > 0.0]
    assert np.sqrt(np.mean(distance**2)) < 1.25
    assert abs(np.bincount(found[:, 0], minlength=32) / tokens - weights / weights.sum()).max() < (
        0.04 if groups == 1 else 0.2
    )


def test_parts_of_a_batch_can_be_drawn_apart() -> None:
    weights = popular(16)
    whole = raced(weights, 6, 3, 4, 2)
    part = np.empty((2, 3), np.int64)
    race_tokens(weights, 3, 4, 2, 11, 4, part)
    assert (part == whole[4:]).all()


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("rest", [0.0, 1e-12])
def test_experts_that_hardly_anyone_wants(groups: int, rest: float) -> None:
    """A token needs more experts than are popular: it gets them, each once."""
    weights = np.full(16, rest)
    weights[[0, 5]] = 20.0
    found = raced(weights, 20, 6, groups, min(groups, 2))
    assert all(len(set(row)) == 6 for row in found.tolist())
    assert all({0, 5} <= set(row) for row in found.tolist())
