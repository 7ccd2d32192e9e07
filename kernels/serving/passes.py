"""The time of one pass, from tables; what it yields, and what prompts cost a decoding rank.

With speculative decoding a pass yields a sequence as many tokens as it accepts in a row, and one.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean, jit_lean_inline
from perfmodel.kernels.serving.tables import (
    ATTENTION,
    COMMUNICATION,
    EXPERTS,
    FUSED,
    MATRICES,
    OTHER,
    PassTables,
)


@jit_lean
def position(knots: np.ndarray, value: float) -> int:
    """Return the knot at or below a value, at most the last but one."""
    low, high = 0, knots.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if knots[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@jit_lean
def share(knots: np.ndarray, at: int, value: float) -> float:
    """Return how far a value lies from a knot to the next; beyond 1 after the last."""
    return max((value - knots[at]) / (knots[at + 1] - knots[at]), 0.0)


@jit_lean
def place(knots: np.ndarray, value: float) -> tuple[int, float]:
    """Return both."""
    at = position(knots, value)
    return at, share(knots, at, value)


@jit_lean
def captured_size(tokens: float, limit: float, step: float) -> float:
    """Return the size at which a pass of so many decoded tokens runs: itself if not captured."""
    if tokens > limit or tokens <= 0.0:
        return tokens
    size = 1.0
    while size < tokens and size < 4.0:
        size *= 2.0
    if size < tokens:
        size = math.ceil(tokens / step) * step
    return min(size, limit)


@jit_lean
def mixers(
    x_knots: np.ndarray, y_knots: np.ndarray, table: np.ndarray, row: int, x: float, y: float
) -> float:
    """Return a table's value between its knots, 0 where `x` is 0."""
    if x <= 0.0:
        return 0.0
    j, v = place(y_knots, y)
    return mixers_beside(x_knots, table, row, x, j, v)


@jit_lean
def mixers_beside(
    x_knots: np.ndarray, table: np.ndarray, row: int, x: float, j: int, v: float
) -> float:
    """Return the same where `y` lies beyond knot `j` by a share `v` of the way to the next."""
    if x <= 0.0:
        return 0.0
    i, u = place(x_knots, x)
    low = table[row, i, j] + v * (table[row, i, j + 1] - table[row, i, j])
    high = table[row, i + 1, j] + v * (table[row, i + 1, j + 1] - table[row, i + 1, j])
    return max(low + u * (high - low), 0.0)


@jit_lean
def line(knots: np.ndarray, table: np.ndarray, row: int, x: float) -> float:
    """Return the value of a table of one axis, 0 where `x` is 0."""
    if x <= 0.0:
        return 0.0
    i, u = place(knots, x)
    return max(table[row, i] + u * (table[row, i + 1] - table[row, i]), 0.0)


@jit_lean
def pass_times(
    tables: PassTables,
    row: int,
    prompts: float,
    chunk: float,
    before: float,
    decoding: float,
    context: float,
    verified: float,
    finished: float,
) -> tuple[float, float, float, float, float, float, float]:
    """Return the time of one pass, and what it consists of.

    Parameters
    ----------
    tables : PassTables
    row : int
        Layout.
    prompts, chunk, before : float
        Prompts with a chunk in the pass, tokens of each chunk, and tokens of its prompt that
        came before.
    decoding, context : float
        Sequences that decode, and tokens that each keeps.
    verified : float
        Tokens that each of them runs: 1, with speculative tokens one more than those.
    finished : float
        Prompts whose last chunk it is: they give a token too.

    Returns
    -------
    time, attention, matrices, experts, communication, other, host : float
        [s]; `host` is what the device waits for, and `time` the sum of the others.
    """
    prefill = mixers(tables.chunks, tables.before, tables.prefill, row, chunk, before)
    decode = mixers(tables.batches, tables.contexts, tables.decode, row, decoding, context)
    draft = line(tables.batches, tables.draft, row, decoding)
    return pass_beside(
        tables, row, prompts, chunk, prefill, decoding, decode, draft, verified, finished
    )


@jit_lean_inline
def pass_beside(
    tables: PassTables,
    row: int,
    prompts: float,
    chunk: float,
    prefill: float,
    decoding: float,
    decode: float,
    draft: float,
    verified: float,
    finished: float,
) -> tuple[float, float, float, float, float, float, float]:
    """Return the same from what its mixers and its speculative tokens take.

    Parameters
    ----------
    prefill, decode, draft : float
        Mixers of one chunk and of all sequences that decode, and making their speculative
        tokens [s].
    """
    new = prompts * chunk
    decoded = decoding * verified
    tokens = new + decoded
    launch = tables.eager_time[row]
    if new <= 0.0 and decoded <= tables.graph_limit[row]:
        tokens = captured_size(decoded, tables.graph_limit[row], tables.graph_step[row])
        launch = tables.graph_time[row]
    elif tokens <= tables.mixed_graph_limit[row]:
        launch = tables.piecewise_time[row]
    at, part = place(tables.tokens, tokens)
    low, high = tables.body[row, at], tables.body[row, at + 1]
    matrices = max(low[MATRICES] + part * (high[MATRICES] - low[MATRICES]), 0.0)
    experts = max(low[EXPERTS] + part * (high[EXPERTS] - low[EXPERTS]), 0.0)
    sent = max(low[COMMUNICATION] + part * (high[COMMUNICATION] - low[COMMUNICATION]), 0.0)
    other = max(low[OTHER] + part * (high[OTHER] - low[OTHER]), 0.0)
    attention = max(low[ATTENTION] + part * (high[ATTENTION] - low[ATTENTION]), 0.0)
    attention += prompts * prefill
    attention += decode
    other += line(tables.sequences, tables.head, row, decoded + finished)
    matrices += draft
    device = attention + matrices + experts + sent + other
    # Kernels are launched while others run; the device waits where launching takes longer.
    host = max(launch - device, 0.0)
    around = tables.pass_host[row] + tables.sequence_host[row] * (decoding + finished)
    hidden = tables.host_hidden[row]
    # What runs beside the pass before costs only what is longer than that.
    host += (1.0 - hidden) * around + max(hidden * around - device - host, 0.0)
    return device + host, attention, matrices, experts, sent, other, host


@jit
def tokens_per_pass(draft_length: float, acceptance: float) -> float:
    """Return the mean tokens that a sequence gains in a pass.

    Parameters
    ----------
    draft_length : float
        Drafted tokens gamma, verified at once.
    acceptance : float
        Chance alpha that one is taken, given those before it were.

    Returns
    -------
    float
        (1 - alpha^(gamma + 1)) / (1 - alpha): the speculative tokens taken, and one token more
        of the model itself (Leviathan, Kalman, Matias: arXiv 2211.17192, equation 1).
    """
    if draft_length <= 0.0:
        return 1.0
    if acceptance >= 1.0:
        return draft_length + 1.0
    return (1.0 - acceptance ** (draft_length + 1.0)) / (1.0 - acceptance)


@jit
def pass_variation(draft_length: float, acceptance: float) -> float:
    """Return the variance of the tokens that a sequence gains in a pass.

    The tokens X are at least k with chance alpha^(k - 1), k up to gamma + 1; so the mean of
    their square is the sum of (2 k - 1) alpha^(k - 1).
    """
    square, chance, k = 0.0, 1.0, 1.0
    while k <= draft_length + 1.0:
        square += (2.0 * k - 1.0) * chance
        chance *= acceptance
        k += 1.0
    mean = tokens_per_pass(draft_length, acceptance)
    return max(square - mean * mean, 0.0)


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
