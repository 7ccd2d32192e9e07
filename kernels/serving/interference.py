"""What prompts cost a rank that also decodes: passes of their own, or longer ones."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import FUSED, PassTables


@jit_lean
def prompt_cost(
    tables: PassTables,
    row: int,
    scheduler: int,
    budget: float,
    fresh: float,
    before: float,
    decoding: float,
    context: float,
    verified: float,
) -> tuple[float, float, float, float, float]:
    """Return what a pass of decoding sequences takes, and what prompts add to it.

    Parameters
    ----------
    tables, row : PassTables, int
    scheduler : int
        `FUSED` or `PREFILL_FIRST`.
    budget : float
        Tokens of a pass at most.
    fresh, before : float
        Tokens of a prompt that run (0: prompts come from elsewhere), and those that the cache
        holds.
    decoding, context, verified : float
        Sequences that decode, tokens that each keeps, and tokens that each runs.

    Returns
    -------
    decode : float
        A pass without prompts [s]; 0 where nothing decodes.
    fixed, each : float
        What passes with prompts take beyond `decode`: `fixed` if there is one, and `each` per
        prompt [s].
    passes : float
        Passes with a chunk of a prompt until it is through.
    room : float
        Prompts that one pass can take; below 1 where one takes several.
    """
    decode = 0.0
    if decoding > 0.0:
        decode = pass_times(tables, row, 0.0, 0.0, 0.0, decoding, context, verified, 0.0)[0]
    if fresh <= 0.0:
        return decode, 0.0, 0.0, 1.0, math.inf
    room, beside = budget, 0.0
    if scheduler == FUSED:
        room, beside = max(budget - decoding * verified, 1.0), decoding
    passes = float(math.ceil(fresh / room))
    chunk = fresh / passes
    middle = before + 0.5 * (fresh - chunk)
    one = pass_times(tables, row, 1.0, chunk, middle, beside, context, verified, 1.0 / passes)[0]
    one -= decode if scheduler == FUSED else 0.0
    if room < 2.0 * fresh:
        return decode, 0.0, max(passes * one, 0.0), passes, room / fresh
    two = pass_times(tables, row, 2.0, chunk, middle, beside, context, verified, 2.0)[0]
    two -= decode if scheduler == FUSED else 0.0
    each = max(two - one, 0.0)
    return decode, max(one - each, 0.0), each, passes, room / fresh


@jit_lean
def most_of_ranks(mean: float, ranks: float) -> float:
    """Return the mean of the largest of so many Poisson numbers.

    Notes
    -----
    It is the sum over k >= 1 of 1 - P(one is below k)^ranks. Large numbers are nearly normal: the
    largest lies so many deviations above the mean whatever that is.
    """
    if ranks <= 1.0:
        return mean
    near = min(mean, 20.0)
    chance = math.exp(-near)
    below, largest, k = chance, 0.0, 1.0
    while below < 1.0 - 1e-9 and k < 80.0:
        largest += 1.0 - math.pow(below, ranks)
        chance *= near / k
        below += chance
        k += 1.0
    return mean + math.sqrt(mean / near) * (largest - near) if mean > 0.0 else 0.0


@jit_lean
def chunked_pass(
    time: float, decode: float, each: float, passes: float, rate: float, ranks: float
) -> tuple[float, float]:
    """Return a mean pass from the prompts under way in a guessed one, and its share with prompts.

    Prompts take several passes each. Parameters are those of `mean_pass`, and the guess [s].
    """
    share = 1.0 - math.pow(max(1.0 - rate * time * passes, 0.0), ranks)
    return decode + share * each / passes, share


@jit_lean
def whole_pass(
    time: float, decode: float, fixed: float, each: float, rate: float, ranks: float
) -> tuple[float, float, float]:
    """Return a mean pass, its share with prompts and how long those are, from a guess of that.

    Prompts take one pass each. Parameters are those of `mean_pass`, and the guess [s].
    """
    after_short = -math.expm1(-rate * ranks * decode)
    after_long = -math.expm1(-rate * ranks * time)
    share = after_short / max(1.0 - after_long + after_short, 1e-300)
    most = (1.0 - share) * most_of_ranks(rate * decode, ranks)
    most += share * most_of_ranks(rate * time, ranks)
    longer = decode + fixed + each * (most / share if share > 0.0 else 1.0)
    return (1.0 - share) * decode + share * longer, share, longer


@jit_lean
def mean_pass(
    decode: float, fixed: float, each: float, passes: float, rate: float, ranks: float
) -> tuple[float, float]:
    """Return the mean time between passes of a sequence, and how often prompts make it longer.

    Parameters
    ----------
    decode, fixed, each, passes : float
        As of `prompt_cost`.
    rate : float
        Prompts that arrive at random at an attention rank [1/s].
    ranks : float
        Attention ranks that pass in step: a prompt of one holds up all.

    Returns
    -------
    time, share : float
        [s], inf where prompts take all time; share of passes with prompts.

    Notes
    -----
    Prompts of one pass come while the pass before runs, which is longer where that had prompts
    itself: of passes behind one of length t a share p(t) = 1 - exp(-rate · ranks · t) has prompts,
    so that of all passes it is s = p(decode) / (1 - p(t) + p(decode)), t the mean of those with
    prompts. Such a pass is as long as that of the rank with the most of them. Prompts that take
    several passes hold up that share of them.
    """
    if rate * each >= 1.0:
        return math.inf, 1.0
    if fixed + each <= 0.0:
        return decode, 0.0
    several = passes > 1.0
    time = decode if several else decode + fixed + each
    for _ in range(4):
        if several:
            once = chunked_pass(time, decode, each, passes, rate, ranks)[0]
            twice = chunked_pass(once, decode, each, passes, rate, ranks)[0]
        else:
            once = whole_pass(time, decode, fixed, each, rate, ranks)[2]
            twice = whole_pass(once, decode, fixed, each, rate, ranks)[2]
        # Steps shrink evenly: go on to where they end (Aitken).
        ratio = (twice - once) / (once - time) if once != time else 0.0
        time = twice
        if 0.0 < ratio < 0.999:
            time += (twice - once) * ratio / (1.0 - ratio)
    if several:
        return chunked_pass(time, decode, each, passes, rate, ranks)
    found = whole_pass(time, decode, fixed, each, rate, ranks)
    return found[0], found[1]
