"""Histograms of times: means are exact, quantiles within half a bin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.histogram import add, clear, mean, merge, new_histogram, quantile


def test_quantiles_of_many_values() -> None:
    values = np.random.default_rng(1).lognormal(-3.0, 1.5, 3000)
    histogram = new_histogram()
    for value in values:
        add(histogram, value, 2.0)
    assert mean(histogram) == pytest.approx(values.mean())
    for share in (0.5, 0.95, 0.99):
        wanted = np.quantile(values, share, method="inverted_cdf")
        assert quantile(histogram, share) == pytest.approx(wanted, rel=5e-3)


def test_alike_values_keep_all_their_digits() -> None:
    histogram = new_histogram()
    add(histogram, 0.123456789, 3.0)
    assert quantile(histogram, 0.5) == pytest.approx(0.123456789, rel=1e-15)


def test_what_is_merged_and_cleared() -> None:
    one, other = new_histogram(), new_histogram()
    add(one, 1.0, 1.0)
    add(other, 2.0, 1.0)
    merge(one, other, 3.0)
    assert mean(one) == pytest.approx(1.75)
    clear(one)
    assert not one.weights.any()
    assert math.isnan(mean(one))
    assert math.isnan(quantile(one, 0.5))


def test_zero_and_hours_have_a_bin() -> None:
    histogram = new_histogram()
    add(histogram, 0.0, 1.0)
    add(histogram, 1e6, 1.0)
    add(histogram, 1.0, 0.0)
    assert quantile(histogram, 0.5) == 0.0
    assert quantile(histogram, 0.99) == 1e6
