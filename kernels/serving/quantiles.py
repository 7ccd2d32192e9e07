"""Quantiles in closed form: mixtures of evenly spread values, counts that come at random."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit

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
