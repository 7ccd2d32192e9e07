"""Closed loops: clients that each have one request under way, in steady passes.

Five passes are priced per operating point: one that decodes alone, one with the prompts that
come together on average, one with my own prompt, the same were it the longest, and one filled with
prompts as all come at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_inline, jit_lean, jit_lean_inline
from perfmodel.kernels.serving.admission import is_closed_loop, running_limit
from perfmodel.kernels.serving.cycle import Crowd, Cycle, crowd_of, cycle_of, most_on_one
from perfmodel.kernels.serving.passes import (
    line,
    mixers_beside,
    pass_beside,
    pass_times,
    place,
    tokens_per_pass,
)
from perfmodel.kernels.serving.queues import count_quantile, three_quantiles
from perfmodel.kernels.serving.tables import (
    NO_ROOM,
    NO_STAGE_WORK,
    ROWS,
    STABLE,
    Deployments,
    Loads,
    PassTables,
)

FIRST_TOKEN_WIDTH = 1.0
"""What comes on top of a pass's band for first tokens, relative: how clients come, and flags of
servers that nobody states. With it 80 % of 1,620 measured ones lie within the bounds."""

P95, P99 = 1.645, 2.326
"""Quantiles of the normal distribution."""
ALONE_MATTERS = 8.0
"""Clients from which on the chance that none of the others runs is not worth a power."""

NO_QUEUE = 0.1
"""Load of passes below which prompts do not queue."""


class Passes(NamedTuple):
    """Times of the passes of a cycle [s].

    Attributes
    ----------
    alone, mixed
        That decodes alone, and with prompts that come together; and its parts.
    mine, longest, full
        With my prompt and those that come with it; were mine the longest; of the first requests
        of all.
    each
        What one chunk more adds to a pass.
    again
        What computing requests again that were put back takes, of each.
    """

    alone: tuple[float, float, float, float, float, float, float]
    mixed: tuple[float, float, float, float, float, float, float]
    mine: float
    longest: float
    full: float
    each: float
    again: float


class Answers(NamedTuple):
    """How answers go on.

    Attributes
    ----------
    seen
        Prompts of others on all ranks in step that run during an answer.
    going
        Mean time from one token or group of speculative tokens to the next [s].
    per_prompt
        By how much a prompt delays answers that go on [s].
    waits
        Chance that a request that comes has to wait for a pass under way.
    host
        Seconds of a request away from the ranks.
    """

    seen: float
    going: float
    per_prompt: float
    waits: float
    host: float


class FirstTokens(NamedTuple):
    """Times to the first token, and of requests [s].

    Attributes
    ----------
    first, later
        Of the first requests of all clients and of the others, from when they have a place.
    missed, queued, apart
        Of the others: for the pass under way and for prompts ahead; and how much longer the
        former is if it has prompts.
    excess, life
        Clients per place, and how long a request has it.
    put_back, slower
        How long it waits for one behind its first token, and how much longer its answer takes as
        all passes are filled.
    first_wait, wait, mean_wait
        For a place: of the first, of the others, of all.
    mean, request
        Of all, and their whole time.
    """

    first: float
    later: float
    missed: float
    queued: float
    apart: float
    excess: float
    life: float
    put_back: float
    slower: float
    first_wait: float
    wait: float
    mean_wait: float
    mean: float
    request: float


@jit_inline
def longest_of(cycle: Cycle, prompts: float, held: float) -> float:
    """Return the prompts of the rank with the longest, relative to the mean.

    Of n values evenly spread the largest lies (n - 1)/(n + 1) of half their width above the
    mean; sums of several are spread less.

    Parameters
    ----------
    cycle : Cycle
    prompts, held : float
        That come together on all ranks in step, and that the fullest rank has in a pass.
    """
    ranks = min(prompts, cycle.together)
    if ranks <= 1.0 or cycle.chunks > 1.0:
        return 1.0
    return 1.0 + cycle.varied * (ranks - 1.0) / (ranks + 1.0) / math.sqrt(held)


@jit_lean_inline
def passes_of(tables: PassTables, row: int, cycle: Cycle, crowd: Crowd) -> Passes:
    """Return the times of the five passes."""
    beside = cycle.decoding * cycle.fused
    others = beside * max(cycle.slots - 1.0, 0.0) / cycle.slots  # I don't decode yet
    half = 0.5 * cycle.slots * (1.0 - 1.0 / crowd.burst) * cycle.fused
    mine_held = min(crowd.with_me, cycle.room)
    full_held = max(min(cycle.slots, cycle.room), 1.0)
    mixed = alone = cycle.alone
    mine = longest = full = 0.0
    before, v = place(tables.before, cycle.earlier)
    context, w = place(tables.contexts, cycle.context)
    # Mixers are looked up anew where chunks or sequences are others than those of the pass before.
    mixed_chunk = mixed_decoding = -1.0
    prefill = decode = draft = 0.0
    for kind in range(1, 5):  # one call, for it is long
        held, decoding, chunk = crowd.held, beside, cycle.chunk
        if kind == 1:
            chunk *= longest_of(cycle, cycle.together * crowd.local / crowd.mixed, held)
        elif kind == 2:
            held, decoding = mine_held, others
            chunk *= longest_of(cycle, 1.0 + crowd.others, held)
        elif kind == 3:
            held, decoding = mine_held, others
            chunk *= 1.0 + cycle.varied / mine_held
            if chunk == mixed_chunk:
                longest = mine
                continue
        elif kind == 4:
            held, decoding = full_held, half
            chunk *= longest_of(cycle, cycle.everyone, held)
        if chunk != mixed_chunk:
            mixed_chunk = chunk
            prefill = mixers_beside(tables.chunks, tables.prefill, row, chunk, before, v)
        if decoding != mixed_decoding:
            mixed_decoding = decoding
            decode = mixers_beside(tables.batches, tables.decode, row, decoding, context, w)
            draft = line(tables.batches, tables.draft, row, decoding)
        found = pass_beside(
            tables,
            row,
            held,
            chunk,
            prefill,
            decoding,
            decode,
            draft,
            cycle.verified,
            held / cycle.chunks,
        )
        if kind == 1:
            mixed = found
        elif kind == 2:
            mine = found[0]
        elif kind == 3:
            longest = found[0]
        else:
            full = found[0]
    each = (mixed[0] - alone[0] * cycle.fused) / crowd.held
    if full_held > crowd.held + 0.5:
        each = (full - mixed[0]) / (full_held - crowd.held)
    return Passes(alone, mixed, mine, longest, full, each, again_of(tables, row, cycle))


@jit_inline
def again_of(tables: PassTables, row: int, cycle: Cycle) -> float:
    """Return what computing a request again takes that is put back, until its end [s]."""
    if cycle.again <= 0.0:
        return 0.0
    tokens = min(max(cycle.again, cycle.piece), cycle.room * cycle.chunk)
    chunk = min(cycle.piece, tokens)
    found = pass_times(
        tables,
        row,
        tokens / chunk,
        chunk,
        0.5 * (cycle.piece - chunk),
        cycle.decoding * cycle.fused,
        cycle.context,
        cycle.verified,
        tokens / cycle.piece,
    )[0]
    return cycle.again / tokens * (found - cycle.alone[0] * cycle.fused)


@jit_inline
def answers_of(cycle: Cycle, crowd: Crowd, passes: Passes, host: float) -> Answers:
    """Return how answers go on.

    Notes
    -----
    Of each client one prompt runs per round. An answer is delayed by those that are not through
    by its first token: of the first requests those behind it, of the others all but those that
    came with it or were under way.
    """
    alone, mixed = passes.alone[0], passes.mixed[0]
    arriving = crowd.local * cycle.together
    per_prompt = crowd.mixed * crowd.runs * (mixed - alone * cycle.fused) / arriving

    if crowd.stretch > 0.0:
        each = (1.0 - crowd.mixed) * alone + crowd.mixed * mixed
        per_prompt = (crowd.stretch * each - alone) / arriving

    next_pass = (1.0 - crowd.ahead) * alone + crowd.ahead * mixed
    away = host / next_pass / cycle.length
    if crowd.dense > 0.5:
        away = crowd.dense * max(host / next_pass, 1.0)
    away = min(away, 1.0)
    waits = 1.0 - cycle.replaced
    if cycle.everyone < ALONE_MATTERS or away > 0.3:
        waits *= 1.0 - away ** max(cycle.clients * cycle.together - 1.0, 0.0)

    window = 1.0 + crowd.others
    if alike(cycle):
        own = max(cycle.chunks / cycle.room, 1.0) + queue_alike(cycle, crowd)[0]
        window = cycle.together * cycle.room / cycle.chunks * own
        window = max(
            min(window, cycle.everyone), cycle.everyone * (1.0 - cycle.passes / cycle.length)
        )
    elif cycle.fused > 0.0:
        window = min(window, cycle.together * max(cycle.room / cycle.chunks, 1.0))
        window += arriving * waits * crowd.ahead / crowd.mixed
        window = max(window, cycle.everyone * (1.0 - cycle.passes / cycle.length))
    else:
        window *= crowd.my_turn / crowd.turns
    first = cycle.everyone * crowd.turn / crowd.burst
    seen = max(cycle.everyone - window + (window - first) / cycle.rounds, 0.0)
    if cycle.passes < 1.0:  # answers of one token end with the prompt
        seen = min(seen, cycle.everyone * cycle.passes / cycle.length)
    going = alone + (per_prompt * seen + cycle.slots * passes.again) / cycle.passes
    return Answers(seen, going, per_prompt, waits, host)


@jit_inline
def alike(cycle: Cycle) -> bool:
    """Tell whether requests of one length, whose prompts run beside decoding, stay together."""
    return bool(cycle.fused > 0.0 and cycle.stays > 0.0 and cycle.everyone > 1.0)


@jit_inline
def queue_alike(cycle: Cycle, crowd: Crowd) -> tuple[float, float, float]:
    """Return how long requests of one length wait for each other, in passes with prompts.

    Notes
    -----
    They end as their prompts did, in as many passes, one behind the other: S of them in all. But
    those are short until the first of them is back with the next prompt, after m passes, and long
    from then on. Who ends x passes after the first is back x passes later at most: until then m
    passes have run whatever they take, min(x, m) of them with prompts.

    Returns
    -------
    mean, longest : float
        Of min(x, m), x spread evenly from 0 to S.
    share : float
        Of requests that wait less than the longest.
    """
    span = crowd.burst - max(cycle.chunks / cycle.room, 1.0)
    away = math.ceil(cycle.away) if cycle.away < span else cycle.away
    if away >= span:
        return 0.5 * span, span, 1.0
    return away - 0.5 * away * away / span, away, away / span


@jit_inline
def prompt_queue(cycle: Cycle, crowd: Crowd) -> float:
    """Return the passes that a prompt waits for those ahead of it, beside decoding.

    Notes
    -----
    Prompts that come at random are served in passes of one length, k at once: half of
    rho^(sqrt(2 (k + 1)) - 1) / (k (1 - rho)) services (Sakasegawa 1977, with the factor 1/2 of
    equal services). That is the steady state; while requests still come together, no more than
    chance brings in so many passes, nor than there are.
    """
    load = min(crowd.local * cycle.chunks / cycle.room, 0.999)
    if cycle.stays > 0.0 or load < NO_QUEUE:
        return 0.0
    service = max(cycle.chunks / cycle.room, 1.0)
    at_once = max(cycle.room / cycle.chunks, 1.0)
    waiting = load ** (math.sqrt(2.0 * (at_once + 1.0)) - 1.0) / (at_once * (1.0 - load))
    come = math.sqrt(1.0 / (crowd.dense * at_once * service))
    most = (cycle.slots - 1.0) / at_once
    return 0.5 * min(waiting, come, most) * service


@jit_inline
def first_tokens_of(
    cycle: Cycle, crowd: Crowd, passes: Passes, answers: Answers, per_token: float
) -> FirstTokens:
    """Return the times to the first token.

    Notes
    -----
    A request comes through the host while a pass runs. If that has just begun, what is left of
    it when the request is there is its time less the host's; if passes are shorter than the
    host's time, what is left of one at a random time, E[T²]/2E[T]. Requests beyond what runs
    at once wait for a place: clients/places - 1 lives of a request, of the first requests as
    many whole lives as were begun before theirs.
    """
    alone, mixed = passes.alone[0], passes.mixed[0]
    host = answers.host
    next_pass = (1.0 - crowd.ahead) * alone + crowd.ahead * mixed
    square = (1.0 - crowd.ahead) * alone * alone + crowd.ahead * mixed * mixed
    residual = 0.5 * square / next_pass
    late = min(max(host / alone - 1.0, 0.0), 1.0)
    missed = late * residual + (1.0 - late) * max(next_pass - host, residual)
    missed *= answers.waits
    own = passes.mine * crowd.my_turn
    queued = 0.0
    if cycle.fused > 0.0:
        waiting = cycle.length - cycle.passes - cycle.chunks - max(cycle.away, 1.0)
        queued = max(waiting, prompt_queue(cycle, crowd)) * passes.mine
    if alike(cycle):
        behind = queue_alike(cycle, crowd)
        if behind[2] < 1.0:
            missed = max(math.ceil(cycle.away) * alone - host, 0.0) * (1.0 - cycle.replaced)
        else:
            missed = 0.0
        queued = max(queued, behind[0] * (passes.mine - alone))
    later = host + missed + queued + own
    first = host + passes.full * crowd.turn

    excess = cycle.clients / cycle.slots
    life = answers.going * cycle.passes + own + missed + queued + host * (1.0 - cycle.replaced)
    # Whatever waits for what: passes are no more than filled.
    filled = cycle.chunks / cycle.room * (passes.full - alone * cycle.fused)
    filled = cycle.slots * filled + cycle.passes * alone - life
    slower = 0.0
    if filled > 0.0:
        life += filled
        if cycle.fused > 0.0:
            load = min(cycle.slots * cycle.chunks / (cycle.room * cycle.length), 1.0)
            slower = cycle.passes * (alone + load * (passes.full - alone) - answers.going)
            slower = min(max(slower, 0.0), filled)
        queued, later = queued + filled - slower, later + filled - slower
    whole = math.floor(excess)
    first_wait = life * (0.5 * whole * (whole - 1.0) + whole * (excess - whole)) / excess
    wait = max((excess - 1.0) * life - cycle.replaced * host, 0.0)
    mean_wait = wait + (first_wait - wait) / cycle.rounds
    put_back = cycle.put_back * mean_wait
    ahead = 1.0 - cycle.put_back
    first_wait, wait, mean_wait = ahead * first_wait, ahead * wait, ahead * mean_wait
    mean = later + (first - later) / cycle.rounds + mean_wait
    return FirstTokens(
        first,
        later,
        missed,
        queued,
        answers.waits * (mixed - alone) * (1.0 - late),
        excess,
        life,
        put_back,
        slower,
        first_wait,
        wait,
        mean_wait,
        mean,
        mean + put_back + slower + per_token * (cycle.answer - 1.0),
    )


@jit_inline
def first_token_quantiles(
    cycle: Cycle, crowd: Crowd, passes: Passes, answers: Answers, tokens: FirstTokens
) -> tuple[float, float, float]:
    """Return the median, 95th and 99th percentile of times to the first token.

    Notes
    -----
    Of three evenly spread sets: first requests; later ones that miss a pass without and with
    prompts, or, where more come than run at once, that wait a life less or more, the more so
    the more they come together. Prompts that come with mine vary as Poisson's or, where all
    come together, not at all.
    """
    own = max(passes.longest - passes.mine, 0.0) * cycle.chunks
    first_low = answers.host + passes.full
    first_high = first_low + passes.full * (crowd.burst - 1.0) + 2.0 * tokens.first_wait
    # Of all in the pass together.
    wide = own / math.sqrt(max(min(cycle.slots, cycle.room), 1.0))
    first_low, first_high = max(first_low - wide, answers.host), first_high + wide
    others = 1.0 - 1.0 / cycle.rounds
    share, apart = crowd.ahead, tokens.apart
    near = tokens.later + tokens.wait - share * apart
    if alike(cycle) and tokens.excess <= 1.0:
        # From no one ahead to as many as any request meets, which many do.
        behind = queue_alike(cycle, crowd)
        each = passes.mine - passes.alone[0]
        near = max(tokens.later + (behind[1] - behind[0]) * each, answers.host)
        return three_quantiles(
            (1.0 - others, others * behind[2], others * (1.0 - behind[2])),
            (first_low, max(near - behind[1] * each, answers.host), near),
            (first_high, near, near),
        )
    if tokens.excess > 1.0:
        apart = min(max(0.5 * (crowd.local / crowd.even - 1.0), 0.0), 1.0) * tokens.life
        share = tokens.excess - math.floor(tokens.excess)
        near = tokens.later + tokens.wait - share * apart
    # Half the widths of what varies: my turn, the length of my prompt, prompts that come with it.
    turn = 0.5 * (crowd.turns - cycle.chunks) * passes.mine
    sway = turn * turn + own * own
    if cycle.stays <= 0.0:
        varied = 3.0 * crowd.others / cycle.together * (1.0 - crowd.dense)
        sway += varied * (passes.each * cycle.chunks) ** 2
    sway = math.sqrt(sway)
    return three_quantiles(
        (1.0 - others, others * (1.0 - share), others * share),
        (first_low, max(near - sway, answers.host), max(near + apart - sway, answers.host)),
        (first_high, near + sway, near + apart + sway),
    )


@jit_inline
def gap_quantile(
    share: float, gaps: float, cycle: Cycle, crowd: Crowd, passes: Passes, longer: float
) -> float:
    """Return the time between tokens that a share of all is above.

    Parameters
    ----------
    share, gaps : float
        And the share of all between which prompts run.
    longer : float
        Groups of prompts that run between two tokens where decoding waits for them.
    """
    if share >= gaps:
        return passes.alone[0]
    time, runs = passes.mixed[0], crowd.runs
    if crowd.stretch > 0.0:
        return time * math.ceil(crowd.stretch)
    if cycle.stays <= 0.0:
        come = count_quantile(1.0 - share / gaps, crowd.local * cycle.together)
        come = most_on_one(come, cycle.together)
        time += passes.each * (min(come, cycle.room) - crowd.held)
        runs = cycle.chunks * max(come / cycle.room, 1.0)
    if cycle.fused > 0.0:
        return time
    return passes.alone[0] + time * longer * runs


@jit_inline
def first_token_width(band: float) -> float:
    """Return by what bounds of first tokens lie around the mean, whatever method finds that."""
    return 1.0 + math.hypot(band, FIRST_TOKEN_WIDTH)


@jit_inline
def ending_of(
    tables: PassTables, row: int, cycle: Cycle, answers: Answers, tokens: FirstTokens, longer: float
) -> float:
    """Return how long a loop of so many rounds takes [s].

    Parameters
    ----------
    longer : float
        The longest answer, relative to the mean.

    Notes
    -----
    All R C requests go through s places; when the last of them starts all but s have ended, which
    takes R C/s - 1 lives where they start and end together, and half a life more where they have
    spread over a life meanwhile (renewals: t/T - 1/2 by a time t). That one takes a life, and
    longer ones may take longer: of n requests that start evenly spread over a life T, and take up
    to L, the last ends sqrt(pi T w / 2 n) before T + L on average, w the width of their lives.
    Fewer and fewer decode meanwhile, and no prompts come.
    Requests of one length end as they began, but for the prompts.
    """
    count = cycle.rounds * tokens.excess - 1.0
    apart = math.sqrt(3.0 * cycle.step * max(count, 0.0)) / cycle.length
    lives = (count + min(apart, 0.5)) * tokens.life + tokens.first - tokens.later
    last = tokens.life
    if cycle.step > 0.0:
        width = 2.0 * (longer - 1.0)
        most = max(longer - math.sqrt(0.5 * math.pi * width / cycle.everyone), 1.0)
        few = min(max(0.5 * cycle.decoding / most, 1.0), cycle.decoding)
        alone = pass_times(tables, row, 0.0, 0.0, 0.0, few, cycle.context, cycle.verified, 0.0)[0]
        last += cycle.passes * (most * alone - answers.going)
    return max(lives + last, tokens.life)


@jit_lean
def close_clients(
    tables: PassTables, deployments: Deployments, d: int, loads: Loads, out: np.ndarray
) -> None:
    """Fill the variables of all closed loops on a deployment of one pool.

    Parameters
    ----------
    tables : PassTables
    deployments, loads : Deployments, Loads
    d : int
        Which deployment.
    out : ndarray of float64, shape (len(ROWS), deployments, loads)
    """
    row = deployments.layout[d]
    gained = tokens_per_pass(deployments.draft_length[d], deployments.acceptance[d])
    band = tables.half_width[row]
    wide = first_token_width(band)
    devices, ranks = deployments.devices[d], deployments.ranks[d]
    # Groups of ranks in step: so many share of them has work, at most.
    groups = ranks * deployments.stages[d] / deployments.lockstep_ranks[d]
    limit = 0.0
    for j in range(loads.concurrency.size):
        if j == 0 or not same_requests(loads, j):
            limit = running_limit(deployments, d, loads, j)
        concurrency = loads.concurrency[j]
        if not is_closed_loop(loads, j):
            continue
        if limit <= 0.0:
            out[:, d, j] = math.nan
            out[ROWS.status, d, j] = NO_ROOM
            continue
        cycle = cycle_of(tables, deployments, d, loads, j, limit, gained)
        crowd = crowd_of(cycle)
        passes = passes_of(tables, row, cycle, crowd)
        answers = answers_of(cycle, crowd, passes, cycle.host)
        per_token = answers.going  # of a second token, where there is none
        if cycle.answer > 1.0:
            per_token *= cycle.passes / (cycle.answer - 1.0)
        tokens = first_tokens_of(cycle, crowd, passes, answers, per_token)
        if cycle.answer > 1.0:
            per_token += (tokens.put_back + tokens.slower) / (cycle.answer - 1.0)
        p50, p95, p99 = first_token_quantiles(cycle, crowd, passes, answers, tokens)
        rate = concurrency / tokens.request
        if cycle.rounds < math.inf:
            longer = 2.0 / (1.0 + loads.length_spread[j])
            duration = ending_of(tables, row, cycle, answers, tokens, longer)
            rate = min(concurrency * cycle.rounds / duration, rate)

        out[ROWS.time_to_first_token_mean, d, j] = tokens.mean
        out[ROWS.time_to_first_token_p50, d, j] = p50
        out[ROWS.time_to_first_token_p95, d, j] = p95
        out[ROWS.time_to_first_token_p99, d, j] = p99
        out[ROWS.time_to_first_token_low, d, j] = tokens.mean / wide
        out[ROWS.time_to_first_token_high, d, j] = tokens.mean * wide

        # Others make one prompt per cycle as I do: how many I see varies with lengths alone, by
        # w/2 of their number, w = (1 - r)/(1 + r): the part of a cycle over or short.
        spread = loads.length_spread[j]
        varied = 0.5 * (1.0 - spread) / (1.0 + spread) * answers.seen
        deviation = answers.per_prompt * math.sqrt(varied) / (cycle.passes * gained)
        out[ROWS.time_per_output_token_mean, d, j] = per_token
        out[ROWS.time_per_output_token_p50, d, j] = per_token
        out[ROWS.time_per_output_token_p95, d, j] = per_token + P95 * deviation
        out[ROWS.time_per_output_token_p99, d, j] = per_token + P99 * deviation
        out[ROWS.time_per_output_token_low, d, j] = per_token * (1.0 - band)
        out[ROWS.time_per_output_token_high, d, j] = per_token * (1.0 + band)

        gaps = crowd.mixed * answers.seen / (crowd.local * cycle.together * cycle.passes)
        longer = 1.0
        if cycle.fused == 0.0 and cycle.stays <= 0.0:
            # Who finishes while prompts wait for the pass under way joins them: one long gap.
            longer += crowd.mixed
        gaps = min(gaps, 1.0) / longer
        if crowd.stretch > 0.0:
            gaps = crowd.mixed * crowd.even / crowd.local
        out[ROWS.inter_token_latency_mean, d, j] = (
            answers.going + (tokens.put_back + tokens.slower) / cycle.passes
        )
        for at in range(3):
            share = 0.5 if at == 0 else (0.05 if at == 1 else 0.01)
            gap = gap_quantile(share, gaps, cycle, crowd, passes, longer)
            out[ROWS.inter_token_latency_p50 + at, d, j] = gap

        # Times to the first token and lengths of answers vary apart.
        half = 0.5 * (1.0 - spread) * loads.output_length[j] * per_token
        out[ROWS.request_time_mean, d, j] = tokens.request
        out[ROWS.request_time_p50, d, j] = tokens.request + p50 - tokens.mean
        out[ROWS.request_time_p95, d, j] = tokens.request + both(p95 - tokens.mean, 0.9 * half)
        out[ROWS.request_time_p99, d, j] = tokens.request + both(p99 - tokens.mean, 0.98 * half)

        out[ROWS.request_rate, d, j] = rate
        out[ROWS.tokens_per_second_per_device, d, j] = rate * cycle.answer / devices
        both_tokens = cycle.answer + cycle.prompt
        out[ROWS.total_tokens_per_second_per_device, d, j] = rate * both_tokens / devices
        out[ROWS.tokens_per_second_per_user, d, j] = 1.0 / per_token
        decoding = tokens.request - tokens.mean - tokens.put_back
        out[ROWS.batch, d, j] = rate * decoding / ranks
        later = tokens.missed + tokens.queued + (crowd.my_turn - cycle.chunks) * passes.mine
        first = (crowd.turn - cycle.chunks) * passes.full
        waited = tokens.mean_wait + later + (first - later) / cycle.rounds
        out[ROWS.queue_time, d, j] = waited
        busy = min(concurrency / groups, 1.0)
        if cycle.everyone < ALONE_MATTERS:
            busy *= 1.0 - min(cycle.host / tokens.request, 1.0) ** cycle.clients
        out[ROWS.utilization, d, j] = busy

        # Of all passes, so many are with prompts.
        mixed = crowd.even / crowd.local * crowd.mixed
        mixed = mixed if cycle.fused > 0.0 else mixed / (1.0 + mixed)
        alone, pair = passes.alone, passes.mixed
        out[ROWS.attention_time, d, j] = alone[1] + mixed * (pair[1] - alone[1])
        out[ROWS.matrices_time, d, j] = alone[2] + mixed * (pair[2] - alone[2])
        out[ROWS.experts_time, d, j] = alone[3] + mixed * (pair[3] - alone[3])
        out[ROWS.communication_time, d, j] = alone[4] + mixed * (pair[4] - alone[4])
        out[ROWS.other_time, d, j] = alone[5] + mixed * (pair[5] - alone[5])
        out[ROWS.host_time, d, j] = alone[6] + mixed * (pair[6] - alone[6])
        out[ROWS.status, d, j] = NO_STAGE_WORK if concurrency < ranks else STABLE


@jit_lean_inline
def same_requests(loads: Loads, j: int) -> bool:
    """Tell whether requests of a load are as long as those of the load before."""
    return bool(
        loads.input_length[j] == loads.input_length[j - 1]
        and loads.output_length[j] == loads.output_length[j - 1]
        and loads.length_spread[j] == loads.length_spread[j - 1]
    )


@jit_inline
def both(one: float, other: float) -> float:
    """Return how far a sum lies off its mean where its parts lie so far off theirs."""
    return math.copysign(math.sqrt(one * one + other * other), one + other)
