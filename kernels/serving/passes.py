"""The time of one pass, from tables."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.serving.tables import (
    ATTENTION,
    COMMUNICATION,
    EXPERTS,
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
    i, j = position(x_knots, x), position(y_knots, y)
    u, v = share(x_knots, i, x), share(y_knots, j, y)
    low = table[row, i, j] + v * (table[row, i, j + 1] - table[row, i, j])
    high = table[row, i + 1, j] + v * (table[row, i + 1, j + 1] - table[row, i + 1, j])
    return max(low + u * (high - low), 0.0)


@jit_lean
def line(knots: np.ndarray, table: np.ndarray, row: int, x: float) -> float:
    """Return the value of a table of one axis, 0 where `x` is 0."""
    if x <= 0.0:
        return 0.0
    i = position(knots, x)
    return max(table[row, i] + share(knots, i, x) * (table[row, i + 1] - table[row, i]), 0.0)


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
        Tokens that each of them runs: 1, with drafts one more than those.
    finished : float
        Prompts whose last chunk it is: they give a token too.

    Returns
    -------
    time, attention, matrices, experts, communication, other, host : float
        [s]; `host` is what the device waits for, and `time` the sum of the others.
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
    at = position(tables.tokens, tokens)
    part = share(tables.tokens, at, tokens)
    low, high = tables.body[row, at], tables.body[row, at + 1]
    matrices = max(low[MATRICES] + part * (high[MATRICES] - low[MATRICES]), 0.0)
    experts = max(low[EXPERTS] + part * (high[EXPERTS] - low[EXPERTS]), 0.0)
    sent = max(low[COMMUNICATION] + part * (high[COMMUNICATION] - low[COMMUNICATION]), 0.0)
    other = max(low[OTHER] + part * (high[OTHER] - low[OTHER]), 0.0)
    attention = max(low[ATTENTION] + part * (high[ATTENTION] - low[ATTENTION]), 0.0)
    attention += prompts * mixers(tables.chunks, tables.before, tables.prefill, row, chunk, before)
    attention += mixers(tables.batches, tables.contexts, tables.decode, row, decoding, context)
    other += line(tables.sequences, tables.head, row, decoded + finished)
    matrices += line(tables.batches, tables.draft, row, decoding)
    device = attention + matrices + experts + sent + other
    # Kernels are launched while others run; the device waits where launching takes longer.
    host = max(launch - device, 0.0)
    around = tables.pass_host[row] + tables.sequence_host[row] * (decoding + finished)
    hidden = tables.host_hidden[row]
    # What runs beside the pass before costs only what is longer than that.
    host += (1.0 - hidden) * around + max(hidden * around - device - host, 0.0)
    return device + host, attention, matrices, experts, sent, other, host
