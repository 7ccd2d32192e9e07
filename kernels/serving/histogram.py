"""Weighted values in bins of equal ratio: quantiles of millions of times in little memory."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.serving.tables import Floats, Integers

BINS = 6000
LEAST = 1e-7
"""Smallest value that a bin of its own holds [s]."""
PER_FACTOR = 200.0
"""Bins per factor of e: a bin is half a percent wide, and its mean is known."""


class Histogram(NamedTuple):
    """What was added.

    Attributes
    ----------
    weights, sums : shape (BINS,)
        Weight in each bin, and sum of weight times value.
    used : shape (2,)
        First and last bin that holds something.
    """

    weights: Floats
    sums: Floats
    used: Integers


@jit
def new_histogram() -> Histogram:
    """Return an empty one."""
    return Histogram(np.zeros(BINS), np.zeros(BINS), np.array([BINS, -1]))


@jit_lean
def clear(histogram: Histogram) -> None:
    """Forget what was added."""
    first, last = histogram.used
    histogram.weights[first : last + 1] = 0.0
    histogram.sums[first : last + 1] = 0.0
    histogram.used[0], histogram.used[1] = BINS, -1


@jit_lean
def add(histogram: Histogram, value: float, weight: float) -> None:
    """Add a value."""
    if weight <= 0.0:
        return
    place = 0
    if value > LEAST:
        place = min(int(math.log(value / LEAST) * PER_FACTOR), BINS - 1)
    histogram.weights[place] += weight
    histogram.sums[place] += weight * value
    histogram.used[0] = min(histogram.used[0], place)
    histogram.used[1] = max(histogram.used[1], place)


@jit_lean
def merge(histogram: Histogram, other: Histogram, weight: float) -> None:
    """Add what another holds, so many times."""
    first, last = other.used
    for place in range(first, last + 1):
        histogram.weights[place] += weight * other.weights[place]
        histogram.sums[place] += weight * other.sums[place]
    histogram.used[0] = min(histogram.used[0], first)
    histogram.used[1] = max(histogram.used[1], last)


@jit_lean
def mean(histogram: Histogram) -> float:
    """Return the weighted mean; NaN of nothing."""
    total, weight = 0.0, 0.0
    for place in range(histogram.used[0], histogram.used[1] + 1):
        total += histogram.sums[place]
        weight += histogram.weights[place]
    return total / weight if weight > 0.0 else math.nan


@jit_lean
def quantile(histogram: Histogram, share: float) -> float:
    """Return the least value that this share of the weight does not exceed; NaN of nothing.

    Of the values in its bin the mean stands for all.
    """
    weight = 0.0
    for place in range(histogram.used[0], histogram.used[1] + 1):
        weight += histogram.weights[place]
    wanted, found = share * weight * (1.0 - 1e-12), 0.0
    for place in range(histogram.used[0], histogram.used[1] + 1):
        found += histogram.weights[place]
        if histogram.weights[place] > 0.0 and found >= wanted:
            return float(histogram.sums[place] / histogram.weights[place])
    return math.nan
