"""Routing of tokens to experts: draws without replacement, and loads that add up.

Random numbers are a function of (seed, index), so that a result depends neither on
the order of calls nor on a library's generator: SplitMix64 (Steele, Lea, Flood 2014)
of a counter.

Experts of tokens as a race: the same distribution as of `kernels/routing.py`, with few draws.

An expert arrives after an exponential time at the rate of its weight; a token takes the first
``top_k`` to arrive. That is a draw one after the other without putting back, and the keys
``weight / -log(u)`` of `assign_tokens` are one over such times. Here only those are drawn that
can win: the next to arrive is an expert in proportion to the weights of those left.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import compiling, jit, jit_lean
from perfmodel.kernels.elementwise import over_columns

_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


@jit
def unit_uniform(seed, index):
    """Uniform number in (0, 1), the same for the same (seed, index).

    Parameters
    ----------
    seed, index : int
        Any 64-bit numbers, >= 0.
    """
    # Products wrap around, as functions do without the warning of operators on plain numbers.
    z = np.add(np.multiply(np.uint64(seed), np.uint64(0xD1342543DE82EF95)), np.uint64(index))
    z = np.multiply(np.add(z, np.uint64(1)), np.uint64(0x9E3779B97F4A7C15))
    z = np.multiply(z ^ (z >> np.uint64(30)), np.uint64(0xBF58476D1CE4E5B9))
    z = np.multiply(z ^ (z >> np.uint64(27)), np.uint64(0x94D049BB133111EB))
    z = z ^ (z >> np.uint64(31))
    return (np.float64(z >> np.uint64(11)) + 0.5) * _TO_UNIT


@jit
def assign_tokens(weights, top_k, groups, group_limit, seed, first, assignment):
    """Draw every token's experts without replacement, in proportion to `weights`.

    Parameters
    ----------
    weights : ndarray, shape (expert,)
        Relative popularity, >= 0.
    top_k : int
        Distinct experts per token.
    groups, group_limit : int
        Experts form equal consecutive groups, of which a token may use
        `group_limit`: those with the largest sum of their two best keys
        (DeepSeek-V3 report, node-limited routing). 1, 1 for none.
    seed : int
        Stream of random numbers.
    first : int
        Number of the first token, so that parts of a batch can be drawn apart.
    assignment : ndarray of int64, shape (token, top_k)
        Result.

    Notes
    -----
    A token takes the experts with the largest ``log(weight) + Gumbel`` (Efraimidis
    and Spirakis 2006; Kool et al. 2019), which is the same as drawing one after the
    other without putting back.
    """
    experts = weights.shape[0]
    size = experts // groups
    keys = np.empty(experts)
    scores = np.empty(groups)
    for token in range(assignment.shape[0]):
        for e in range(experts):
            u = unit_uniform(seed, (first + token) * experts + e)
            # log(w) - log(-log(u)) orders like this, with one logarithm less
            keys[e] = weights[e] / -math.log(u)
        if group_limit < groups:
            for g in range(groups):
                best = second = -1.0
                for e in range(g * size, (g + 1) * size):
                    if keys[e] > best:
                        second = best
                        best = keys[e]
                    elif keys[e] > second:
                        second = keys[e]
                scores[g] = best + max(second, 0.0)
            for _ in range(groups - group_limit):
                worst = 0
                for g in range(1, groups):
                    if scores[g] < scores[worst]:
                        worst = g
                scores[worst] = math.inf
                keys[worst * size : (worst + 1) * size] = -1.0
        for j in range(top_k):
            chosen = 0
            for e in range(1, experts):
                if keys[e] > keys[chosen]:
                    chosen = e
            assignment[token, j] = chosen
            keys[chosen] = -2.0


CELLS_AT_ONCE = 1 << 18
"""Keys of tokens and experts that NumPy makes at once."""


def assign_at_once(weights, top_k, groups, group_limit, seed, first, assignment):
    """Do what `assign_tokens` does by it, or in NumPy where it is not compiled."""
    if compiling():
        assign_tokens(weights, top_k, groups, group_limit, seed, first, assignment)
        return
    experts = len(weights)
    tokens = max(CELLS_AT_ONCE // experts, 1)
    for begin in range(0, len(assignment), tokens):
        part = assignment[begin : begin + tokens]
        index = np.arange(len(part) * experts) + (first + begin) * experts
        drawn = over_columns(unit_uniform)(seed, index)
        # NumPy's logarithm differs from that of compiled code in the last digit.
        logarithms = np.fromiter(map(math.log, drawn.tolist()), np.float64, drawn.size)
        keys = weights / -logarithms.reshape(len(part), experts)
        rows = np.arange(len(part))
        if group_limit < groups:
            by_group = keys.reshape(len(part), groups, -1)
            best = np.sort(by_group, axis=2)[:, :, -2:]
            second = best[:, :, 0] if best.shape[2] > 1 else 0.0
            scores = best[:, :, -1] + second
            for _ in range(groups - group_limit):
                worst = scores.argmin(axis=1)
                scores[rows, worst] = math.inf
                by_group[rows, worst] = -1.0
        for j in range(top_k):
            part[:, j] = keys.argmax(axis=1)
            keys[rows, part[:, j]] = -2.0


@jit
def whole_loads(shares, tokens, top_k, loads):
    """Turn shares into whole loads that sum to ``tokens top_k``, none above `tokens`.

    Parameters
    ----------
    shares : ndarray, shape (expert,)
        Share of each expert, >= 0, any sum.
    tokens, top_k : int
    loads : ndarray of int64, shape (expert,)
        Result.

    Notes
    -----
    An expert sees a token at most once, so a share above ``1 / top_k`` is cut there
    and the rest goes to the others in proportion; then largest remainders.
    """
    experts = shares.shape[0]
    target = tokens * top_k
    order = np.argsort(-shares, kind="mergesort")
    rest_share = shares.sum()
    nothing = 1e-12 * rest_share  # what rounding leaves of a sum
    rest = float(target)
    full = 0  # the `full` most popular experts see every token
    while full < experts and rest > 0.0 and rest_share > nothing:
        if shares[order[full]] * rest <= tokens * rest_share:
            break
        rest_share -= shares[order[full]]
        rest -= tokens
        full += 1
    remainder = np.empty(experts)
    total = 0
    for i in range(experts):
        e = order[i]
        exact = float(tokens)
        if i >= full:
            exact = rest / (experts - full)
            if rest_share > nothing:
                exact = rest * shares[e] / rest_share
        loads[e] = min(int(exact), tokens)
        remainder[e] = exact - loads[e]
        total += loads[e]
    for e in np.argsort(-remainder, kind="mergesort"):
        if total >= target:
            break
        if loads[e] < tokens:
            loads[e] += 1
            total += 1
    while total < target:  # only where rounding left more than one each
        for e in range(experts):
            if total < target and loads[e] < tokens:
                loads[e] += 1
                total += 1


@jit
def power_law_loads(alpha, tokens, top_k, ranks, seed, loads):
    """Loads of aiconfigurator's ``power_law`` benchmarks.

    Parameters
    ----------
    alpha : float
        Exponent of the density ``x^-alpha``, not 1.
    tokens, top_k : int
    ranks : int
        Expert-parallel ranks that hold equal consecutive shares of the experts.
    seed : int
    loads : ndarray of int64, shape (expert,)
        Result; the busiest rank comes first.

    Notes
    -----
    Each expert's popularity is drawn from a power law on ``[1, 0.8 tokens]`` (on
    ``[0.01, 2]`` where there are fewer assignments than experts), scaled to
    ``tokens top_k``, rounded, and cut at `tokens`. What is missing then goes one by
    one, rank after rank, to the rank's least loaded expert; what is too much is
    taken from its most loaded one. (collector/helper.py of aiconfigurator 095f58a.)
    """
    experts = loads.shape[0]
    target = tokens * top_k
    low, high = (1.0, 0.8 * tokens) if target > experts else (0.01, 2.0)
    power = 1.0 - alpha
    drawn = np.empty(experts)
    for e in range(experts):
        u = unit_uniform(seed, e)
        drawn[e] = ((high**power - low**power) * u + low**power) ** (1.0 / power)
    scale = target / drawn.sum()
    total = 0
    for e in range(experts):
        loads[e] = min(int(np.rint(drawn[e] * scale)), tokens)
        total += loads[e]
    size = experts // ranks
    rank = 0
    idle = 0
    while total != target and idle < ranks:
        part = loads[rank * size : (rank + 1) * size]
        chosen = np.argmin(part) if total < target else np.argmax(part)
        step = 1 if total < target else -1
        if 0 <= part[chosen] + step <= tokens:
            part[chosen] += step
            total += step
            idle = 0
        else:
            idle += 1
        rank = (rank + 1) % ranks
    busiest = 0
    most = -1
    for r in range(ranks):
        load = loads[r * size : (r + 1) * size].sum()
        if load > most:
            most = load
            busiest = r
    if busiest > 0:
        first = loads[:size].copy()
        loads[:size] = loads[busiest * size : (busiest + 1) * size]
        loads[busiest * size : (busiest + 1) * size] = first


@jit
def spread_loads(loads, tokens, top_k, assignment):
    """Give every token `top_k` different experts so that the loads come out.

    Parameters
    ----------
    loads : ndarray of int64, shape (expert,)
        Sum ``tokens top_k``, none above `tokens`.
    tokens, top_k : int
    assignment : ndarray of int64, shape (token, top_k)
        Result.

    Notes
    -----
    Experts, busiest first, fill one column of the table after the other. An expert
    whose tokens wrap into the next column starts there above where it ended, because
    no load exceeds `tokens`; so no token meets an expert twice.
    """
    slot = 0
    for e in np.argsort(-loads, kind="mergesort"):
        for _ in range(loads[e]):
            assignment[slot % tokens, slot // tokens] = e
            slot += 1


@jit
def tokens_of_rank(loads, tokens, top_k, first, last):
    """Tokens that have an expert in ``first <= expert < last``, under `spread_loads`.

    Parameters
    ----------
    loads : ndarray of int64, shape (expert,)
    tokens, top_k, first, last : int

    Returns
    -------
    int
    """
    here = np.zeros(tokens, np.bool_)
    slot = 0
    for e in np.argsort(-loads, kind="mergesort"):
        if first <= e < last:
            for i in range(slot, slot + loads[e]):
                here[i % tokens] = True
        slot += loads[e]
    return here.sum()


TRIES = 32
"""Draws from a table that may hit an expert taken before, ahead of a walk over those left."""
STRIDE = 1 << 16
"""Random numbers set aside for a token: at most ``TRIES + 2`` for each expert that arrives."""


@jit
def alias_tables(weights, groups):
    """Make tables from which an expert of a group is drawn with one random number.

    Parameters
    ----------
    weights : ndarray, shape (expert,)
        Relative popularity, >= 0.
    groups : int
        Equal consecutive groups.

    Returns
    -------
    keep : ndarray, shape (expert,)
        Probability that the place drawn stays.
    other : ndarray of int64, shape (expert,)
        The expert otherwise.
    totals : ndarray, shape (groups,)
        Sums of weights.

    Notes
    -----
    A. J. Walker 1977; M. D. Vose 1991.
    """
    experts = weights.shape[0]
    size = experts // groups
    keep = np.ones(experts)
    other = np.arange(experts)
    totals = np.zeros(groups)
    stack = np.empty(size, np.int64)  # poor from the left, rich from the right
    for group in range(groups):
        begin = group * size
        total = 0.0
        for e in range(begin, begin + size):
            total += weights[e]
        totals[group] = total
        if total <= 0.0:
            continue
        poor = 0
        rich = size
        for e in range(begin, begin + size):
            keep[e] = weights[e] * size / total
            if keep[e] < 1.0:
                stack[poor] = e
                poor += 1
            else:
                rich -= 1
                stack[rich] = e
        while poor > 0 and rich < size:
            poor -= 1
            low = stack[poor]
            high = stack[rich]
            other[low] = high
            keep[high] -= 1.0 - keep[low]
            if keep[high] < 1.0:
                rich += 1
                stack[poor] = high
                poor += 1
        for place in range(poor):  # what rounding leaves
            keep[stack[place]] = 1.0
    return keep, other, totals


@jit_lean
def next_expert(weights, keep, other, begin, size, taken, token, seed, index):
    """Draw the next expert of a group among those that the token has not taken.

    Parameters
    ----------
    weights, keep, other : ndarray, shape (expert,)
        See `alias_tables`.
    begin, size : int
        The group; at least one of its experts is not taken.
    taken : ndarray of int64, shape (expert,)
        Last token that took each expert; the one drawn is noted.
    token, seed, index : int
        Stream of random numbers, and the next of it.

    Returns
    -------
    expert, index : int
    """
    for _ in range(TRIES):
        place = unit_uniform(seed, index) * size
        index += 1
        e = begin + min(int(place), size - 1)
        if place - int(place) >= keep[e]:
            e = other[e]
        if taken[e] != token and weights[e] > 0.0:
            taken[e] = token
            return e, index
    rest = 0.0
    for e in range(begin, begin + size):
        if taken[e] != token:
            rest += weights[e]
    goal = unit_uniform(seed, index) * rest
    index += 1
    chosen = -1
    for e in range(begin, begin + size):
        if taken[e] != token:
            if chosen < 0 or weights[e] > 0.0:
                chosen = e
            goal -= weights[e]
            if goal < 0.0:
                break
    taken[chosen] = token
    return chosen, index


@jit
def race_tokens(weights, top_k, groups, group_limit, seed, first, assignment):
    """Draw every token's experts without replacement, in proportion to `weights`.

    Parameters
    ----------
    weights : ndarray, shape (expert,)
        Relative popularity, >= 0.
    top_k : int
        Distinct experts per token.
    groups, group_limit : int
        Equal consecutive groups of experts, of which a token may use `group_limit`: those with
        the largest sum of their two best keys (DeepSeek-V3 report, node-limited routing).
    seed : int
        Stream of random numbers.
    first : int
        Number of the first token, so that parts of a batch can be drawn apart.
    assignment : ndarray of int64, shape (token, top_k)
        Result.
    """
    experts = weights.shape[0]
    taken = np.full(experts, -1)
    if group_limit >= groups:
        keep, other, _ = alias_tables(weights, 1)
        for token in range(assignment.shape[0]):
            index = (first + token) * STRIDE
            for j in range(top_k):
                assignment[token, j], index = next_expert(
                    weights, keep, other, 0, experts, taken, token, seed, index
                )
        return
    size = experts // groups
    keep, other, totals = alias_tables(weights, groups)
    arrived = np.empty((groups, 2), np.int64)  # the next of a group and the one behind it
    times = np.empty((groups, 2))
    left = np.empty(groups)  # weights of those not drawn
    drawn = np.empty(groups, np.int64)
    scores = np.empty(groups)
    for token in range(assignment.shape[0]):
        index = (first + token) * STRIDE
        for g in range(groups):
            left[g] = totals[g]
            drawn[g] = 0
            clock = 0.0
            scores[g] = 0.0
            for j in range(2):
                arrived[g, j] = -1
                times[g, j] = math.inf
                if drawn[g] == size:
                    continue
                if left[g] > 1e-12 * totals[g]:
                    clock -= math.log(unit_uniform(seed, index)) / left[g]
                else:
                    clock = math.inf
                index += 1
                e, index = next_expert(
                    weights, keep, other, g * size, size, taken, token, seed, index
                )
                left[g] -= weights[e]
                drawn[g] += 1
                arrived[g, j] = e
                times[g, j] = clock
                scores[g] += 1.0 / max(clock, 1e-300)
        for _ in range(groups - group_limit):
            worst = 0
            for g in range(1, groups):
                if scores[g] < scores[worst]:
                    worst = g
            scores[worst] = math.inf
            arrived[worst, 0] = -1
        for j in range(top_k):
            g = -1
            for other_group in range(groups):
                if arrived[other_group, 0] >= 0 and (g < 0 or times[other_group, 0] < times[g, 0]):
                    g = other_group
            assignment[token, j] = arrived[g, 0]
            clock = times[g, 1]
            arrived[g, 0] = arrived[g, 1]
            times[g, 0] = clock
            arrived[g, 1] = -1
            times[g, 1] = math.inf
            if arrived[g, 0] >= 0 and drawn[g] < size:
                if left[g] > 1e-12 * totals[g]:
                    clock -= math.log(unit_uniform(seed, index)) / left[g]
                else:
                    clock = math.inf
                index += 1
                e, index = next_expert(
                    weights, keep, other, g * size, size, taken, token, seed, index
                )
                left[g] -= weights[e]
                drawn[g] += 1
                arrived[g, 1] = e
                times[g, 1] = clock
