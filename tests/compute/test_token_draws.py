"""Draws of tokens include experts as often as they are to."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.compute.routing import Routing, inclusion_probabilities, load_shares
from perfmodel.compute.token_draws import draw_tokens, draw_weights
from tests import data


def of_wafer() -> Routing:
    """Return the reference counts of 58 layers."""
    from perfmodel.compute.routing import parse_routing

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
