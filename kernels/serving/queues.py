"""Waiting in front of servers: means, and quantiles with exponential tails."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean

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
