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
from perfmodel.kernels.serving.bunching import mean_density, mean_turn, most_on_one
from perfmodel.kernels.serving.lengths import mean_length, mean_square
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.quantiles import count_quantile, three_quantiles
from perfmodel.kernels.serving.speculation import tokens_per_pass
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
    fused = deployments.scheduler[d] == FUSED
    # Requests divide evenly among the batches under way; ranks in step have one together.
    batches = deployments.ranks[d] * deployments.stages[d]
    working = min(loads.concurrency[j], batches)
    clients = loads.concurrency[j] / working
    slots = min(max(limit / deployments.stages[d], 1.0), clients)
    together = min(deployments.lockstep_ranks[d], max(working / deployments.stages[d], 1.0))
    rounds = max(loads.rounds[j], 1.0)
    first_share = 1.0 / rounds

    drafted = deployments.draft_length[d]
    gained, verified = tokens_per_pass(drafted, deployments.acceptance[d]), 1.0 + drafted
    spread = loads.length_spread[j]
    answer = mean_length(loads.output_length[j], spread)
    square = mean_square(loads.output_length[j], spread)
    prompt = mean_length(loads.input_length[j], spread)
    prefix = min(loads.prefix[j], prompt - 1.0)
    new = prompt - prefix
    # Passes are whole: the last of an answer gives half a pass too much on average.
    passes = max((answer - 1.0) / gained + 0.5 * (1.0 - 1.0 / gained), LEAST_PASSES)
    context = prompt + 0.5 * square / answer
    budget = deployments.token_budget[d]

    # How many decode: a cycle of a client is its answer, the passes of its prompt, and one
    # that it misses; more where prompts of all need more passes than answers have.
    cycle, room = passes, budget
    if fused:
        replaced = min(max(clients - slots, 0.0), 1.0)
        cycle += math.ceil(new / budget) + (1.0 - replaced) * min(1.0, slots - 1.0)
        cycle = max(cycle, slots * (new + passes * verified) / budget)
        room = max(budget - slots * passes / cycle * verified, 1.0)
    decoding = slots * passes / cycle
    chunks = math.ceil(new / room)
    chunk = new / chunks
    earlier = prefix + 0.5 * (new - chunk)
    per_pass = max(room / chunk, 1.0)  # chunks that a pass has room for

    # The first requests come at once, and are through after so many passes.
    burst = max(slots * chunks / per_pass, chunks)
    step = (square - answer * answer) / (gained * gained)
    first_spread = max(burst * burst - 1.0, 0.0) / 12.0 if fused else 0.0
    dense = mean_density(rounds, first_spread, step, cycle)
    even = slots / cycle  # prompts per pass, on average
    local = slots * dense  # when a request comes
    if fused:
        local = max(min(local, per_pass / chunks), even)

    # With how many others a prompt comes, on the rank with most, and how many passes they take.
    others = max(slots * together - 1.0, 0.0) * local / slots
    with_me = most_on_one(1.0 + others, together)
    if fused:
        with_me = max(min(with_me, per_pass / chunks), 1.0)
    turns = max(with_me * chunks / per_pass, float(chunks))
    mixed = -math.expm1(-local * together)  # share of passes with prompts: some came
    crowd = most_on_one(max(local * together / mixed, 1.0), together)
    length = chunks * max(crowd / per_pass, 1.0)  # passes of those
    if fused:
        full = min(local * chunks / per_pass, 1.0)
        if length > 1.0:
            mixed = min(full + (mixed * length - full) * (1.0 - full), 1.0)
        crowd = (
            max(min(local * chunks / mixed, per_pass), 1.0)
            if chunks > 1.0
            else min(crowd, per_pass)
        )
        length = 1.0

    alone = pass_times(tables, row, 0.0, 0.0, 0.0, decoding, context, verified, 0.0)
    beside = decoding if fused else 0.0
    held = min(crowd * chunks, per_pass) if chunks <= 1.0 else crowd
    if not fused:
        held = min(crowd, per_pass)
    held_pair = held
    pair = pass_times(tables, row, held, chunk, earlier, beside, context, verified, held / chunks)
    beside *= max(slots - 1.0, 0.0) / slots
    held = min(with_me, per_pass)
    mine = pass_times(tables, row, held, chunk, earlier, beside, context, verified, held / chunks)
    beside = 0.5 * slots * (1.0 - 1.0 / burst) * fused
    held_full = min(slots, per_pass)
    full_pass = pass_times(
        tables, row, held_full, chunk, earlier, beside, context, verified, held_full / chunks
    )[0]

    # Passes with prompts of others lengthen an answer; of each client one prompt per round,
    # but for those that were through by the first token.
    lengthened = mixed * length * (pair[0] - (alone[0] if fused else 0.0))
    per_prompt = lengthened / (local * together)
    ahead = deployments.request_host[d] + deployments.token_host[d] * prompt
    behind = deployments.output_host[d]
    lone = step <= 0.0
    # Whoever comes finds the others as if they were alone (arrival theorem): so often prompts
    # of theirs are in the pass that goes ahead.
    everyone = slots * together
    crowded = mixed * max(everyone - 1.0, 0.0) / everyone
    if fused and lone:
        crowded = min(1.0 - 1.0 / burst, mixed)
    next_pass = (1.0 - crowded) * alone[0] + crowded * pair[0]
    host_passes = (ahead + behind) / next_pass
    away = min(dense * max(host_passes, 1.0) if dense > 0.5 else host_passes / cycle, 1.0)
    company = 1.0
    if slots * together < 4.0 or away > 0.3:
        company = 1.0 - away ** max(clients * together - 1.0, 0.0)
    replaced = min(max(clients - slots, 0.0), 1.0)
    waits = company * (1.0 - replaced)
    own_turn = mean_turn(turns) if turns > chunks else turns
    window = 1.0 + others
    if fused:
        window = min(window, together * max(per_pass / chunks, 1.0))
        window += local * together * waits * crowded / mixed
        window = max(window, everyone - even * together * passes)
    else:
        window *= own_turn / turns
    start = mean_turn(burst) if chunks <= 1.0 else 0.5 * (burst + chunks)
    seen = everyone - (1.0 - first_share) * window - first_share * everyone * start / burst
    going = alone[0] + per_prompt * max(seen, 0.0) / passes
    per_token = going * passes / max(answer - 1.0, 1.0)

    # Until the first token.
    residual = (
        0.5 * ((1.0 - crowded) * alone[0] * alone[0] + crowded * pair[0] * pair[0]) / next_pass
    )
    late = min(max((ahead + behind) / alone[0] - 1.0, 0.0), 1.0)
    missed = late * residual + (1.0 - late) * max(next_pass - ahead - behind, residual)
    missed *= waits
    own = mine[0] * own_turn
    queued = max(cycle - passes - chunks - 1.0, 0.0) * mine[0] if fused else 0.0
    later = ahead + missed + queued + own + behind
    first = ahead + full_pass * start + behind

    # Requests beyond what runs at once wait for a place.
    excess = clients / slots
    life = going * passes + own + missed + queued + (ahead + behind) * (1.0 - replaced)
    whole = math.floor(excess)
    first_wait = life * (0.5 * whole * (whole - 1.0) + whole * (excess - whole)) / excess
    wait = (excess - 1.0) * life - replaced * (ahead + behind)
    mean_wait = first_share * first_wait + (1.0 - first_share) * wait
    to_first = first_share * first + (1.0 - first_share) * later + mean_wait
    request = to_first + per_token * (answer - 1.0)
    rate = loads.concurrency[j] / request

    # Times to the first token: of first requests; of later ones that miss a pass with prompts
    # or one without, or that wait for a place one life more or less where all come together.
    more = max(held_full - held_pair, 0.0)
    slope = (full_pass - pair[0]) / more if more > 0.5 else (pair[0] - alone[0] * fused) / held_pair
    half = 0.5 * (turns - chunks) * mine[0]
    sway = 0.0 if lone else others / together * (1.0 - dense) * slope * slope
    sway = math.sqrt(half * half + 3.0 * sway)
    apart = waits * (pair[0] - alone[0]) * (1.0 - late)
    share = crowded
    near = later + wait - crowded * apart
    far = near + apart
    if excess > 1.0:
        tight = min(max(0.5 * (local / even - 1.0), 0.0), 1.0)
        share = excess - whole
        near = later + wait - tight * share * life
        far = near + tight * life
    least = ahead + behind
    first_low = ahead + full_pass + behind
    first_high = max(ahead + full_pass * burst + behind, first_low) + 2.0 * first_wait
    low, high = max(near - sway, least), near + sway
    further, furthest = max(far - sway, least), far + sway
    p50, p95, p99 = three_quantiles(
        (first_share, (1.0 - first_share) * (1.0 - share), (1.0 - first_share) * share),
        (first_low, low, further),
        (first_high, high, furthest),
    )
    out[ROWS.time_to_first_token_mean, d, j] = to_first
    out[ROWS.time_to_first_token_p50, d, j] = p50
    out[ROWS.time_to_first_token_p95, d, j] = p95
    out[ROWS.time_to_first_token_p99, d, j] = p99
    # Others make one prompt per cycle as I do: how many I see varies with lengths alone, by
    # w/2 of their number, w = (1 - r)/(1 + r): the part of a cycle over or short.
    varied = 0.5 * (1.0 - spread) / (1.0 + spread) * max(seen, 0.0)
    deviation = per_prompt * math.sqrt(varied) / (passes * gained)
    out[ROWS.time_per_output_token_mean, d, j] = per_token
    out[ROWS.time_per_output_token_p50, d, j] = per_token
    out[ROWS.time_per_output_token_p95, d, j] = per_token + 1.645 * deviation
    out[ROWS.time_per_output_token_p99, d, j] = per_token + 2.326 * deviation

    gaps = min(
        mixed * max(seen, 0.0) / (local * together * passes), 1.0
    )  # share with prompts in them
    doubled = 1.0
    if not fused and not lone:
        # Who finishes while prompts wait for the pass under way joins them: one longer gap.
        doubled += mixed
        gaps /= doubled
    out[ROWS.inter_token_latency_mean, d, j] = going
    for at in range(3):
        share = 0.5 if at == 0 else (0.05 if at == 1 else 0.01)
        gap = alone[0]
        if share < gaps:
            come = crowd * chunks
            if not lone:
                come = most_on_one(count_quantile(1.0 - share / gaps, local * together), together)
            held = min(come, per_pass)
            gap = pair[0] + slope * (held - held_pair)
            if not fused:
                gap = alone[0] + gap * doubled * max(come * chunks / per_pass, float(chunks))
        out[ROWS.inter_token_latency_p50 + at, d, j] = gap
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
    out[ROWS.batch, d, j] = rate * (request - to_first) / deployments.ranks[d]
    out[ROWS.queue_time, d, j] = (
        mean_wait
        + first_share * max(first - full_pass, 0.0)
        + (1.0 - first_share) * (missed + queued)
    )
    out[ROWS.utilization, d, j] = (1.0 - min((ahead + behind) / request, 1.0) ** clients) * min(
        loads.concurrency[j] * deployments.lockstep_ranks[d] / batches, 1.0
    )
    # Of all passes, so many are with prompts.
    among = even / local * mixed
    if not fused:
        among /= 1.0 + among
    for part in range(6):
        mean = alone[1 + part] + among * (pair[1 + part] - alone[1 + part])
        out[ROWS.attention_time + part, d, j] = mean
    band = 1.0 + tables.half_width[row]
    out[ROWS.time_to_first_token_low, d, j] = to_first * (2.0 - band)
    out[ROWS.time_to_first_token_high, d, j] = to_first * band
    out[ROWS.time_per_output_token_low, d, j] = per_token * (2.0 - band)
    out[ROWS.time_per_output_token_high, d, j] = per_token * band
    out[ROWS.status, d, j] = (
        NO_STAGE_WORK if loads.concurrency[j] < deployments.ranks[d] else STABLE
    )
