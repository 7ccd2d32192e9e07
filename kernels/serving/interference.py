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
def lengthened_pass(
    time: float, decode: float, fixed: float, each: float, passes: float, rate: float, ranks: float
) -> tuple[float, float]:
    """Return a mean pass from the prompts that come in a guessed one, and its share with prompts.

    Parameters are those of `mean_pass`, and the guess [s].
    """
    local = rate * time
    if passes > 1.0:
        share = 1.0 - math.pow(max(1.0 - local * passes, 0.0), ranks)
        return decode + share * each / passes, share
    share = -math.expm1(-local * ranks)
    if share <= 0.0:
        return decode, 0.0
    return decode + share * fixed + each * most_of_ranks(local, ranks), share


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
    T = decode + share · fixed + n · each. Prompts come to a rank a = rate · T times per pass,
    and some came in share = 1 - exp(-a · ranks) of all passes. The pass is as long as that of the
    rank with the most prompts. Prompts that take several passes hold up that share of them.
    """
    if rate * each >= 1.0:
        return math.inf, 1.0
    time = decode
    for _ in range(3):
        once = lengthened_pass(time, decode, fixed, each, passes, rate, ranks)[0]
        twice = lengthened_pass(once, decode, fixed, each, passes, rate, ranks)[0]
        # Steps shrink evenly: go on to where they end (Aitken).
        ratio = (twice - once) / (once - time) if once > time else 0.0
        time = twice
        if 0.0 < ratio < 0.999:
            time += (twice - once) * ratio / (1.0 - ratio)
    return lengthened_pass(time, decode, fixed, each, passes, rate, ranks)
