"""Expected loads of uniform routing, beside the draws that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import DataError
from perfmodel.base.routing import Routing
from perfmodel.compute.expected_loads import draw_tokens, draw_weights, expected_loads
from perfmodel.compute.grouped_gemm import pack_loads
from perfmodel.compute.moe import moe_layer_times
from perfmodel.compute.routing import inclusion_probabilities, load_shares, rank_loads
from tests import data


def one(*sizes: float, groups: int = 1, limit: int = 1, distribution: str = "uniform"):
    columns = (np.array([float(x)]) for x in sizes)
    return expected_loads(*columns, groups, limit, distribution=distribution)


@given(
    tokens=st.integers(1, 5000),
    shape=st.sampled_from([(8, 2), (128, 4), (256, 8)]),
)
def test_rows_and_active_experts_add_up(tokens, shape):
    experts, top_k = shape
    found = one(tokens, experts, top_k, 1)
    sizes, counts = found.loads.sizes, found.loads.counts
    assert (sizes * counts).sum() == pytest.approx(tokens * top_k, rel=1e-6)
    assert counts.sum() == pytest.approx(experts, rel=1e-6)
    used = experts * (1.0 - (1.0 - top_k / experts) ** tokens)
    assert counts[sizes > 0.0].sum() == pytest.approx(used, rel=1e-6)


@pytest.mark.parametrize(
    ("distribution", "experts", "top_k", "groups", "limit"),
    [
        ("uniform", 256, 8, 1, 1),
        ("uniform", 128, 4, 1, 1),
        ("uniform", 256, 8, 8, 4),
        ("two_level", 256, 8, 1, 1),
        ("two_level", 128, 4, 1, 1),
    ],
)
@pytest.mark.parametrize("ranks", [1, 8])
def test_layers_take_the_time_of_many_draws(
    h100, distribution, experts, top_k, groups, limit, ranks
):
    tokens = (16, 64, 256, 1024)
    routing = Routing(distribution, groups=groups, group_limit=limit)
    draws = 24
    drawn = [
        rank_loads(routing, count, experts, top_k, ranks, draw)
        for count in tokens
        for draw in range(draws)
    ]
    counts = np.repeat(tokens, draws)
    loads = pack_loads([(n, x.loads) for n, x in zip(counts, drawn, strict=True)])
    shape = (4096.0, 2048.0 / (8 / ranks), top_k, experts)
    layer = np.repeat(np.arange(4), draws)
    mean = moe_layer_times(h100, "bf16", loads, layer, np.arange(4 * draws), *shape).time
    columns = (np.array(tokens, float), *(np.full(4, float(x)) for x in (experts, top_k, ranks)))
    found = expected_loads(*columns, groups, limit, distribution=distribution)
    time = moe_layer_times(h100, "bf16", found.loads, np.arange(4), np.arange(4), *shape).time
    np.testing.assert_allclose(time, mean, rtol=0.035)
    assert np.abs(time / mean - 1.0).mean() < 0.02


def test_the_busiest_rank_has_more_than_its_share():
    shares = [one(64, 256, 8, ranks).rows[0] * ranks / (64 * 8) for ranks in (1, 2, 8, 64)]
    assert shares[0] == pytest.approx(1.0)
    assert shares == sorted(shares)
    more = [one(tokens, 256, 8, 8).rows[0] / tokens for tokens in (1, 8, 64, 4096)]
    assert more == sorted(more, reverse=True)  # the more tokens, the evener
    assert more[-1] == pytest.approx(1.0, rel=0.03)


def test_no_rank_has_more_than_it_can():
    found = one(3, 64, 8, 64)
    assert found.rows[0] <= 3.0
    assert found.here[0] <= 3.0


def test_popular_experts_leave_others_idle_and_make_stragglers():
    """Means of 58 layers of DeepSeek-V3 (docs/routing.md): 152.5 and 242.0 active experts at 32 and
    128 tokens, a busiest rank of 8 with 1.285 of the mean."""
    for tokens, active in ((32, 152.5), (128, 242.0)):
        loads = one(tokens, 256, 8, 1, distribution="two_level").loads
        assert loads.counts[loads.sizes > 0.0].sum() == pytest.approx(active, rel=0.02)
    busiest = one(1e6, 256, 8, 8, distribution="two_level").rows[0] / 1e6
    assert busiest == pytest.approx(1.285, rel=0.03)


def of_wafer() -> Routing:
    """Return the reference counts of 58 layers."""
    from perfmodel.base.routing import parse_routing

    return parse_routing(f"empirical:{data.needed(data.WAFER / 'bincounts.json')}")


def test_popular_experts_are_not_flattened() -> None:
    """A draw in proportion to the counts would give the busiest of this layer 15 % less."""
    routing = of_wafer()
    counts = np.array(routing.counts)
    layer = int(np.argmax(counts.max(axis=1) / counts.mean(axis=1)))
    asked = inclusion_probabilities(load_shares(routing, 256, layer), 8)
    found = draw_tokens(draw_weights(routing, 256, 8, layer), 20_000, 8)
    seen = np.bincount(found.ravel(), minlength=256) / 20_000
    assert seen.max() / asked.max() == pytest.approx(1.0, abs=0.04)
    assert seen.std() / asked.std() == pytest.approx(1.0, abs=0.03)


def test_trials_keep_the_loads_of_groups() -> None:
    routing = of_wafer()
    asked = load_shares(routing, 256, 0).reshape(8, 32).sum(axis=1)
    off = []
    for trials in (0, 2):
        weights = draw_weights(routing, 256, 8, 0, 8, 4, trials)
        found = draw_tokens(weights, 20_000, 8, draw=3, groups=8, group_limit=4)
        seen = np.bincount(found.ravel() // 32, minlength=8) / found.size
        off.append(np.sqrt(np.mean((seen / asked - 1.0) ** 2)))
    assert off[1] < 0.03 < 0.05 < off[0]


def test_draws_differ_and_repeat() -> None:
    weights = draw_weights(Routing("two_level"), 64, 4)
    one, same, other = (draw_tokens(weights, 50, 4, draw=draw) for draw in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="groups"):
        draw_tokens(np.ones(16), 5, 6, groups=4, group_limit=1)
    with pytest.raises(DataError, match="experts"):
        draw_weights(Routing("uniform"), 4, 5)
