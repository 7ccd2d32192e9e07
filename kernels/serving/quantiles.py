"""Quantiles of mixtures of evenly spread values."""

from __future__ import annotations

from perfmodel.kernels._jit import jit


@jit
def below(x: float, low: float, high: float) -> float:
    """Return the share of values spread evenly from `low` to `high` that lie below `x`."""
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
