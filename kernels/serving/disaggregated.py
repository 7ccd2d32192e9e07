"""Two pools in a row: workers that run prompts, and workers that decode.

The first token comes from a prefill worker; its caches go to a decode worker, which makes the
other O - 1. Neither disturbs the other. In a closed loop C clients divide among both pools so
that requests flow as fast through one as through the other; in an open loop each pool is a queue.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.serving.admission import (
    COUNT,
    MOST_STATES,
    STATES_COLUMNS,
    TIME,
    WEIGHT,
    fill_chain,
    is_closed_loop,
    length_variation,
    mean_length,
    mean_square,
    quantile_of_states,
    running_limit,
)
from perfmodel.kernels.serving.cycle import mean_density
from perfmodel.kernels.serving.filling import (
    DEVIATIONS,
    LEVELS,
    fill_means,
    fill_parts,
    fill_request_quantile,
)
from perfmodel.kernels.serving.open import LEAST_PASSES, WITHIN_STAY
from perfmodel.kernels.serving.passes import (
    pass_times,
    pass_variation,
    prompt_cost,
    tokens_per_pass,
)
from perfmodel.kernels.serving.queues import erlang_c, mean_wait, mixed_quantile, wait_quantile
from perfmodel.kernels.serving.tables import (
    NO_ROOM,
    PREFILL_FIRST,
    ROWS,
    STABLE,
    UNSTABLE,
    Deployments,
    Loads,
    PassTables,
)

BUNCHED = 0.9
"""Load at which prompts that come bunched wait: by chance, as they were spread at capacity."""
CLOSE = 1e-7
"""Relative: concurrency is met so closely."""


@jit_lean
def prompt_pool(
    cost: tuple[float, float, float], lanes: float, rate: float, varied: float, longer: float
) -> tuple[float, float, float, float, float]:
    """Return how prompts wait for and share the passes of a prefill pool.

    Parameters
    ----------
    cost : (float, float, float)
        Of a pass: its fixed part and that per prompt [s], and prompts that it takes at most.
    lanes : float
        Passes that are under way at once, of all workers.
    rate : float
        Prompts that come [1/s].
    varied, longer : float
        Squared coefficients of variation of the times between prompts, and of their lengths.

    Returns
    -------
    capacity : float
        Prompts per second that the pool can run.
    found : float
        The chance that no worker is idle.
    left, wait : float
        What is left of passes that are shared, and the mean wait for prompts ahead [s]; `wait` is
        inf beyond the capacity.
    company : float
        What others add to a prompt's own pass [s].

    Notes
    -----
    Where a pass takes one prompt: Allen and Cunneen (`mean_wait`). Where it takes several, those
    that come during a pass L share the next: with a of them on average a + exp(-a) prompts are in
    a pass, since one that finds no pass under way starts its own. Who finds all k workers busy
    waits E[L^2] / E[L] / (k + 1) for the first, and shares its pass with those that come meanwhile.
    """
    fixed, each, room = cost
    length = fixed + each
    if room < 2.0:
        capacity = lanes / length
        if rate >= capacity:
            return capacity, 1.0, 0.0, math.inf, 0.0
        found = erlang_c(int(lanes), rate / capacity)
        return capacity, found, 0.0, mean_wait(found, capacity, rate, varied, longer), 0.0
    capacity = lanes * room / (fixed + room * each)
    if rate >= capacity:
        return capacity, 1.0, 0.0, math.inf, (room - 1.0) * each
    local = rate / lanes
    together, found = 1.0, 0.0
    for _ in range(5):
        coming = local * length
        busy = min(coming / together, 1.0)
        found = erlang_c(int(lanes), busy)
        together = 1.0
        if busy > 0.0:
            together += (coming + math.exp(-coming) - 1.0) * found / busy
        together = min(together, room)
        length = fixed + together * each
    coming = local * length
    again = min(local * each, 0.95)
    square = length * length + each * each * coming / (1.0 - again * again)
    left = found * square / length / (lanes + 1.0)
    beyond = erlang_c(int(lanes * math.floor(room)), min(coming / room, 1.0))
    wait = mean_wait(beyond, max(lanes * room / length, capacity), rate, varied, 0.0)
    company = found * min(local * square / length, room - 1.0) * each
    return capacity, found, left, wait, company


@jit_lean
def decode_pass(
    tables: PassTables, deployments: Deployments, d: int, decoding: float, context: float
) -> float:
    """Return the time of a pass of a decode worker [s]."""
    verified = deployments.draft_length[d] + 1.0
    row = deployments.layout[d]
    one = max(decoding, 1.0)
    return pass_times(tables, row, 0.0, 0.0, 0.0, one, context, verified, 0.0)[0]


@jit
def close_disaggregated(
    tables: PassTables, deployments: Deployments, d: int, loads: Loads, j: int, out: np.ndarray
) -> None:
    """Fill the variables of a deployment of two pools under one load.

    Parameters
    ----------
    tables, deployments, loads
    d, j : int
        Which deployment and load.
    out : float64[len(ROWS), deployments, loads]
        ``out[:, d, j]`` is filled; NaN but for the state where there is no steady state.
    """
    for row in range(len(ROWS)):
        out[row, d, j] = math.nan
    running = running_limit(deployments, d, loads, j)
    if running <= 0.0:
        out[ROWS.status, d, j] = NO_ROOM
        return
    spread = loads.length_spread[j]
    prompt = mean_length(loads.input_length[j], spread)
    before = min(loads.prefix[j], prompt - 1.0)
    fresh = prompt - before
    fixed, each, chunks, room = prompt_cost(
        tables,
        deployments.prefill_layout[d],
        PREFILL_FIRST,
        deployments.prefill_token_budget[d],
        fresh,
        before,
        0.0,
        0.0,
        1.0,
    )[1:]
    room = min(room, deployments.prefill_max_sequences[d])
    cost = in_step(
        tables,
        deployments.prefill_layout[d],
        (fixed, each, room),
        fresh / chunks,
        chunks,
        deployments.prefill_lockstep_ranks[d],
    )
    if not is_closed_loop(loads, j):
        states = np.empty((MOST_STATES, STATES_COLUMNS))
        work = np.empty((2, MOST_STATES))
        close_open_pools(tables, deployments, d, loads, j, cost, running, states, work, out)
    else:
        close_closed_pools(tables, deployments, d, loads, j, cost, running, out)
    if out[ROWS.status, d, j] == STABLE:
        lanes = deployments.ranks[d] * deployments.stages[d]
        decoding = max(out[ROWS.batch, d, j] * deployments.ranks[d] / lanes, 1.0)
        asked = (0.0, 0.0, mean_context(loads, j))
        fill_parts(tables, deployments, d, asked, decoding, 0.0, False, out, j)


@jit_lean
def in_step(
    tables: PassTables,
    row: int,
    cost: tuple[float, float, float],
    chunk: float,
    passes: float,
    ranks: float,
) -> tuple[float, float, float]:
    """Return what passes of a worker cost whose attention ranks pass in step.

    Parameters
    ----------
    tables, row : PassTables, int
    cost : (float, float, float)
        Of one rank's pass, while all have as much: its fixed part and that per prompt [s], and
        prompts that it takes.
    chunk, passes : float
        Tokens of a prompt in a pass, and its passes.
    ranks : float
        Ranks that distribute prompts among themselves.

    Returns
    -------
    fixed, each, room : float
        Of the worker's pass, on a line from one prompt to as many as it takes.

    Notes
    -----
    Experts and what goes to and from them are the worker's: while one rank has a prompt and the
    others none, they take what the tokens of all ranks take. All else is as for a full pass.
    """
    fixed, each, room = cost
    if ranks <= 1.0:
        return fixed, each, room
    per_rank = max(math.floor(room), 1.0)
    full = pass_times(tables, row, 1.0, chunk, 0.0, 0.0, 0.0, 1.0, 1.0)
    least = pass_times(tables, row, 1.0 / ranks, chunk, 0.0, 0.0, 0.0, 1.0, 1.0)
    spared = max(full[3] - least[3], 0.0) + max(full[4] - least[4], 0.0)
    single = fixed + each - passes * min(spared, full[0] - least[0])
    whole = fixed + per_rank * each
    most = per_rank * ranks
    added = max(whole - single, 0.0) / (most - 1.0)
    return single - added, added, most


@jit_lean
def mean_context(loads: Loads, j: int) -> float:
    """Return the tokens that a decoding sequence keeps on average."""
    spread = loads.length_spread[j]
    answer = mean_length(loads.output_length[j], spread)
    longer = mean_square(loads.output_length[j], spread)
    return mean_length(loads.input_length[j], spread) + 0.5 * longer / answer


@jit_lean
def prompt_lanes(deployments: Deployments, d: int) -> float:
    """Return how many passes of prompts are under way at once: of all workers and stages."""
    workers = deployments.prefill_ranks[d] / deployments.prefill_lockstep_ranks[d]
    return max(workers, 1.0) * deployments.prefill_stages[d]


@jit_lean
def around(deployments: Deployments, d: int, prompt: float) -> float:
    """Return what a first token takes beside queues and passes: hosts, and its caches' way [s]."""
    host = deployments.request_host[d] + deployments.token_host[d] * prompt
    transfer = deployments.transfer_latency[d] + deployments.transfer_time[d] * prompt
    return host + transfer + deployments.output_host[d]


@jit_lean
def joining(time: float, busy: float) -> float:
    """Return how long a decode worker takes until a sequence that came gives its first token [s].

    Parameters
    ----------
    time, busy : float
        Of a pass [s], and the chance that one is under way: half of it is left.

    Notes
    -----
    Engines stream answers from where they are decoded: the token that the prompt gave comes with
    the first pass there (vLLM's proxies ask prefill workers for one token and drop it).
    """
    return time * (1.0 + 0.5 * busy)


@jit_lean
def fill_pools(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    loads: Loads,
    j: int,
    first: float,
    stay: float,
    rate: float,
    wait: float,
    utilization: float,
    out: np.ndarray,
) -> None:
    """Fill what follows from mean times and the rate."""
    spread = loads.length_spread[j]
    prompt = mean_length(loads.input_length[j], spread)
    answer = mean_length(loads.output_length[j], spread)
    gained = tokens_per_pass(deployments.draft_length[d], deployments.acceptance[d])
    width = max(
        tables.half_width[deployments.layout[d]], tables.half_width[deployments.prefill_layout[d]]
    )
    devices = deployments.devices[d]
    per_token = stay / gained
    fill_means(out, d, j, first, per_token, stay, rate, prompt, answer, devices, width)
    out[ROWS.batch, d, j] = rate * per_token * (answer - 1.0) / deployments.ranks[d]
    out[ROWS.queue_time, d, j] = wait
    out[ROWS.utilization, d, j] = utilization
    out[ROWS.status, d, j] = STABLE


@jit_lean
def close_open_pools(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    loads: Loads,
    j: int,
    cost: tuple[float, float, float],
    running: float,
    states: np.ndarray,
    work: np.ndarray,
    out: np.ndarray,
) -> None:
    """Fill the variables of two pools to which requests come at a rate.

    Parameters
    ----------
    cost : (float, float, float)
        As of `prompt_pool`.
    running : float
        Requests that decode on a rank at most.
    states, work : float64[MOST_STATES, STATES_COLUMNS], float64[2, MOST_STATES]
        Memory to work in.

    Notes
    -----
    x mu_prefill >= lambda <= y mu_decode, else the state is `UNSTABLE`. What leaves the first pool
    comes to the second at random again (Burke's theorem holds for M/M/k, and nearly beyond).
    """
    out[ROWS.status, d, j] = UNSTABLE
    rate, spread, varied = loads.request_rate[j], loads.length_spread[j], loads.arrival_variation[j]
    prompt = mean_length(loads.input_length[j], spread)
    fresh = max(prompt - loads.prefix[j], 1.0)
    longer = length_variation(spread) * (prompt / fresh) ** 2
    prefill_lanes = prompt_lanes(deployments, d)
    capacity, found, left, ahead, company = prompt_pool(cost, prefill_lanes, rate, varied, longer)
    if rate >= capacity:
        return

    ranks = deployments.ranks[d]
    lanes = ranks * deployments.stages[d]
    answer = mean_length(loads.output_length[j], spread)
    drafted, acceptance = deployments.draft_length[d], deployments.acceptance[d]
    gained = tokens_per_pass(drafted, acceptance)
    answer_passes = max((answer - 1.0) / gained, LEAST_PASSES)
    asked = (0.0, 0.0, mean_context(loads, j))
    most = max(math.floor(running * ranks), 1.0)
    filled, most = fill_chain(
        tables, deployments, d, asked, lanes, rate, answer_passes, most, states
    )
    if filled == 0:
        return
    passes, decoding, idle = 0.0, 0.0, 0.0
    weights, values = work[0], work[1]
    for place in range(filled):
        state = states[place]
        weights[place] = 0.0
        if state[COUNT] > 0.0:
            weights[place] = state[WEIGHT] * state[COUNT] / state[TIME]
        values[place] = state[TIME]
        passes += weights[place]
        decoding += state[WEIGHT] * state[COUNT]
        idle += state[WEIGHT] * max(1.0 - state[COUNT] / lanes, 0.0)
    stay = decoding / passes
    blocked, for_place = 0.0, 0.0
    full = states[filled - 1]
    if full[COUNT] >= most:
        leaving = most / (answer_passes * full[TIME])
        blocked = full[WEIGHT]
        for_place = mean_wait(blocked, leaving, rate, varied, length_variation(spread))

    waited = ahead + left + for_place
    random = ahead + for_place + company
    waits = 1.0 - (1.0 - found) * (1.0 - blocked)
    least = around(deployments, d, prompt) + joining(stay, 1.0 - idle)
    first = least + waited + company + cost[0] + cost[1]
    utilization = max(rate / capacity, 1.0 - idle)
    fill_pools(tables, deployments, d, loads, j, first, stay, rate, waited, utilization, out)

    kept = math.sqrt(WITHIN_STAY * 0.5 * (1.0 + varied))
    speculation = stay * math.sqrt(pass_variation(drafted, acceptance) / answer_passes) / gained
    half_length = 0.5 * (1.0 - spread) * loads.input_length[j] / fresh * cost[1]
    half_answer = 0.5 * (1.0 - spread) * loads.output_length[j] * stay / gained
    for at in range(3):
        level = LEVELS[at]
        uniform = 2.0 * level - 1.0
        later = -random - left
        if level > 1.0 - waits:
            among = (level - 1.0 + waits) / waits
            later += wait_quantile(among, 1.0, random / waits, 2.0 * left / waits)
        side = math.copysign(
            math.hypot(later, uniform * half_length), later + uniform * half_length
        )
        out[ROWS.time_to_first_token_p50 + at, d, j] = max(first + side, least)
        batches = kept * (quantile_of_states(states, values, weights, filled, level) - stay)
        slower = math.copysign(math.hypot(batches, DEVIATIONS[at] * speculation), batches)
        out[ROWS.time_per_output_token_p50 + at, d, j] = (stay + slower) / gained
        gap = quantile_of_states(states, values, weights, filled, level)
        out[ROWS.inter_token_latency_p50 + at, d, j] = gap
        fill_request_quantile(out, d, j, at, answer, half_answer, least)


@jit_lean
def close_closed_pools(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    loads: Loads,
    j: int,
    cost: tuple[float, float, float],
    running: float,
    out: np.ndarray,
) -> None:
    """Fill the variables of two pools among which clients' requests go round.

    Parameters
    ----------
    cost, running
        As of `close_open_pools`.

    Notes
    -----
    C = y b + lambda (wait + prefill + transfer + hosts) with b requests on each of y lanes, which
    leave at lambda = y b / (D t(b)). A prompt meets what the other C - 1 clients make (the arrival
    theorem of mean value analysis: Reiser and Lavenberg 1980). The first requests of all clients
    come at once, and wait for each other.
    """
    clients, spread = loads.concurrency[j], loads.length_spread[j]
    rounds = max(loads.rounds[j], 1.0)
    ranks = deployments.ranks[d]
    lanes = ranks * deployments.stages[d]
    prompt = mean_length(loads.input_length[j], spread)
    fresh = max(prompt - loads.prefix[j], 1.0)
    longer = length_variation(spread) * (prompt / fresh) ** 2
    context = mean_context(loads, j)
    answer = mean_length(loads.output_length[j], spread)
    drafted, acceptance = deployments.draft_length[d], deployments.acceptance[d]
    gained = tokens_per_pass(drafted, acceptance)
    answer_passes = max((answer - 1.0) / gained, LEAST_PASSES)
    prefill_lanes = prompt_lanes(deployments, d)
    least = around(deployments, d, prompt)
    others = (clients - 1.0) / clients

    # Requests that decode: the more there are, the sooner all others must be through their prompts.
    alone = cost[0] + cost[1]
    most = min(running * ranks, clients)
    stay = answer_passes * decode_pass(tables, deployments, d, most / lanes, context)
    high = min(most, clients * stay / (stay + alone + least))
    # Requests that came at once come back at once, spread by their prompts and their answers.
    capacity = prompt_pool(cost, prefill_lanes, 0.0, 1.0, longer)[0]
    together = clients / capacity
    vary = length_variation(spread) + pass_variation(drafted, acceptance) / answer_passes
    dense = mean_density(rounds, together * together / 12.0, stay * stay * vary, stay + alone)
    bunched = min(clients * dense, BUNCHED * capacity)
    low, low_error, high_error = 0.0, 1.0 / (alone + least), -1.0
    own, side = alone, 0
    number = high
    for step in range(50):
        time = decode_pass(tables, deployments, d, number / lanes, context)
        rate = number / (answer_passes * time)
        capacity, _, left, wait, company = prompt_pool(
            cost, prefill_lanes, max(rate, bunched) * others, 1.0, longer
        )
        own = alone + company
        # Speeds, as those are finite: what prompts get, less what is asked of them.
        error = -rate / max(clients - number, CLOSE * clients)
        if rate < capacity:
            error += 1.0 / (wait + left + own + least + joining(time, others))
        if step == 0 and error >= 0.0:
            break
        # False position, where an end that stays counts half (Illinois).
        if error < 0.0:
            high, high_error = number, error
            low_error *= 0.5 if side < 0 else 1.0
            side = -1
        else:
            low, low_error = number, error
            high_error *= 0.5 if side > 0 else 1.0
            side = 1
        if high - low <= CLOSE * high or abs(error) * (alone + least) <= CLOSE:
            break
        number = (low * high_error - high * low_error) / (high_error - low_error)
    number = max(number, CLOSE)
    time = decode_pass(tables, deployments, d, number / lanes, context)
    rate = number / (answer_passes * time)
    least += joining(time, others)
    # What does not decode is in its prompt, on its way, or waits.
    later = clients / rate - answer_passes * time
    waited = max(later - own - least, 0.0)
    later = least + own + waited

    # The first round: prompts of all clients at once, then a place to decode.
    first_share = 1.0 / rounds
    all_through = max(clients / capacity, own)
    place = max(clients - running * ranks, 0.0) / clients * answer_passes * time
    first = least + 0.5 * (alone + all_through) + 0.5 * place * clients / (running * ranks)
    mean = first_share * first + (1.0 - first_share) * later
    request = mean + answer_passes * time
    rate = min(clients / request, capacity)
    utilization = max(rate / capacity, min(number / lanes, 1.0))
    queue = mean - least - own
    fill_pools(
        tables, deployments, d, loads, j, mean, time, rate, max(queue, 0.0), utilization, out
    )

    half_length = 0.5 * (1.0 - spread) * loads.input_length[j] / fresh * cost[1]
    sway = min(min(waited, own) + half_length, later - least)
    share = number / clients
    beside = decode_pass(tables, deployments, d, (number + 1.0) / lanes, context) - time
    batches = beside * math.sqrt(WITHIN_STAY * number * max(1.0 - share, 0.0))
    speculation = time * math.sqrt(pass_variation(drafted, acceptance) / answer_passes) / gained
    half_answer = 0.5 * (1.0 - spread) * loads.output_length[j] * time / gained
    for at in range(3):
        found = mixed_quantile(
            LEVELS[at],
            first_share,
            least + alone,
            least + max(2.0 * (first - least) - alone, alone),
            later - sway,
            later + sway,
        )
        out[ROWS.time_to_first_token_p50 + at, d, j] = found
        slower = DEVIATIONS[at] * math.hypot(batches, speculation)
        out[ROWS.time_per_output_token_p50 + at, d, j] = (time + slower) / gained
        gap = time + DEVIATIONS[at] * batches / math.sqrt(WITHIN_STAY)
        out[ROWS.inter_token_latency_p50 + at, d, j] = gap
        fill_request_quantile(out, d, j, at, answer, half_answer, least)
