"""Waiting in front of servers, and quantiles: of mixtures, of counts, of weighted values in bins.

Queues give means, and quantiles with exponential tails. Bins of equal ratio hold millions of times
in little memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.serving.tables import Floats, Integers

MOST_SERVERS = 1024
"""Beyond so many servers waiting is that at so many of the same load together."""


@jit_lean
def erlang_c(servers: int, utilization: float) -> float:
    """Return the chance that an arrival waits at an M/M/k queue.

    Parameters
    ----------
    servers : int
        k, >= 1.
    utilization : float
        Of each, rho = lambda / (k mu); 1 and more: every arrival waits.

    Notes
    -----
    Erlang's B formula by its recursion, and C = B / (1 - rho (1 - B)) (Gross et al. 2008,
    "Fundamentals of queueing theory", 2.3-2.5).
    """
    if utilization >= 1.0:
        return 1.0
    servers = min(servers, MOST_SERVERS)
    load = servers * utilization
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
    return blocked / (1.0 - utilization * (1.0 - blocked))


@jit_lean
def mean_wait(
    waits: float, capacity: float, rate: float, arrival_variation: float, service_variation: float
) -> float:
    """Return the mean wait of a G/G/k queue [s].

    Parameters
    ----------
    waits : float
        The chance to wait, C(k, rho).
    capacity, rate : float
        k mu > lambda [1/s].
    arrival_variation, service_variation : float
        Squared coefficients of variation of the times between arrivals, and of service.

    Notes
    -----
    Allen and Cunneen, W = C / (k mu - lambda) (c_a^2 + c_s^2) / 2 (Allen 1990, "Probability,
    statistics and queueing theory", 5.3.4); at k = 1 and c_a = 1 Pollaczek and Khinchine's.
    """
    return waits / (capacity - rate) * 0.5 * (arrival_variation + service_variation)


@jit_lean
def wait_quantile(level: float, waits: float, mean: float, residual: float) -> float:
    """Return a quantile of the sum of a wait and of what is left of a pass [s].

    Parameters
    ----------
    level : float
        Of the quantile, 0 to 1.
    waits, mean : float
        Chance of a wait, and its mean over all arrivals: zero, else exponential.
    residual : float
        A pass is left for a time uniform in [0, residual] [s].
    """
    if waits <= 0.0 or mean <= 0.0:
        return level * residual
    each = mean / waits
    if residual <= 1e-9 * each:
        return max(each * math.log(waits / (1.0 - level)), 0.0)
    # Beyond the longest pass the tail is exponential.
    ratio = residual / each
    if ratio < 500.0:
        tail = waits * math.expm1(ratio) / (ratio * (1.0 - level))
        if tail > 1.0 and math.log(tail) >= ratio:
            return each * math.log(tail)
    # Before, P(x) = (x - waits each (1 - exp(-x/each))) / residual: convex, Newton from above.
    found = residual
    for _ in range(20):
        fading = math.exp(-found / each)
        error = found - waits * each * (1.0 - fading) - level * residual
        slope = 1.0 - waits * fading
        if slope <= 0.0:
            break
        step = error / slope
        found = max(found - step, 0.0)
        if abs(step) <= 1e-12 * residual:
            break
    return found


@jit_lean
def joined(one: float, other: float) -> float:
    """Return how far a quantile of a sum lies from its mean, from those of independent parts."""
    if one >= 0.0 and other >= 0.0:
        return math.sqrt(one * one + other * other)
    if one <= 0.0 and other <= 0.0:
        return -math.sqrt(one * one + other * other)
    return one + other


NARROW = 1e-9
"""Least width of a spread, relative: values that are all alike have a place of their own."""

MANY = 12.0
"""Mean number that comes, from which on it is taken as normally distributed."""
LOGISTIC = 1.75
"""Quantiles of a normal distribution are about log(p / (1 - p)) / 1.75: 1.68 for 1.645 at 95 %,
2.63 for 2.33 at 99 %."""


@jit
def below(x: float, low: float, high: float) -> float:
    """Return the share of values spread evenly from `low` to `high` that lie at or below `x`."""
    high = max(high, low * (1.0 + NARROW))
    if x >= high:
        return 1.0
    if x <= low:
        return 0.0
    return (x - low) / (high - low)


@jit
def mixed_quantile(
    share: float, weight: float, low: float, high: float, other_low: float, other_high: float
) -> float:
    """Return the value below which a share of two evenly spread sets lies.

    Parameters
    ----------
    share : float
        Of all values.
    weight : float
        Share of the first set, which is spread from `low` to `high`; the others are spread
        from `other_low` to `other_high`.

    Notes
    -----
    The share grows in straight lines between the four ends; the value lies on one of them.
    """
    left = min(low, other_low)
    reached = 0.0
    while True:
        right = max(high, other_high)
        if left < low < right:
            right = low
        if left < other_low < right:
            right = other_low
        if left < high < right:
            right = high
        if left < other_high < right:
            right = other_high
        if right <= left:
            return left
        grown = weight * below(right, low, high)
        grown += (1.0 - weight) * below(right, other_low, other_high)
        if grown >= share:
            if grown <= reached:
                return right
            return left + (share - reached) / (grown - reached) * (right - left)
        left, reached = right, grown


@jit
def three_below(
    x: float,
    weights: tuple[float, float, float],
    lows: tuple[float, float, float],
    highs: tuple[float, float, float],
) -> float:
    """Return the share of three evenly spread sets that lies at or below `x`."""
    found = weights[0] * below(x, lows[0], highs[0])
    found += weights[1] * below(x, lows[1], highs[1])
    return found + weights[2] * below(x, lows[2], highs[2])


@jit
def three_quantiles(
    weights: tuple[float, float, float],
    lows: tuple[float, float, float],
    highs: tuple[float, float, float],
) -> tuple[float, float, float]:
    """Return the median and the 95th and 99th percentile of three evenly spread sets together.

    Parameters
    ----------
    weights : (float, float, float)
        Share of each set; their sum is 1.
    lows, highs : (float, float, float)
        From where to where each is spread, at least 0.

    Notes
    -----
    The share below a value grows in straight lines between the six ends.
    """
    ends = (
        lows[0],
        max(highs[0], lows[0] * (1.0 + NARROW)),
        lows[1],
        max(highs[1], lows[1] * (1.0 + NARROW)),
        lows[2],
        max(highs[2], lows[2] * (1.0 + NARROW)),
    )
    shares = (
        three_below(ends[0], weights, lows, highs),
        three_below(ends[1], weights, lows, highs),
        three_below(ends[2], weights, lows, highs),
        three_below(ends[3], weights, lows, highs),
        three_below(ends[4], weights, lows, highs),
        three_below(ends[5], weights, lows, highs),
    )
    return (
        on_line(0.5, ends, shares),
        on_line(0.95, ends, shares),
        on_line(0.99, ends, shares),
    )


@jit
def on_line(
    share: float,
    ends: tuple[float, float, float, float, float, float],
    shares: tuple[float, float, float, float, float, float],
) -> float:
    """Return where a share is reached, on the line between the two ends about it."""
    left, right, reached, over = 0.0, math.inf, 0.0, 1.0
    for at in range(6):
        if shares[at] < share:
            if ends[at] > left:
                left, reached = ends[at], shares[at]
        elif ends[at] < right:
            right, over = ends[at], shares[at]
    if math.isinf(right):  # the sum of the weights is 1 but for rounding
        return left
    return left + (share - reached) / (over - reached) * (right - left)


@jit
def count_quantile(share: float, mean: float) -> float:
    """Return how many come at random with some mean, if any comes: a share is not above it.

    Of a Poisson distribution without its zero; where many come, of a normal one.
    """
    if mean > MANY:
        return mean + math.sqrt(mean) * math.log(share / (1.0 - share)) / LOGISTIC
    chance = math.exp(-mean)
    left = (1.0 - share) * (1.0 - chance)
    more = 1.0 - chance
    count = 0.0
    while more > left and count < 4.0 * MANY:
        count += 1.0
        chance *= mean / count
        more -= chance
    return max(count, 1.0)


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
