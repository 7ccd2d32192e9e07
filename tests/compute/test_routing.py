"""Distributions of load over experts, against real loads and against each other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import DataError
from perfmodel.base.routing import DISTRIBUTIONS, Routing, parse_routing
from perfmodel.compute.routing import (
    assign,
    check_sizes,
    inclusion_probabilities,
    load_shares,
    loads,
    rank_loads,
)
from tests.data import ROUTING_COUNTS, needed

DRAWN = [Routing(name) for name in ("uniform", "dirichlet", "two_level")]
EVERY = [*DRAWN, Routing("identical"), Routing("balanced"), Routing("power_law")]

# wse.md section 5: model -> CV, max/mean, imbalance at 8, 16, 32, 64, 128 ranks, active
# experts of 32 and 128 tokens; 256 experts, 8 per token.
TABLE = {
    "empirical": (0.577, 5.63, 1.285, 1.467, 1.762, 2.324, 3.446, 152.5, 242.0),
    "two_level": (0.615, 6.01, 1.314, 1.469, 1.773, 2.379, 3.595, 152.0, 242.2),
    "dirichlet": (0.484, 2.93, 1.125, 1.225, 1.389, 1.658, 2.124, 153.1, 241.1),
    "uniform": (0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 163.3, 251.6),
}


@pytest.fixture(scope="session")
def measured():
    return parse_routing(f"empirical:{needed(ROUTING_COUNTS)}")


def active_experts(inclusion, tokens):
    """How many experts see one of so many tokens at least, on average."""
    return (1 - (1 - inclusion) ** np.array(tokens)[:, None]).sum(axis=1)


def imbalance(routing, ranks, draws):
    """Load of the busiest of ranks relative to the mean, on average over draws."""
    own = [load_shares(routing, 256, draw).reshape(ranks, -1).sum(axis=1) for draw in range(draws)]
    return np.max(own, axis=1).mean() * ranks


def statistics(routing, draws):
    shares = np.array([load_shares(routing, 256, draw) for draw in range(draws)]) * 256
    chosen = [inclusion_probabilities(share / 256, 8) for share in shares]
    active = np.mean([active_experts(q, [32, 128]) for q in chosen], axis=0)
    spread = [imbalance(routing, ranks, draws) for ranks in (8, 16, 32, 64, 128)]
    return [shares.std(axis=1).mean(), shares.max(axis=1).mean(), *spread, *active]


def test_measured_loads_give_the_published_statistics(measured):
    np.testing.assert_allclose(statistics(measured, 58), TABLE["empirical"], rtol=2e-3)


@pytest.mark.parametrize("name", ["two_level", "dirichlet", "uniform"])
def test_models_give_the_published_statistics(name):
    found = statistics(Routing(name), 580 if name != "uniform" else 1)
    np.testing.assert_allclose(found, TABLE[name], rtol=0.04, atol=0.01)


def test_two_level_model_reproduces_real_loads(measured):
    # the promise of the model: within 10 % on every statistic of the data
    found = statistics(Routing("two_level"), 580)
    np.testing.assert_allclose(found, TABLE["empirical"], rtol=0.10)


def test_draws_keep_the_measured_marginals(measured):
    # layer 37 (key 34) has one expert at 15.5 times the mean; a plain draw without
    # replacement flattens it to 12.7 (wse.md section 5)
    chosen = inclusion_probabilities(load_shares(measured, 256, 34), 8)
    counts = np.bincount(assign(measured, 60_000, 256, 8, 34).ravel(), minlength=256)
    assert chosen.max() * 32 == pytest.approx(15.48, abs=0.01)
    assert counts.max() / counts.mean() == pytest.approx(15.48, rel=0.03)
    assert np.abs(counts / 60_000 - chosen).max() < 0.02


@pytest.mark.parametrize("routing", EVERY, ids=lambda r: r.distribution)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 8, 2), (7, 16, 4), (300, 64, 6)])
def test_tokens_are_conserved_and_experts_differ(routing, tokens, experts, top_k):
    counts = loads(routing, tokens, experts, top_k)
    assert counts.sum() == tokens * top_k
    assert counts.min() >= 0
    assert counts.max() <= tokens
    assignment = assign(routing, tokens, experts, top_k)
    assert assignment.shape == (tokens, top_k)
    assert all(len(set(row)) == top_k for row in assignment.tolist())
    np.testing.assert_array_equal(np.bincount(assignment.ravel(), minlength=experts), counts)


@pytest.mark.parametrize("routing", EVERY, ids=lambda r: r.distribution)
def test_same_seed_same_loads(routing):
    first = loads(routing, 100, 32, 4)
    np.testing.assert_array_equal(first, loads(replace(routing), 100, 32, 4))
    other = loads(replace(routing, seed=1), 100, 32, 4)
    assert routing.random != bool((first == other).all())
    assert routing.random != bool((first == loads(routing, 100, 32, 4, draw=1)).all())


@given(st.integers(1, 5000), st.sampled_from([(8, 2), (64, 6), (160, 8), (512, 22)]))
def test_balanced_loads_differ_by_one(tokens, layer):
    experts, top_k = layer
    counts = loads(Routing("balanced"), tokens, experts, top_k)
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == tokens * top_k


def test_identical_tokens_share_their_experts():
    counts = loads(Routing("identical"), 50, 16, 4)
    assert sorted(counts.tolist()) == [0] * 12 + [50] * 4


def test_many_tokens_have_loads_near_their_means():
    routing, tokens = Routing("two_level"), 1 << 17
    counts = loads(routing, tokens, 256, 8)
    assert counts.sum() == tokens * 8
    chosen = inclusion_probabilities(load_shares(routing, 256), 8)
    np.testing.assert_allclose(counts / tokens, chosen, atol=0.005)


def test_busiest_rank_has_the_largest_load():
    for routing in EVERY:
        here, own = rank_loads(routing, 200, 64, 4, 8)
        counts = loads(routing, 200, 64, 4, ranks=8).reshape(8, 8)
        assert own.sum() == counts.sum(axis=1).max()
        assert own.max() <= here <= 200
        assert here * 4 >= own.sum()
    assert rank_loads(Routing("balanced"), 200, 64, 4, 1)[0] == 200


def test_group_limit_concentrates_a_token():
    routing = Routing("uniform", groups=8, group_limit=2)
    assignment = assign(routing, 400, 64, 8)
    assert max(len(set(row)) for row in (assignment // 8).tolist()) == 2
    assert loads(routing, 400, 64, 8).sum() == 3200


def test_draws_of_a_uniform_routing_reach_as_many_experts_as_the_closed_form():
    expected = 256 * (1 - (1 - 8 / 256) ** 32)
    drawn = [
        np.count_nonzero(loads(Routing("uniform", seed=seed), 32, 256, 8)) for seed in range(40)
    ]
    assert np.mean(drawn) == pytest.approx(expected, rel=0.02)


def test_shares_are_those_of_the_layers_counted():
    routing = Routing("empirical", counts=((1.0, 3.0), (2.0, 2.0)))
    np.testing.assert_allclose(load_shares(routing, 2, 0), [0.25, 0.75])
    np.testing.assert_allclose(load_shares(routing, 2, 3), [0.5, 0.5])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0, 8, 2), "tokens is 0"), ((4, 8, 9), "9 experts per token"), ((4, 8, 2.5), "whole number")],
)
def test_bad_sizes_are_refused(arguments, words):
    with pytest.raises(DataError, match=words):
        loads(Routing("uniform"), *arguments)


def test_loads_that_a_routing_cannot_give_are_refused():
    with pytest.raises(DataError, match="8 groups"):
        loads(Routing("uniform", groups=8, group_limit=1), 4, 12, 2)
    with pytest.raises(DataError, match="ranks"):
        rank_loads(Routing("uniform"), 4, 12, 2, 5)
    with pytest.raises(DataError, match="counts of 2 experts"):
        load_shares(Routing("empirical", counts=((1.0, 2.0),)), 4)
    assert set(DISTRIBUTIONS) >= {routing.distribution for routing in EVERY}


def test_numbers_beyond_all_layers_are_refused():
    with pytest.raises(DataError, match="tokens is 1099511627776; at most"):
        check_sizes(2**40, 8, 2)
