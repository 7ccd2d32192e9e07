"""Quantiles of mixtures and of random counts, against draws and sums."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.serving.quantiles import count_quantile, mixed_quantile, three_quantiles


@pytest.mark.parametrize("gap", [0.0, 5.0])
def test_quantiles_of_three_spreads_are_those_of_draws(gap: float) -> None:
    random = np.random.default_rng(0)
    weights = (0.1, 0.6, 0.3)
    lows, highs = (3.0 + gap, 1.0, 1.5), (9.0 + gap, 2.0, 1.5)
    which = random.choice(3, 200_000, p=weights)
    values = random.uniform(np.array(lows)[which], np.array(highs)[which])
    wanted = np.quantile(values, [0.5, 0.95, 0.99])
    assert three_quantiles(weights, lows, highs) == pytest.approx(wanted, rel=0.01)


def test_two_spreads_are_three_with_one_empty() -> None:
    three = three_quantiles((0.2, 0.8, 0.0), (4.0, 1.0, 1.0), (8.0, 6.0, 1.0))
    two = [mixed_quantile(share, 0.2, 4.0, 8.0, 1.0, 6.0) for share in (0.5, 0.95, 0.99)]
    assert three == pytest.approx(two)


@pytest.mark.parametrize("mean", [0.01, 0.7, 5.0, 40.0])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_counts_that_come_at_random(mean: float, share: float) -> None:
    counts = np.random.default_rng(0).poisson(mean, 200_000)
    wanted = np.quantile(counts[counts > 0], share)
    assert count_quantile(share, mean) == pytest.approx(wanted, rel=0.03)
