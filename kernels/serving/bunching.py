"""How requests of a closed loop come together: all at once, then ever more spread."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit

GAUSSIAN = 0.5 / math.sqrt(math.pi)
"""Mean density of a normal distribution, weighted by itself, times its standard deviation."""


@jit
def mean_density(rounds: float, first: float, step: float, cycle: float) -> float:
    """Return how densely requests come about a request, mean over all rounds but the first.

    Parameters
    ----------
    rounds : float
        Requests that each client makes, one after the other; inf: the steady state.
    first : float
        Variance of the passes in which the first requests of all clients start their answers.
    step : float
        Variance that each answer adds.
    cycle : float
        Passes from one request of a client to the next.

    Returns
    -------
    float
        Share of all clients per pass.

    Notes
    -----
    A client's request of round k + 1 starts a sum of k answers after its first, so times are
    spread with variance first + k step, and the mean of a normal density over itself is
    1/(2 sqrt(pi) sigma); it falls until requests are spread over the whole cycle. The mean over
    rounds is taken as an integral over k from 1/2 to rounds - 1/2.
    """
    even = 1.0 / cycle
    if rounds <= 1.0:
        return min(GAUSSIAN / math.sqrt(first + step), 1.0) if first + step > 0.0 else 1.0
    if math.isinf(rounds):
        # Answers that are all alike stay as they came.
        if step > 0.0:
            return even
        return max(even, GAUSSIAN / math.sqrt(first) if first > 0.0 else 1.0)
    last = rounds - 0.5
    spread = (GAUSSIAN * cycle) ** 2  # variance from which on they are spread evenly
    if step <= 0.0:
        return max(even, min(GAUSSIAN / math.sqrt(first), 1.0) if first > 0.0 else 1.0)
    until = min(max((spread - first) / step, 0.5), last)
    dense = 2.0 / step * (math.sqrt(first + until * step) - math.sqrt(first + 0.5 * step))
    return min((GAUSSIAN * dense + even * (last - until)) / (rounds - 1.0), 1.0)
