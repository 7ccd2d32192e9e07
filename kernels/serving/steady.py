"""Operating points in closed form, every load on every deployment, and single phases of a batch.

A phase is a batch that stays as it is: all its prompts, or one token of every sequence.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.serving.admission import blocks_needed, is_closed_loop
from perfmodel.kernels.serving.closed import close_clients
from perfmodel.kernels.serving.disaggregated import close_disaggregated
from perfmodel.kernels.serving.filling import order_percentiles
from perfmodel.kernels.serving.open import close_open
from perfmodel.kernels.serving.passes import pass_times, tokens_per_pass
from perfmodel.kernels.serving.tables import NO_ROOM, ROWS, STABLE, Deployments, Loads, PassTables


@jit
def close_points(
    tables: PassTables, deployments: Deployments, loads: Loads, out: np.ndarray
) -> None:
    """Fill the variables of all operating points.

    Parameters
    ----------
    tables : PassTables
    deployments : Deployments
    loads : Loads
    out : ndarray of float64, shape (len(ROWS), deployments, loads)
        Rows as in `perfmodel.kernels.serving.tables.ROWS`.
    """
    for d in range(deployments.layout.size):
        if deployments.prefill_layout[d] < 0:
            close_clients(tables, deployments, d, loads, out)
        for j in range(loads.concurrency.size):
            if deployments.prefill_layout[d] >= 0:
                close_disaggregated(tables, deployments, d, loads, j, out)
            elif not is_closed_loop(loads, j):
                close_open(tables, deployments, d, loads, j, out)
            order_percentiles(out, d, j)


@jit
def prompt_passes(
    tables: PassTables,
    row: int,
    prompts: float,
    new: float,
    before: float,
    budget: float,
    parts: np.ndarray,
) -> float:
    """Run prompts that are all alike, as many in a pass as its tokens allow.

    Parameters
    ----------
    tables : PassTables
    row : int
        Layout.
    prompts : float
    new, before : float
        Tokens of each that are run, and that the cache holds.
    budget : float
        Tokens of a pass at most.
    parts : ndarray of float64, shape (7,)
        Takes the sums over all passes of what `pass_times` returns [s].

    Returns
    -------
    float
        Passes.
    """
    parts[:] = 0.0
    whole = max(math.floor(budget / new), 1.0)  # prompts of a pass
    count = math.ceil(prompts / whole)
    together = min(whole, prompts)
    chunks = math.ceil(new / budget)
    for i in range(chunks):
        chunk = min(budget, new - i * budget)
        done = 1.0 if i == chunks - 1 else 0.0
        last = prompts - (count - 1.0) * together
        for held, times in ((together, count - 1.0), (last, 1.0)):
            if times > 0.0:
                found = pass_times(
                    tables, row, held, chunk, before + i * budget, 0.0, 0.0, 1.0, held * done
                )
                for k in range(parts.size):
                    parts[k] += times * found[k]
    return count * chunks


@jit
def close_phase(
    tables: PassTables,
    deployments: Deployments,
    loads: Loads,
    decoding: bool,
    out: np.ndarray,
) -> None:
    """Fill the variables of static batches; what a phase says nothing of is NaN.

    Parameters
    ----------
    tables : PassTables
    deployments : Deployments
    loads : Loads
        Requests under way are the batch of a deployment, divided evenly over its ranks.
    decoding : bool
        One token of every sequence, half of its answer behind it; else all prompts. The time of
        a request is that of its phase.
    out : ndarray of float64, shape (len(ROWS), deployments, loads)
        Rows as in `perfmodel.kernels.serving.tables.ROWS`.

    Notes
    -----
    p pipeline stages take p passes at once: n passes that fill T seconds on all stages are
    through after T (1 + (p - 1) / n) / p.
    """
    out[:] = math.nan
    parts = np.zeros(7)
    for d in range(deployments.layout.size):
        row, stages = deployments.layout[d], deployments.stages[d]
        drafted = deployments.draft_length[d]
        gained = tokens_per_pass(drafted, deployments.acceptance[d])
        for j in range(loads.concurrency.size):
            batch = math.ceil(loads.concurrency[j] / deployments.ranks[d])
            prompt, answer = loads.input_length[j], loads.output_length[j]
            kept = prompt + (answer + drafted if decoding else 0.0)
            needed = blocks_needed(
                kept,
                deployments.block_tokens[d],
                deployments.state_blocks[d],
                deployments.window_tokens[d],
            )
            if batch * needed > deployments.blocks[d]:
                out[ROWS.status, d, j] = NO_ROOM
                continue
            if decoding:
                held = math.ceil(batch / stages)
                context = prompt + 0.5 * answer
                found = pass_times(tables, row, 0.0, 0.0, 0.0, held, context, 1.0 + drafted, 0.0)
                for k in range(parts.size):
                    parts[k] = found[k]
                whole, passes = parts[0], 1.0
                each = whole / gained
                first, last = ROWS.time_per_output_token_mean, ROWS.time_per_output_token_p99
                out[first : last + 1, d, j] = each
                first, last = ROWS.inter_token_latency_mean, ROWS.inter_token_latency_p99
                out[first : last + 1, d, j] = whole
                low, high = ROWS.time_per_output_token_low, ROWS.time_per_output_token_high
                rate = loads.concurrency[j] / each
                out[ROWS.tokens_per_second_per_user, d, j] = 1.0 / each
                out[ROWS.tokens_per_second_per_device, d, j] = rate / deployments.devices[d]
                out[ROWS.request_rate, d, j] = rate / answer
            else:
                new = max(prompt - loads.prefix[j], 1.0)
                budget = deployments.token_budget[d]
                passes = prompt_passes(tables, row, batch, new, prompt - new, budget, parts)
                whole = parts[0] * (1.0 + (stages - 1.0) / passes) / stages
                each = whole
                first, last = ROWS.time_to_first_token_mean, ROWS.time_to_first_token_p99
                out[first : last + 1, d, j] = each
                low, high = ROWS.time_to_first_token_low, ROWS.time_to_first_token_high
                rate = loads.concurrency[j] * prompt / whole
                out[ROWS.total_tokens_per_second_per_device, d, j] = rate / deployments.devices[d]
                out[ROWS.request_rate, d, j] = loads.concurrency[j] / whole
            first, last = ROWS.request_time_mean, ROWS.request_time_p99
            out[first : last + 1, d, j] = each * (answer if decoding else 1.0)
            width = 1.0 + tables.half_width[row]
            out[low, d, j], out[high, d, j] = each / width, each * width
            out[ROWS.batch, d, j] = batch
            out[ROWS.utilization, d, j] = 1.0
            out[ROWS.attention_time, d, j] = parts[1] / passes
            out[ROWS.matrices_time, d, j] = parts[2] / passes
            out[ROWS.experts_time, d, j] = parts[3] / passes
            out[ROWS.communication_time, d, j] = parts[4] / passes
            out[ROWS.other_time, d, j] = parts[5] / passes
            out[ROWS.host_time, d, j] = parts[6] / passes
            out[ROWS.status, d, j] = STABLE
