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
        Share of all clients per pass; 1 where all come in the same.

    Notes
    -----
    A client's request of round k + 1 starts a sum of k answers after its first, so times are
    spread with variance first + k step, and the mean of a normal density over itself is
    1/(2 sqrt(pi) sigma); 1/(4 pi) more makes it 1 where all are alike. It falls until requests
    are spread over the whole cycle. The mean over rounds is taken as an integral over k from
    1/2 to rounds - 1/2. Answers that are all alike stay as they came.
    """
    even = 1.0 / max(cycle, 1.0)
    first += GAUSSIAN * GAUSSIAN
    if step <= 0.0:
        return max(even, GAUSSIAN / math.sqrt(first))
    if math.isinf(rounds):
        return even
    if rounds < 2.0:
        return max(even, GAUSSIAN / math.sqrt(first + step))
    last = rounds - 0.5
    spread = (GAUSSIAN * cycle) ** 2  # variance from which on they are spread evenly
    until = min(max((spread - first) / step, 0.5), last)
    dense = 2.0 / step * (math.sqrt(first + until * step) - math.sqrt(first + 0.5 * step))
    return (GAUSSIAN * dense + even * (last - until)) / (rounds - 1.0)


@jit
def mean_turn(turns: float) -> float:
    """Return the mean turn of requests that come at once and need so many turns together.

    Of an even spread from 0 to `turns`, each rounded up.
    """
    if turns <= 1.0:
        return 1.0
    whole = math.floor(turns)
    return (0.5 * whole * (whole + 1.0) + (turns - whole) * (whole + 1.0)) / turns


@jit
def most_on_one(requests: float, ranks: float) -> float:
    """Return how many requests the rank with most has, where ranks take them in turn.

    Parameters
    ----------
    requests : float
        Of all ranks, at least 1, on average.
    ranks : float

    Notes
    -----
    1 + floor((n - 1) / ranks), smoothed as the number n varies.
    """
    more = (requests - 1.0) / ranks
    if more <= 0.0:
        return 1.0
    return 1.0 + more * more / (more + 0.5 * (1.0 - 1.0 / ranks))
