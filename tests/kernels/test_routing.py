"""Draws without replacement and loads that add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels import routing
from perfmodel.kernels.routing import alias_tables, assign_tokens, race_tokens


def assigned(weights, tokens, top_k, groups=1, limit=1, seed=0, first=0):
    out = np.empty((tokens, top_k), np.int64)
    routing.assign_tokens(np.asarray(weights, np.float64), top_k, groups, limit, seed, first, out)
    return out


def test_uniform_numbers_are_uniform_and_reproducible():
    drawn = np.array([routing.unit_uniform(7, i) for i in range(20_000)])
    assert drawn.min() > 0.0
    assert drawn.max() < 1.0
    # 20 bins of 1000 with a standard deviation of 31
    assert np.abs(np.histogram(drawn, 20, (0, 1))[0] - 1000).max() < 150
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03
    assert routing.unit_uniform(7, 3) == drawn[3]
    assert routing.unit_uniform(8, 3) != drawn[3]


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "groups", "limit"),
    [(7, 16, 4, 1, 1), (40, 256, 8, 8, 4), (5, 8, 2, 8, 3), (9, 64, 6, 4, 2)],
)
def test_drawn_at_once_experts_are_the_same(tokens, experts, top_k, groups, limit, monkeypatch):
    monkeypatch.setattr(routing, "CELLS_AT_ONCE", 3 * experts)
    weights = np.random.default_rng(experts).random(experts) ** 4
    weights[3] = 0.0
    for seed in (0, 2**40):
        alone = assigned(weights, tokens, top_k, groups, limit, seed, first=5)
        found = np.empty_like(alone)
        routing.assign_at_once(weights, top_k, groups, limit, seed, 5, found)
        assert np.array_equal(alone, found)


def test_two_draws_without_replacement_match_the_exact_probabilities():
    # P(e in 2 draws) = w_e + sum_{f != e} w_f w_e / (1 - w_f), weights of sum 1
    w = np.array([0.5, 0.25, 0.15, 0.1])
    exact = w + np.array(
        [sum(w[f] * w[e] / (1 - w[f]) for f in range(4) if f != e) for e in range(4)]
    )
    counts = np.bincount(assigned(w, 40_000, 2).ravel(), minlength=4) / 40_000
    np.testing.assert_allclose(counts, exact, atol=0.01)


@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from([8, 16, 24]), st.integers(0, 2**40))
def test_no_token_meets_an_expert_twice(tokens, top_k, experts, seed):
    out = assigned(np.linspace(0.1, 3.0, experts), tokens, top_k, seed=seed)
    assert out.min() >= 0
    assert out.max() < experts
    assert all(len(set(row)) == top_k for row in out.tolist())


def test_parts_of_a_batch_are_the_whole_batch():
    w = np.linspace(1.0, 2.0, 16)
    whole = assigned(w, 20, 4)
    parts = [assigned(w, 8, 4), assigned(w, 12, 4, first=8)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_tokens_stay_in_their_best_groups():
    out = assigned(np.ones(64), 500, 8, groups=8, limit=3)
    assert max(len(set(row)) for row in (out // 8).tolist()) == 3
    # without a limit eight experts spread over more groups
    assert max(len(set(row)) for row in (assigned(np.ones(64), 500, 8) // 8).tolist()) > 5


share_values = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))


@given(st.lists(share_values, min_size=4, max_size=40), st.integers(1, 200), st.data())
def test_whole_loads_sum_up_and_never_exceed_the_tokens(shares, tokens, data):
    shares = np.array(shares)
    top_k = data.draw(st.integers(1, len(shares)))
    loads = np.empty(len(shares), np.int64)
    routing.whole_loads(shares, tokens, top_k, loads)
    assert loads.sum() == tokens * top_k
    assert loads.min() >= 0
    assert loads.max() <= tokens
    order = np.argsort(-shares)
    assert (np.diff(loads[order]) <= 1).all()  # more popular, no fewer tokens


@given(st.integers(1, 300), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]), st.integers(0, 1000))
def test_power_law_loads_sum_up_with_the_busiest_rank_first(tokens, top_k, ranks, seed):
    loads = np.empty(32, np.int64)
    routing.power_law_loads(1.2, tokens, top_k, ranks, seed, loads)
    assert loads.sum() == tokens * top_k
    assert loads.min() >= 0
    assert loads.max() <= tokens
    per_rank = loads.reshape(ranks, -1).sum(axis=1)
    assert per_rank[0] == per_rank.max()


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 1000))
def test_spread_loads_come_out_without_a_repeated_expert(tokens, top_k, seed):
    loads = np.empty(16, np.int64)
    routing.power_law_loads(1.2, tokens, top_k, 1, seed, loads)
    out = np.empty((tokens, top_k), np.int64)
    routing.spread_loads(loads, tokens, top_k, out)
    np.testing.assert_array_equal(np.bincount(out.ravel(), minlength=16), loads)
    assert all(len(set(row)) == top_k for row in out.tolist())
    here = ((out >= 4) & (out < 8)).any(axis=1).sum()
    assert routing.tokens_of_rank(loads, tokens, top_k, 4, 8) == here


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
