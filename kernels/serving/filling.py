"""Variables that follow from others, in the result of a closing kernel."""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.queues import joined
from perfmodel.kernels.serving.tables import ROWS, Deployments, PassTables

LEVELS = (0.5, 0.95, 0.99)
DEVIATIONS = (0.0, 1.6448536269514722, 2.3263478740408408)
"""Quantiles of a standard normal distribution at the levels."""


@jit_lean
def fill_means(
    out: np.ndarray,
    d: int,
    j: int,
    first: float,
    per_token: float,
    gap: float,
    rate: float,
    prompt: float,
    answer: float,
    devices: float,
    half_width: float,
) -> None:
    """Fill means, throughput and bounds.

    Parameters
    ----------
    out : float64[len(ROWS), deployments, loads]
    d, j : int
        Which deployment and load.
    first, per_token, gap : float
        Mean times to the first token, per output token and between passes [s].
    rate : float
        Requests that are finished per second, of all devices.
    prompt, answer : float
        Mean tokens.
    devices : float
    half_width : float
        Half the 10-90 % band of a pass, relative.
    """
    out[ROWS.time_to_first_token_mean, d, j] = first
    out[ROWS.time_per_output_token_mean, d, j] = per_token
    out[ROWS.inter_token_latency_mean, d, j] = gap
    out[ROWS.request_time_mean, d, j] = first + per_token * (answer - 1.0)
    out[ROWS.tokens_per_second_per_device, d, j] = rate * answer / devices
    out[ROWS.total_tokens_per_second_per_device, d, j] = rate * (answer + prompt) / devices
    out[ROWS.tokens_per_second_per_user, d, j] = 1.0 / per_token
    out[ROWS.request_rate, d, j] = rate
    band = 1.0 + half_width
    out[ROWS.time_to_first_token_low, d, j] = first / band
    out[ROWS.time_to_first_token_high, d, j] = first * band
    out[ROWS.time_per_output_token_low, d, j] = per_token / band
    out[ROWS.time_per_output_token_high, d, j] = per_token * band


@jit_lean
def order_percentiles(out: np.ndarray, d: int, j: int) -> None:
    """Let no percentile of a point lie below a lower one: formulas of each are their own."""
    for first in (
        ROWS.time_to_first_token_p50,
        ROWS.time_per_output_token_p50,
        ROWS.inter_token_latency_p50,
        ROWS.request_time_p50,
    ):
        for at in (first + 1, first + 2):
            if out[at, d, j] < out[at - 1, d, j]:
                out[at, d, j] = out[at - 1, d, j]


@jit_lean
def fill_request_quantile(
    out: np.ndarray, d: int, j: int, at: int, answer: float, half_answer: float, least: float
) -> None:
    """Fill a quantile of the time of a request from those of its first and of its other tokens.

    Parameters
    ----------
    at : int
        Which of the `LEVELS`.
    answer : float
        Mean tokens.
    half_answer : float
        Half the range of times that answers of different lengths take [s].
    least : float
        No request takes less [s].
    """
    first = out[ROWS.time_to_first_token_p50 + at, d, j] - out[ROWS.time_to_first_token_mean, d, j]
    slower = (
        out[ROWS.time_per_output_token_p50 + at, d, j] - out[ROWS.time_per_output_token_mean, d, j]
    )
    longer = joined(slower * (answer - 1.0), (2.0 * LEVELS[at] - 1.0) * half_answer)
    found = out[ROWS.request_time_mean, d, j] + joined(first, longer)
    out[ROWS.request_time_p50 + at, d, j] = max(found, least)


@jit_lean
def fill_parts(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    prompt: tuple[float, float, float],
    decoding: float,
    share: float,
    fused: bool,
    out: np.ndarray,
    j: int,
) -> None:
    """Fill what a mean pass consists of: with prompts in a share of the passes that decode.

    Parameters
    ----------
    prompt : (float, float, float)
        Tokens of a prompt that run, those that the cache holds, and tokens that a decoding
        sequence keeps.
    decoding, share : float
    fused : bool
        Prompts run in the same passes, not in others.
    """
    row = deployments.layout[d]
    verified = deployments.draft_length[d] + 1.0
    alone = pass_times(tables, row, 0.0, 0.0, 0.0, decoding, prompt[2], verified, 0.0)
    for part in range(6):
        out[ROWS.attention_time + part, d, j] = alone[1 + part]
    if share <= 0.0:
        return
    beside = decoding if fused else 0.0
    room = max(deployments.token_budget[d] - beside * verified, 1.0)
    chunks = float(math.ceil(prompt[0] / room))
    chunk = prompt[0] / chunks
    earlier = prompt[1] + 0.5 * (prompt[0] - chunk)
    other = pass_times(tables, row, 1.0, chunk, earlier, beside, prompt[2], verified, 1.0 / chunks)
    among = share if fused else share / (1.0 + share)
    for part in range(6):
        out[ROWS.attention_time + part, d, j] += among * (other[1 + part] - alone[1 + part])
