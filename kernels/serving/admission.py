"""How many requests a rank runs at once: what cache and engine admit, and how many arrivals decode.

Admission counts blocks of the cache and what an engine sets aside; how many requests decode when
they arrive at random is a birth-death chain. Prompts and answers are uniform between a share of
the longest and the longest.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit_lean, jit_lean_inline
from perfmodel.kernels.serving.passes import mean_pass, prompt_cost
from perfmodel.kernels.serving.tables import FUSED, PREEMPT, RESERVE, Deployments, Loads, PassTables


@jit_lean
def mean_length(longest: float, spread: float) -> float:
    """Return the mean of a length that is uniform in [spread · longest, longest]."""
    return 0.5 * (1.0 + spread) * longest


@jit_lean
def mean_square(longest: float, spread: float) -> float:
    """Return the mean of its square."""
    return (1.0 + spread + spread * spread) / 3.0 * longest * longest


@jit_lean
def length_variation(spread: float) -> float:
    """Return its squared coefficient of variation."""
    return (1.0 - spread) * (1.0 - spread) / (3.0 * (1.0 + spread) * (1.0 + spread))


SET_ASIDE = 0.098
"""Share of its remaining tokens that SGLang sets aside for a running request: 0.7 at first,
0.7 · 0.14 after 600 passes without a retraction (new_token_ratio, managers/schedule_policy.py)."""
MOST_SET_ASIDE = 4096.0
"""Tokens of an answer that it counts at most (CLIP_MAX_NEW_TOKENS of the same)."""


@jit_lean_inline
def is_closed_loop(loads: Loads, j: int) -> bool:
    """Whether clients keep requests of a load under way; else they arrive at a rate."""
    return loads.concurrency[j] > 0.0


@jit_lean
def blocks_needed(
    tokens: float, block_tokens: float, state_blocks: float, window_tokens: float
) -> float:
    """Return the blocks of a sequence of so many tokens.

    Parameters
    ----------
    tokens : float
    block_tokens : float
        Tokens of a block.
    state_blocks : float
        Blocks that it takes whatever its length.
    window_tokens : float
        Tokens that are kept at most; inf for all.
    """
    return math.ceil(min(tokens, window_tokens) / block_tokens) + state_blocks


@jit_lean
def blocks_up_to(tokens: float, block_tokens: float, window_tokens: float) -> float:
    """Return the integral of the blocks of sequences of 0 to `tokens` tokens [blocks · tokens]."""
    kept = min(tokens, window_tokens)
    full = math.floor(kept / block_tokens)
    area = 0.5 * block_tokens * full * (full + 1.0) + (kept - full * block_tokens) * (full + 1.0)
    if tokens > window_tokens:
        area += (tokens - window_tokens) * math.ceil(window_tokens / block_tokens)
    return area


@jit_lean
def mean_blocks(
    least: float, most: float, block_tokens: float, state_blocks: float, window_tokens: float
) -> float:
    """Return the mean blocks of sequences whose length is uniform from `least` to `most`."""
    if most - least < 1.0:
        return blocks_needed(most, block_tokens, state_blocks, window_tokens)
    area = blocks_up_to(most, block_tokens, window_tokens)
    area -= blocks_up_to(least, block_tokens, window_tokens)
    return area / (most - least) + state_blocks


@jit_lean
def running_limit(deployments: Deployments, d: int, loads: Loads, j: int) -> float:
    """Return how many requests run at once on an attention rank at most, on average.

    Parameters
    ----------
    deployments, loads : Deployments, Loads
    d, j : int
        Which of them.

    Returns
    -------
    float
        0 where the cache does not hold the longest request.

    Notes
    -----
    Where blocks for the whole answer are set aside (``guaranteed_no_evict``), so many run as
    requests of I + O tokens fit. Of requests of different lengths, which hold m blocks on
    average with variation c², blocks/m - 1/2 + c²/2 fit (renewal theory: Feller, vol. 2, XI.3).
    Where they are taken as tokens come (``preemption``), running requests are in all stages of
    their answers: one holds I + O/2 tokens on average, with longer answers met more often,
    I + E[O²]/2E[O]. Where they are estimated, a share of the remaining tokens counts too, and
    the last one admitted must fit with all its answer.
    """
    block, states = deployments.block_tokens[d], deployments.state_blocks[d]
    window, blocks = deployments.window_tokens[d], deployments.blocks[d]
    drafted = deployments.draft_length[d]
    longest_input, longest_output = loads.input_length[j], loads.output_length[j]
    spread = loads.length_spread[j]
    whole = longest_input + longest_output + drafted
    largest = blocks_needed(whole, block, states, window)
    if largest > blocks:
        return 0.0

    limit = deployments.max_sequences[d]
    if deployments.scheduler[d] == FUSED:
        limit = min(limit, deployments.stages[d] * deployments.token_budget[d] / (1.0 + drafted))
    prompt = mean_length(longest_input, spread)
    answer = mean_square(longest_output, spread) / mean_length(longest_output, spread)
    admission = deployments.admission[d]
    if admission == RESERVE:
        shortest = spread * (longest_input + longest_output) + drafted
        middle = prompt + answer + drafted
        half = min(whole - middle, middle - shortest)
        each = mean_blocks(middle - half, middle + half, block, states, window)
        total = prompt + mean_length(longest_output, spread)
        parts = prompt * prompt + (total - prompt) * (total - prompt)
        fits = blocks / each - 0.5 + 0.5 * length_variation(spread) * parts / (total * total)
        smallest = blocks_needed(shortest, block, states, window)
        fits = min(max(fits, math.floor(blocks / largest)), math.floor(blocks / smallest))
    else:
        first = prompt + drafted
        last = first + answer
        each = mean_blocks(first, last, block, states, window)
        if admission == PREEMPT:
            fits = max(blocks / each, 1.0)
        else:
            counted = min(longest_output, MOST_SET_ASIDE)
            aside = SET_ASIDE * min(0.5 * answer, MOST_SET_ASIDE) / block
            aside = min(aside, max(window / block + states - each, 0.0))
            newest = blocks_needed(longest_input + counted + drafted, block, states, window)
            fits = 1.0 + max(blocks - newest, 0.0) / (each + aside)
    return max(min(limit, fits), 1.0)


MOST_STATES = 96
"""States of a chain that are evaluated: all where few decode, else a few per deviation."""
WIDE = 4.5
"""Deviations to each side; what lies beyond weighs about a millionth."""
FINE = 3.0
"""States evaluated per deviation."""
NEVER = 1e6
"""Longest pass that is told from one that never ends for the prompts that come meanwhile [s]."""
NEGLIGIBLE = 1e-6
STATES_COLUMNS = 9
COUNT, WEIGHT, TIME, SHARE, DECODE, FIXED, EACH, PASSES, ROOM = range(STATES_COLUMNS)
"""Columns of the states of a chain: requests that decode, the chance that so many do, and what
`mean_pass` and `prompt_cost` say of a lane then."""


@jit_lean
def fill_state(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    prompt: tuple[float, float, float],
    lanes: float,
    rate: float,
    count: float,
    state: np.ndarray,
) -> None:
    """Fill the columns of one state, but for its weight.

    Parameters
    ----------
    prompt : (float, float, float)
        Tokens of a prompt that run, those that the cache holds, and tokens that a decoding
        sequence keeps.
    lanes, rate : float
        Over which requests divide evenly, and requests per second of all.
    count : float
        Requests that decode.
    """
    decode, fixed, each, passes, room = prompt_cost(
        tables,
        deployments.layout[d],
        deployments.scheduler[d],
        deployments.token_budget[d],
        prompt[0],
        prompt[1],
        max(count / lanes, 1.0) if count > 0.0 else 0.0,
        prompt[2],
        deployments.draft_length[d] + 1.0,
    )
    time, share = mean_pass(
        decode, fixed, each, passes, rate / lanes, deployments.lockstep_ranks[d]
    )
    state[COUNT], state[TIME], state[SHARE], state[DECODE] = count, time, share, decode
    state[FIXED], state[EACH], state[PASSES], state[ROOM] = fixed, each, passes, room


@jit_lean
def fill_chain(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    prompt: tuple[float, float, float],
    lanes: float,
    rate: float,
    answer_passes: float,
    most: float,
    states: np.ndarray,
) -> tuple[int, float]:
    """Fill the states of the chain of decoding requests, and return how many.

    Parameters
    ----------
    prompt, lanes, rate
        As of `fill_state`.
    answer_passes : float
        Passes of an answer.
    most : float
        Requests that run at most; what lies beyond waits and is not part of the chain.
    states : float64[MOST_STATES, STATES_COLUMNS]

    Returns
    -------
    filled : int
        0 where requests do not leave as fast as they arrive.
    most : float
        Requests that decode at most: those that run less those in their prompts.
    """
    state = states[0]
    fill_state(tables, deployments, d, prompt, lanes, rate, most, state)
    # Prompts take places too, while they are in their passes.
    beside = state[DECODE] if deployments.scheduler[d] == FUSED else 0.0
    own = state[PASSES] * beside + state[FIXED] + state[EACH]
    stay = answer_passes * state[TIME]
    if stay < math.inf:
        most = max(math.floor(most * stay / (stay + own)), 1.0)
    spare = most - rate * answer_passes * state[TIME]
    if not spare > 0.0:
        return 0, most
    # The fewest that leave as fast as others arrive, and how far numbers deviate from that:
    # rate / (d leave / d n), by the passes of one lane's first and of so many.
    low, high = 0.0, most
    fill_state(tables, deployments, d, prompt, lanes, rate, 1.0, state)
    first = state[TIME]
    low_error, high_error, side = -rate * answer_passes * first, spare, 0
    while high - low > 1.0:
        # False position, where an end that stays counts half (Illinois).
        middle = (low * high_error - high * low_error) / (high_error - low_error)
        middle = min(max(math.floor(middle), low + 1.0), high - 1.0)
        fill_state(tables, deployments, d, prompt, lanes, rate, middle, state)
        error = middle - rate * answer_passes * state[TIME]
        if error > 0.0:
            high, high_error = middle, error
            low_error *= 0.5 if side > 0 else 1.0
            side = 1
        else:
            low, low_error = middle, max(error, -1e300)
            high_error *= 0.5 if side < 0 else 1.0
            side = -1
    fill_state(tables, deployments, d, prompt, lanes, rate, high, state)
    deviation = math.sqrt(high * max(state[TIME] / first, 1.0))
    step = max(math.floor(deviation / FINE), 1.0)
    count = max(high - math.ceil(WIDE * deviation / step) * step, 0.0)

    filled, log_weight, highest, log_leave = 0, 0.0, 0.0, 0.0
    before = 0.0
    while True:
        state = states[filled]
        fill_state(tables, deployments, d, prompt, lanes, rate, count, state)
        leave = 0.0
        if count > 0.0:
            leave = math.log(count / (answer_passes * min(state[TIME], NEVER)))
        if filled > 0:
            # The sum of log(rate / leave) over the states from the one before to this one.
            width = count - before
            if before == 0.0:
                log_leave = leave - math.log(width)
            slope = (leave - log_leave) / width
            log_weight += width * (math.log(rate) - 0.5 * (leave + log_leave + slope))
            highest = max(highest, log_weight)
        state[WEIGHT] = log_weight
        filled += 1
        if count >= most or filled == MOST_STATES:
            break
        if count > high and log_weight < highest + math.log(NEGLIGIBLE):
            break
        log_leave, before = leave, count
        if count > high + WIDE * deviation:
            step = math.floor(1.25 * step + 0.5)
        last = filled == MOST_STATES - 1
        count = most if last else min(count + step, most)

    # A state stands for half of those to its neighbours too.
    total = 0.0
    for place in range(filled):
        left = states[place, COUNT] - states[place - 1, COUNT] if place > 0 else 1.0
        right = states[place + 1, COUNT] - states[place, COUNT] if place < filled - 1 else 1.0
        states[place, WEIGHT] = math.exp(states[place, WEIGHT] - highest) * 0.5 * (left + right)
        total += states[place, WEIGHT]
    if states[filled - 1, COUNT] >= most:
        # Those that wait: each state is less likely than the one before by rate / leave.
        ratio = rate * answer_passes * states[filled - 1, TIME] / most
        waiting = math.exp(log_weight - highest) * ratio / (1.0 - ratio)
        states[filled - 1, WEIGHT] += waiting
        total += waiting
    for place in range(filled):
        states[place, WEIGHT] /= total
    return filled, most


@jit_lean
def quantile_of_states(
    states: np.ndarray, values: np.ndarray, weights: np.ndarray, filled: int, level: float
) -> float:
    """Return a quantile of values that grow from state to state.

    States between two that are filled lie on a line between them, and belong to the nearer.
    """
    total = 0.0
    for place in range(filled):
        total += weights[place]
    reached = 0.0
    for place in range(filled):
        held = weights[place] / total
        if reached + held >= level and held > 0.0:
            within = min(max((level - reached) / held, 0.0), 1.0) - 0.5
            other = place + 1 if within > 0.0 else place - 1
            if other < 0 or other == filled:
                return values[place]
            width = abs(states[other, COUNT] - states[place, COUNT])
            part = abs(within) * (width - 1.0) / width
            return values[place] + part * (values[other] - values[place])
        reached += held
    return values[filled - 1]
