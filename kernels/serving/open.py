"""Open loops: requests that arrive at a rate, in closed form.

Requests go to the least loaded of k *lanes* (attention ranks times pipeline stages: every stage
has a batch of its own under way). Decoding is a birth-death chain of the number that decode: it
shares a lane like a processor, and then its steady state depends on the mean answer alone
(Kelly 1979, "Reversibility and stochastic networks", 3.3). Prompts wait for the pass under way
(a vacation of their server: Fuhrmann and Cooper 1985) and for the prompts ahead of them.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.serving.admission import (
    COUNT,
    DECODE,
    EACH,
    FIXED,
    MOST_STATES,
    PASSES,
    ROOM,
    SHARE,
    STATES_COLUMNS,
    TIME,
    WEIGHT,
    fill_chain,
    fill_state,
    length_variation,
    mean_length,
    mean_square,
    quantile_of_states,
    running_limit,
)
from perfmodel.kernels.serving.filling import (
    DEVIATIONS,
    LEVELS,
    fill_means,
    fill_parts,
    fill_request_quantile,
)
from perfmodel.kernels.serving.passes import pass_variation, tokens_per_pass
from perfmodel.kernels.serving.queues import erlang_c, joined, mean_wait, wait_quantile
from perfmodel.kernels.serving.tables import (
    FUSED,
    NO_ROOM,
    ROWS,
    STABLE,
    UNSTABLE,
    Deployments,
    Loads,
    PassTables,
)

WITHIN_STAY = 2.0 / 3.0
"""Share of the variance of the batch that the mean over a request's stay keeps: the numbers at
two times of an infinite server with equal services correlate by the share of a service between
them, and 2 int_0^1 (1 - u) (1 - u) du = 2/3."""
LEAST_PASSES = 1e-6
"""Passes of an answer of one token, which comes out of the prompt's own."""


@jit_lean
def prompt_queue(
    state: np.ndarray, fused: bool, lanes: float, rate: float
) -> tuple[float, float, float, float]:
    """Return how prompts wait for those ahead of them, beyond the pass under way.

    Returns
    -------
    capacity : float
        Prompts per second of all lanes, when they never run out.
    waits : float
        The chance to wait.
    service, each : float
        Time that a prompt takes a lane, and what of it depends on its length [s].
    """
    beside = state[DECODE] if fused else 0.0
    if state[ROOM] < 1.0:
        service = state[PASSES] * beside + state[EACH]
        capacity, servers = lanes / service, lanes
    else:
        service = beside + state[FIXED] + state[ROOM] * state[EACH]
        capacity, servers = lanes * state[ROOM] / service, lanes * math.floor(state[ROOM])
    # A pass is as long as its prompts, and full only when as many came.
    full = rate / capacity
    if state[ROOM] >= 2.0:
        full *= min(state[TIME] / service, 1.0)
    waits = erlang_c(int(servers), full)
    return capacity, waits, service, min(state[EACH], service)


@jit_lean
def at_arrival(
    state: np.ndarray, fused: bool, alone: float, rate: float
) -> tuple[float, float, float, float]:
    """Return what a prompt finds at a lane, where a pass takes several prompts.

    Parameters
    ----------
    state : float64[STATES_COLUMNS]
    fused : bool
    alone : float
        Passes of a prompt by itself [s].
    rate : float
        Prompts that come to the lane [1/s].

    Returns
    -------
    working, met : float
        The chance of a pass under way, and of one with prompts.
    left, company : float
        What is left of the pass under way, beyond half a pass without prompts, and how much
        longer its own pass is by prompts that came during the one before [s].

    Notes
    -----
    What is left of a pass is E[T^2] / 2 E[T] on average, and the whole is twice that. Prompts in
    it are Poisson's a, and of those passes that have some a + a^2 - a^2/s is the variance.
    """
    if state[DECODE] <= 0.0:
        working = min(rate * alone, 1.0)
        if state[ROOM] < 2.0:
            return working, 0.0, 0.0, 0.0
        return working, working, 0.5 * working * alone, working * rate * alone * state[EACH]
    if state[ROOM] < 2.0 or state[SHARE] <= 0.0:
        return 1.0, 0.0, 0.0, 0.0
    time, share, decode = state[TIME], state[SHARE], state[DECODE]
    pause = (time - decode) / share
    longer = decode + pause if fused else pause
    square = decode * decode * (1.0 - share if fused else 1.0) + share * longer * longer
    came = rate * time
    square += state[EACH] * state[EACH] * came * max(1.0 + came - came / share, 0.0)
    if fused:
        # A long pass lets more prompts come for the next one.
        again = min(rate * state[EACH], 0.95)
        square = time * time + max(square - time * time, 0.0) / (1.0 - again * again)
    left = max(0.5 * square / time - 0.5 * decode, 0.0)
    return 1.0, min(share * longer / time, 1.0), left, rate * state[EACH] * square / time


@jit_lean
def delay_by_crowd(
    state: np.ndarray,
    fused: bool,
    rate: float,
    utilization: float,
    waits: float,
    ahead: float,
    answer_passes: float,
) -> float:
    """Return how much longer an answer takes because it starts where prompts are [s].

    Parameters
    ----------
    state : float64[STATES_COLUMNS]
    fused : bool
    rate : float
        Prompts that come to a lane [1/s].
    utilization, waits, ahead : float
        Of the queue of prompts: load, chance to wait and mean wait [s].
    answer_passes : float

    Notes
    -----
    A prompt that is through leaves others behind it as often as it found others ahead (departures
    of a queue see what arrivals see). So an answer begins amid prompts with chance x, though
    only a share s of passes has prompts. Passes go on to be with or without prompts for a
    while each: of D passes, (x - s) (1 - exp(-theta D)) / theta more are with prompts, where theta
    adds the chances per pass that prompts end and that they begin.
    """
    if state[COUNT] <= 0.0 or state[SHARE] <= 0.0:
        return 0.0
    pause = (state[TIME] - state[DECODE]) / state[SHARE]
    beside = state[DECODE] if fused else 0.0
    if state[ROOM] < 2.0:
        found = waits
        service = state[PASSES] * beside + state[EACH]
        crowd = service + (ahead / waits if waits > 0.0 else 0.0)
        crowd /= 1.0 - utilization
        if not fused:
            return found * crowd
        ends = (beside + pause) / crowd
    else:
        found = -math.expm1(-rate * (beside + pause))
        ends = 1.0 - found
        if not fused:
            return found * pause / max(ends, 0.05)
    theta = ends + rate * state[DECODE]
    more = max(found - state[SHARE], 0.0) * -math.expm1(-theta * answer_passes) / theta
    return more * pause


@jit
def close_open(
    tables: PassTables, deployments: Deployments, d: int, loads: Loads, j: int, out: np.ndarray
) -> None:
    """Fill the variables of one deployment under one open loop.

    Parameters
    ----------
    tables, deployments, loads
    d, j : int
        Which deployment and load.
    out : float64[len(ROWS), deployments, loads]
        ``out[:, d, j]`` is filled; NaN but for the state where there is no steady state.

    Notes
    -----
    With N requests that decode on k lanes a pass takes T(N/k) and an answer D = (O - 1)/m passes:
    N / (D T(N/k)) requests are done per second, and lambda arrive. Where all that may run do,
    others wait: C / (mu - lambda) (c_a^2 + c_s^2) / 2.
    """
    states = np.empty((MOST_STATES, STATES_COLUMNS))
    work = np.empty((6, MOST_STATES))
    fill_open(tables, deployments, d, loads, j, states, work, out)


@jit_lean
def fill_open(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    loads: Loads,
    j: int,
    states: np.ndarray,
    work: np.ndarray,
    out: np.ndarray,
) -> None:
    """Do what `close_open` says.

    Parameters
    ----------
    states : float64[MOST_STATES, STATES_COLUMNS]
    work : float64[6, MOST_STATES]
        Memory to work in, as lean kernels make no arrays.
    """
    for row in range(len(ROWS)):
        out[row, d, j] = math.nan
    running = running_limit(deployments, d, loads, j)
    if running <= 0.0:
        out[ROWS.status, d, j] = NO_ROOM
        return
    out[ROWS.status, d, j] = UNSTABLE
    rate, spread = loads.request_rate[j], loads.length_spread[j]
    varied = loads.arrival_variation[j]
    ranks, together = deployments.ranks[d], deployments.lockstep_ranks[d]
    lanes = ranks * deployments.stages[d]
    most = max(math.floor(running * ranks), 1.0)
    fused = deployments.scheduler[d] == FUSED
    prompt = mean_length(loads.input_length[j], spread)
    before = min(loads.prefix[j], prompt - 1.0)
    answer = mean_length(loads.output_length[j], spread)
    context = prompt + 0.5 * mean_square(loads.output_length[j], spread) / answer
    drafted, acceptance = deployments.draft_length[d], deployments.acceptance[d]
    gained = tokens_per_pass(drafted, acceptance)
    answer_passes = max((answer - 1.0) / gained, LEAST_PASSES)

    asked = (prompt - before, before, context)
    filled, most = fill_chain(
        tables, deployments, d, asked, lanes, rate, answer_passes, most, states
    )
    if filled == 0:
        return
    idle = work[5]
    fill_state(tables, deployments, d, asked, lanes, rate, 0.0, idle)

    # What requests that decode see: states by the passes made in them.
    passes, lengthened, undisturbed, decoding = 0.0, 0.0, 0.0, 0.0
    weights, values = work[:2], work[2:5]
    # What those that arrive see.
    own, residual, busy, crowd, crowded, meeting = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for place in range(filled):
        state = states[place]
        made = state[WEIGHT] * state[COUNT] / state[TIME] if state[COUNT] > 0.0 else 0.0
        passes += made
        lengthened += made * state[SHARE]
        undisturbed += made * state[DECODE]
        decoding += state[WEIGHT] * state[COUNT]
        weights[0, place], weights[1, place] = made, made * state[SHARE]
        values[0, place], values[1, place] = state[TIME], state[DECODE]
        extra = state[TIME] - state[DECODE]
        gap = state[DECODE] + (extra / state[SHARE] if state[SHARE] > 0.0 else extra)
        values[2, place] = gap
        # The least loaded lane: idle as long as there is one.
        at = idle if state[COUNT] < lanes / together else state
        alone = at[FIXED] + at[EACH] + (at[PASSES] * at[DECODE] if fused else 0.0)
        working, met, left, company = at_arrival(at, fused, alone, rate / lanes)
        busy += state[WEIGHT] * working
        own += state[WEIGHT] * (alone + company)
        residual += state[WEIGHT] * 0.5 * at[DECODE]
        crowd += state[WEIGHT] * left
        crowded += state[WEIGHT] * (left + company)
        meeting += state[WEIGHT] * met
    typical = 0
    while typical < filled - 1 and states[typical, COUNT] < decoding - 0.5:
        typical += 1
    capacity, behind_others, service, by_length = prompt_queue(states[typical], fused, lanes, rate)
    if capacity <= rate:
        return
    # Prompts are as long as they vary, and what the cache holds does not.
    longer = by_length / service * prompt / asked[0]
    prompt_variation = length_variation(spread) * longer * longer * (states[typical, ROOM] < 1.0)
    ahead = mean_wait(behind_others, capacity, rate, varied, prompt_variation)
    # Requests beyond what runs at once wait for a place.
    full = states[filled - 1]
    blocked, for_place = 0.0, 0.0
    if full[COUNT] >= most:
        leaving = most / (answer_passes * full[TIME])
        blocked = full[WEIGHT]
        for_place = mean_wait(blocked, leaving, rate, varied, length_variation(spread))
    random = ahead + for_place + crowded
    waits = 1.0 - (1.0 - behind_others) * (1.0 - blocked) * (1.0 - meeting)
    waited = ahead + for_place + crowd + residual

    host = deployments.request_host[d] + deployments.token_host[d] * prompt
    host += deployments.output_host[d]
    first = host + waited + own
    pass_time = decoding / passes
    late = delay_by_crowd(
        states[typical], fused, rate / lanes, rate / capacity, behind_others, ahead, answer_passes
    )
    stay = pass_time + late / answer_passes
    per_token = stay / gained
    fill_means(
        out,
        d,
        j,
        first,
        per_token,
        stay,
        rate,
        prompt,
        answer,
        deployments.devices[d],
        tables.half_width[deployments.layout[d]],
    )

    # Over its stay a request sees a mean of batches, and of prompts and speculative tokens that
    # come at random.
    share = lengthened / passes
    coming = rate / lanes * together
    met = coming * stay * answer_passes
    # A pause of t lets rate t more prompts come, which pause it again.
    pause = (pass_time - undisturbed / passes) / (coming * pass_time)
    interrupted = pause * math.sqrt(met) / answer_passes / max(1.0 - coming * pause, 0.05)
    speculation = stay * math.sqrt(pass_variation(drafted, acceptance) / answer_passes) / gained
    kept = math.sqrt(WITHIN_STAY * 0.5 * (1.0 + varied))
    half_length = 0.5 * (1.0 - spread) * loads.input_length[j] / asked[0] * by_length
    half_answer = 0.5 * (1.0 - spread) * loads.output_length[j] * per_token
    for at in range(3):
        level, z = LEVELS[at], DEVIATIONS[at]
        uniform = 2.0 * level - 1.0
        later = 0.0
        if level > 1.0 - busy:
            among = (level - 1.0 + busy) / busy
            later = wait_quantile(
                among, min(waits / busy, 1.0), random / busy, 2.0 * residual / busy
            )
        side = joined(later - random - residual, uniform * half_length)
        out[ROWS.time_to_first_token_p50 + at, d, j] = max(first + side, host)
        batches = kept * (
            quantile_of_states(states, values[0], weights[0], filled, level) - pass_time
        )
        # Few requests meet any prompt where those are rare.
        by_prompts = z * interrupted if -math.expm1(-met) > 1.0 - level else 0.0
        slower = joined(batches, math.hypot(by_prompts, z * speculation))
        out[ROWS.time_per_output_token_p50 + at, d, j] = (stay + slower) / gained
        fill_request_quantile(out, d, j, at, answer, half_answer, host)
        if level > 1.0 - share:
            within = (level - 1.0 + share) / share
            gap = quantile_of_states(states, values[2], weights[1], filled, within)
            gap += (2.0 * within - 1.0) * half_length / states[typical, PASSES]
        else:
            gap = quantile_of_states(states, values[1], weights[0], filled, level / (1.0 - share))
        out[ROWS.inter_token_latency_p50 + at, d, j] = gap
    batch = rate * answer_passes * stay / ranks
    out[ROWS.batch, d, j] = batch
    out[ROWS.queue_time, d, j] = waited
    out[ROWS.utilization, d, j] = min(busy, 1.0)
    decoding = max(batch / deployments.stages[d], 1.0)
    fill_parts(tables, deployments, d, asked, decoding, share, fused, out, j)
    out[ROWS.status, d, j] = STABLE
