"""Closed loops: clients that each have one request under way, in steady passes.

Counts are per attention rank and per batch under way (with p stages there are p of them). In
formulas: b sequences that decode, D passes of an answer, q tokens of a prompt that are not in
the cache, K tokens of prompts that fit in a pass, a prompts that come per pass.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.serving.admission import running_limit
from perfmodel.kernels.serving.bunching import mean_density
from perfmodel.kernels.serving.lengths import mean_length, mean_square
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.quantiles import mixed_quantile
from perfmodel.kernels.serving.speculation import pass_variation, tokens_per_pass
from perfmodel.kernels.serving.tables import (
    FUSED,
    NO_ROOM,
    NO_STAGE_WORK,
    ROWS,
    STABLE,
    Deployments,
    Loads,
    PassTables,
)

LEAST_PASSES = 1e-6
"""Passes of an answer of one token, which comes out of the prompt's own."""


@jit
def close_closed(
    tables: PassTables, deployments: Deployments, d: int, loads: Loads, j: int, out: np.ndarray
) -> None:
    """Fill the variables of a closed loop.

    Parameters
    ----------
    tables : PassTables
    deployments, loads : Deployments, Loads
    d, j : int
        Which of them.
    out : ndarray of float64, shape (len(ROWS), deployments, loads)
    """
    limit = running_limit(deployments, d, loads, j)
    if limit <= 0.0:
        out[:, d, j] = math.nan
        out[ROWS.status, d, j] = NO_ROOM
        return
    row = deployments.layout[d]
    stages = deployments.stages[d]
    working = min(loads.concurrency[j], deployments.ranks[d])
    clients = loads.concurrency[j] / working  # per rank
    admitted = min(limit, clients)
    slots = admitted / stages  # per batch
    together = min(deployments.lockstep_ranks[d], working)
    rounds = max(loads.rounds[j], 1.0)

    drafted, acceptance = deployments.draft_length[d], deployments.acceptance[d]
    gained, verified = tokens_per_pass(drafted, acceptance), 1.0 + drafted
    spread = loads.length_spread[j]
    answer = mean_length(loads.output_length[j], spread)
    longer = mean_square(loads.output_length[j], spread)
    prompt = mean_length(loads.input_length[j], spread)
    prefix = min(loads.prefix[j], prompt - 1.0)
    new = prompt - prefix
    answer_passes = max((answer - 1.0) / gained, LEAST_PASSES)
    context = prompt + 0.5 * longer / answer
    fused = deployments.scheduler[d] == FUSED
    budget = deployments.token_budget[d]

    # Sequences that decode: a cycle of a client is its answer, one pass missed and its own.
    own = math.ceil(new / budget)
    decoding = slots * answer_passes / (answer_passes + (1.0 + own if fused else 0.0))
    room = budget
    if fused:
        decoding = min(decoding, answer_passes * budget / (new + answer_passes * verified))
        room = max(budget - decoding * verified, 1.0)
        own = math.ceil(new / room)
    cycle = slots * answer_passes / max(decoding, LEAST_PASSES)
    arriving = decoding / answer_passes  # prompts per pass

    # The first requests come at once, and are through after so many passes.
    burst = max(slots * new / (budget - 0.5 * slots * verified * fused), 1.0)
    step = (longer - answer * answer) / (gained * gained)
    step += answer * pass_variation(drafted, acceptance) / gained**3
    dense = mean_density(rounds, burst * burst / 12.0, step, cycle)
    local = max(min(slots * dense, max(room / new, 1.0)), arriving)
    group = local * together
    mixed = -math.expm1(-group)  # share of passes with prompts: some prompt came
    if own > 1.0:
        load = group * new / room
        mixed = min(load + (group * own - load) * max(1.0 - load, 0.0), 1.0)
    at_once = local / -math.expm1(-local)
    if together > 1.0:
        most = at_once + math.sqrt(2.0 * local * math.log(together))
        at_once = min(group / -math.expm1(-group), most)

    alone = pass_times(tables, row, 0.0, 0.0, 0.0, decoding, context, verified, 0.0)
    beside = decoding if fused else 0.0
    chunk = min(new, room)
    earlier = prefix + 0.5 * (new - chunk)
    prompts = max(min(at_once, room / chunk), 1.0)
    done = chunk / new
    pair = pass_times(
        tables, row, prompts, chunk, earlier, beside, context, verified, prompts * done
    )
    beside *= max(slots - 1.0, 0.0) / slots  # I don't decode yet
    others = min(1.0 + local, max(room / chunk, 1.0))
    others = min(others, slots) if slots > 1.0 else 1.0
    mine = pass_times(tables, row, others, chunk, earlier, beside, context, verified, others * done)
    beside = 0.5 * slots * (1.0 - 1.0 / burst) * fused
    filled = max(min(slots, budget / chunk), 1.0)
    full = pass_times(tables, row, filled, chunk, earlier, beside, context, verified, filled * done)

    # Time of a pass in which an answer goes on, with its share of prompts of others.
    lengthened = mixed * (pair[0] - (alone[0] if fused else 0.0))
    per_prompt = lengthened / group * together
    seen = (rounds - 0.5) / rounds if rounds < math.inf else 1.0
    going = alone[0] + arriving * per_prompt * seen
    per_token = going / gained

    # Until the first token.
    ahead = deployments.request_host[d] + deployments.token_host[d] * prompt
    behind = deployments.output_host[d]
    next_pass = alone[0] + lengthened if fused else (1.0 - mixed) * alone[0] + mixed * pair[0]
    square = (1.0 - mixed) * alone[0] * alone[0] + mixed * pair[0] * pair[0]
    residual = 0.5 * square / next_pass
    just_missed = max(next_pass - ahead - behind, 0.0)
    late = min(max((ahead + behind) / alone[0] - 1.0, 0.0), 1.0)
    missed = late * residual + (1.0 - late) * max(just_missed, residual)
    idle_chance = min((ahead + behind) / (going * answer_passes + mine[0]), 1.0)
    if clients * together < 4.0:
        missed *= 1.0 - idle_chance ** (clients * together - 1.0)
    width = math.sqrt(12.0) * math.sqrt(burst * burst / 12.0 + step)
    backlog = max(slots * new / room - width, 0.0) * 0.5
    steady_wait = max(cycle - answer_passes - 1.0 - own, 0.0) if fused else 0.0
    queued = max(backlog / max(rounds - 1.0, 1.0), steady_wait) * mine[0]
    chunks_time = mine[0] * (1.0 + (own - 1.0) / stages)
    later = ahead + missed + queued + chunks_time + behind
    first = ahead + full[0] * 0.5 * (burst + 1.0) + behind
    first_end = ahead + full[0] * burst + behind
    first_share = 1.0 / rounds

    # Requests beyond what runs at once wait for a place.
    excess = clients / admitted
    life = going * answer_passes + later
    whole = math.floor(excess)
    first_wait = life * (0.5 * whole * (whole - 1.0) + whole * (excess - whole)) / excess
    wait = (excess - 1.0) * life
    mean_wait = first_share * first_wait + (1.0 - first_share) * wait
    running = first_share * first + (1.0 - first_share) * later
    to_first = running + mean_wait
    request = to_first + per_token * (answer - 1.0)
    rate = loads.concurrency[j] / request

    variance = next_pass * next_pass / 12.0 + local * (per_prompt * per_prompt)
    sway = math.sqrt(3.0 * variance)
    low, high = max(later - sway, ahead + behind), later + sway
    first_low = ahead + full[0] + behind
    first_high = max(first_end, first_low) + 2.0 * first_wait
    out[ROWS.time_to_first_token_mean, d, j] = to_first
    out[ROWS.time_to_first_token_p50, d, j] = mixed_quantile(
        0.5, first_share, first_low, first_high, low + wait, high + wait
    )
    out[ROWS.time_to_first_token_p95, d, j] = mixed_quantile(
        0.95, first_share, first_low, first_high, low + wait, high + wait
    )
    out[ROWS.time_to_first_token_p99, d, j] = mixed_quantile(
        0.99, first_share, first_low, first_high, low + wait, high + wait
    )
    deviation = per_prompt * math.sqrt(arriving / answer_passes) / gained
    out[ROWS.time_per_output_token_mean, d, j] = per_token
    out[ROWS.time_per_output_token_p50, d, j] = per_token
    out[ROWS.time_per_output_token_p95, d, j] = per_token + 1.645 * deviation
    out[ROWS.time_per_output_token_p99, d, j] = per_token + 2.326 * deviation

    gap = pair[0] if fused else alone[0] + pair[0]
    share = min(arriving * together * seen, mixed)
    out[ROWS.inter_token_latency_mean, d, j] = going
    out[ROWS.inter_token_latency_p50, d, j] = gap if share > 0.5 else alone[0]
    out[ROWS.inter_token_latency_p95, d, j] = gap if share > 0.05 else alone[0]
    out[ROWS.inter_token_latency_p99, d, j] = gap if share > 0.01 else alone[0]

    half = 0.5 * (1.0 - spread) * loads.output_length[j] * per_token
    out[ROWS.request_time_mean, d, j] = request
    for at in range(3):
        share = 0.5 if at == 0 else (0.95 if at == 1 else 0.99)
        aside = out[ROWS.time_to_first_token_p50 + at, d, j] - to_first
        length = (2.0 * share - 1.0) * half
        both = math.copysign(math.sqrt(aside * aside + length * length), aside + length)
        out[ROWS.request_time_p50 + at, d, j] = request + both
    devices = deployments.devices[d]
    out[ROWS.tokens_per_second_per_device, d, j] = rate * answer / devices
    out[ROWS.total_tokens_per_second_per_device, d, j] = rate * (answer + prompt) / devices
    out[ROWS.tokens_per_second_per_user, d, j] = 1.0 / per_token
    out[ROWS.request_rate, d, j] = rate
    out[ROWS.batch, d, j] = rate / working * (request - to_first)
    out[ROWS.queue_time, d, j] = (
        mean_wait
        + first_share * max(first - full[0], 0.0)
        + (1.0 - first_share) * (missed + queued)
    )
    out[ROWS.utilization, d, j] = 1.0 - idle_chance**clients
    # Of all passes, so many are with prompts.
    among = arriving / local * mixed
    if not fused:
        among /= 1.0 + among
    for part in range(6):
        mean = alone[1 + part] + among * (pair[1 + part] - alone[1 + part])
        out[ROWS.attention_time + part, d, j] = mean
    band = 1.0 + tables.half_width[row]
    out[ROWS.time_to_first_token_low, d, j] = to_first / band
    out[ROWS.time_to_first_token_high, d, j] = to_first * band
    out[ROWS.time_per_output_token_low, d, j] = per_token / band
    out[ROWS.time_per_output_token_high, d, j] = per_token * band
    out[ROWS.status, d, j] = (
        NO_STAGE_WORK if loads.concurrency[j] < deployments.ranks[d] else STABLE
    )
