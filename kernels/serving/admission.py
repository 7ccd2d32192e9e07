"""How many requests a rank runs at once: blocks of the cache, and what an engine sets aside."""

from __future__ import annotations

import math

from perfmodel.kernels._jit import jit_inline, jit_lean
from perfmodel.kernels.serving.lengths import length_variation, mean_length, mean_square
from perfmodel.kernels.serving.tables import FUSED, PREEMPT, RESERVE, Deployments, Loads

SET_ASIDE = 0.098
"""Share of its remaining tokens that SGLang sets aside for a running request: 0.7 at first,
0.7 · 0.14 after 600 passes without a retraction (new_token_ratio, managers/schedule_policy.py)."""
MOST_SET_ASIDE = 4096.0
"""Tokens of an answer that it counts at most (CLIP_MAX_NEW_TOKENS of the same)."""


@jit_inline
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
