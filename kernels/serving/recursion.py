"""Closed loops pass by pass: clients that send a request when the one before has ended."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.serving.admission import blocks_needed, is_closed_loop
from perfmodel.kernels.serving.closed import first_token_width
from perfmodel.kernels.serving.cycle import BEGINNING
from perfmodel.kernels.serving.queues import (
    Histogram,
    add,
    clear,
    mean,
    merge,
    new_histogram,
    quantile,
)
from perfmodel.kernels.serving.rank import (
    CLOCK,
    END,
    HEAD,
    LOG,
    LOGGED,
    MOST,
    NEVER_GIVEN_UP,
    NEXT,
    NOBODY,
    SEQUENCE_SECONDS,
    TOTAL_PASSES,
    TOTALS,
    Limits,
    Rank,
    Requests,
    advance,
    limits_of,
    new_rank,
    new_requests,
    reset,
    send,
)
from perfmodel.kernels.serving.tables import (
    NO_ROOM,
    NO_STAGE_WORK,
    ROWS,
    STABLE,
    Deployments,
    Floats,
    Loads,
    PassTables,
)

LEAST_REQUESTS = 300
"""Loops of fewer requests are run again with them in another order: percentiles of few requests
depend on who met whom."""

LEHMER, MODULUS = 48271, 2147483647
"""Lehmer's generator, which orders lengths (Park, Miller & Stockmeyer, CACM 36(7), 1993)."""

FEWEST_ROUNDS = 4.0
"""Of endless requests of a client so many are counted at least, and as many as `BEGINNING` where
clients are few. Requests of one length repeat soon what they did: of them as few come before."""
ENOUGH_REQUESTS = 2000.0
"""Requests that count, where clients make them endlessly."""
CHANGES_OF_REQUEST = 16
"""Changes of passes per request, on average, beyond which a recursion is given up: requests
that are put back again and again take thousands."""

REQUESTS, INPUTS, OUTPUTS, QUEUED, DURATION, PLACES = range(6)
"""Places in `Tally.sums`: requests, their tokens, seconds in the queue; the time of it all [s]."""


class Tally(NamedTuple):
    """What is known of the requests of all ranks that were run.

    Attributes
    ----------
    first, output, gap, whole : Histogram
        Times to the first token, per output token, between tokens, and of requests [s].
    totals, sums : ndarray
        Sums over passes (`Rank.totals`) and over requests.
    """

    first: Histogram
    output: Histogram
    gap: Histogram
    whole: Histogram
    totals: Floats
    sums: Floats


@jit
def new_tally() -> Tally:
    """Return an empty one."""
    return Tally(
        new_histogram(),
        new_histogram(),
        new_histogram(),
        new_histogram(),
        np.zeros(TOTALS),
        np.zeros(PLACES),
    )


@jit_lean
def clear_tally(tally: Tally) -> None:
    """Forget all."""
    clear(tally.first)
    clear(tally.output)
    clear(tally.gap)
    clear(tally.whole)
    tally.totals[:] = 0.0
    tally.sums[:] = 0.0


@jit_lean
def even_length(longest: float, spread: float, at: float) -> float:
    """Return a whole length in [spread · longest, longest] at a place in [0, 1)."""
    shortest = max(math.floor(spread * longest), 1.0)
    return float(shortest + math.floor(at * (longest - shortest + 1.0)))


@jit_lean
def fill_lengths(lengths: Floats, count: int, longest: float, spread: float, state: int) -> int:
    """Spread so many lengths evenly over their range, in an order of no regularity.

    Always the same for the same state. Even sequences in their own order will not do: a client's
    lengths would add up to more even sums than random ones, and clients stay together longer.

    Returns
    -------
    int
        The next state of the generator, 1 to `MODULUS` - 1.
    """
    for i in range(count):
        lengths[i] = even_length(longest, spread, (i + 0.5) / count)
    for i in range(count - 1, 0, -1):
        state = state * LEHMER % MODULUS
        other = state % (i + 1)
        lengths[i], lengths[other] = lengths[other], lengths[i]
    return state


@jit_lean
def fill_requests(requests: Requests, count: int, loads: Loads, j: int, state: int) -> int:
    """Give so many requests their lengths; return the next state."""
    spread = loads.length_spread[j]
    state = fill_lengths(requests.inputs, count, loads.input_length[j], spread, state)
    state = fill_lengths(requests.outputs, count, loads.output_length[j], spread, state)
    for i in range(count):
        requests.cached[i] = min(math.floor(loads.prefix[j]), requests.inputs[i] - 1.0)
    return state


@jit
def soon(requests: Requests, rank: Rank, longer: float) -> float:
    """Return a time so much longer than it is, by which whoever comes next is there."""
    until = longer * rank.numbers[CLOCK]
    head = rank.counts[HEAD]
    if head != NOBODY:
        until = max(until, requests.ready[head])
    return float(until + 1e-3)


@jit_lean
def run_clients(
    tables: PassTables,
    limits: Limits,
    requests: Requests,
    rank: Rank,
    gaps: Histogram,
    clients: int,
    count: int,
    before: int,
    most: int,
) -> float:
    """Run a closed loop: all clients send at time 0, then each when its request has ended.

    Parameters
    ----------
    clients, count : int
        Requests under way, and all of them.
    before : int
        Requests that are sent before they count: how it ends is left out then, too; 0: all count.
    most : int
        Changes of passes after which it is given up.

    Returns
    -------
    float
        From when on requests that end count [s].
    """
    counts, numbers = rank.counts, rank.numbers
    reset(rank)
    clear(gaps)
    for i in range(clients):
        send(limits, requests, rank, i, 0.0)
    counts[NEXT], counts[END], counts[MOST] = clients, count, most
    if before == 0:
        advance(tables, limits, requests, rank, gaps, math.inf)
        return 0.0
    while counts[NEXT] < before and counts[LOGGED] < most:
        advance(tables, limits, requests, rank, gaps, soon(requests, rank, 1.05))
    since = float(numbers[CLOCK])
    clear(gaps)
    rank.totals[:] = 0.0
    while counts[NEXT] < count and counts[LOGGED] < most:
        advance(tables, limits, requests, rank, gaps, soon(requests, rank, 1.02))
    return since


@jit_lean
def count_requests(
    limits: Limits,
    requests: Requests,
    count: int,
    since: float,
    until: float,
    ranks: float,
    tally: Tally,
) -> None:
    """Add the requests that ended in a time, of so many ranks alike."""
    sums, host = tally.sums, limits.output_host
    for i in range(count):
        last = requests.last[i]
        if last <= since or requests.first[i] < 0.0 or last > until:
            continue
        add(tally.first, requests.first[i] + host - requests.sent[i], ranks)
        add(tally.whole, last + host - requests.sent[i], ranks)
        if requests.outputs[i] > 1.0:
            each = (last - requests.first[i]) / (requests.outputs[i] - 1.0)
            add(tally.output, each, ranks)
        sums[REQUESTS] += ranks
        sums[INPUTS] += ranks * requests.inputs[i]
        sums[OUTPUTS] += ranks * requests.outputs[i]
        sums[QUEUED] += ranks * (requests.started[i] - requests.ready[i])


@jit_lean
def count_passes(rank: Rank, ranks: float, tally: Tally) -> None:
    """Add the passes of so many ranks alike."""
    for place in range(TOTALS):
        tally.totals[place] += ranks * rank.totals[place]


@jit_lean
def write_times(histogram: Histogram, row: int, values: Floats) -> None:
    """Write mean and percentiles from a row on."""
    values[row] = mean(histogram)
    values[row + 1] = quantile(histogram, 0.5)
    values[row + 2] = quantile(histogram, 0.95)
    values[row + 3] = quantile(histogram, 0.99)


@jit_lean
def write_rows(
    tally: Tally, groups: float, ranks: float, devices: float, half_width: float, values: Floats
) -> None:
    """Write all variables of a load on a deployment but its status.

    Parameters
    ----------
    tally : Tally
    groups, ranks, devices : float
        Batches under way at once (ranks in step have one together), attention ranks, and
        devices; of the first two those that have anything to do.
    half_width : float
        Of the band of a pass, relative.
    values : shape (ROWS,)
    """
    write_times(tally.first, ROWS.time_to_first_token_mean, values)
    write_times(tally.output, ROWS.time_per_output_token_mean, values)
    write_times(tally.gap, ROWS.inter_token_latency_mean, values)
    write_times(tally.whole, ROWS.request_time_mean, values)
    sums, totals = tally.sums, tally.totals
    time = sums[DURATION]
    values[ROWS.tokens_per_second_per_device] = sums[OUTPUTS] / time / devices
    both = sums[INPUTS] + sums[OUTPUTS]
    values[ROWS.total_tokens_per_second_per_device] = both / time / devices
    each = values[ROWS.time_per_output_token_mean]
    values[ROWS.tokens_per_second_per_user] = 1.0 / each
    values[ROWS.request_rate] = sums[REQUESTS] / time
    values[ROWS.batch] = totals[SEQUENCE_SECONDS] / time / ranks
    values[ROWS.queue_time] = sums[QUEUED] / sums[REQUESTS]
    values[ROWS.utilization] = totals[0] / time / groups
    for part in range(6):
        values[ROWS.attention_time + part] = totals[1 + part] / totals[TOTAL_PASSES]
    first, band = values[ROWS.time_to_first_token_mean], 1.0 + half_width
    values[ROWS.time_to_first_token_low] = first / band
    values[ROWS.time_to_first_token_high] = first * band
    values[ROWS.time_per_output_token_low] = each / band
    values[ROWS.time_per_output_token_high] = each * band


LOGGED_ENTRIES, SINCE, UNTIL, ALIKE, ABOUT = range(5)
"""Places in what is said of a log: entries that all of it takes, what of it counts [s], and how
many batches do the same."""


def no_log() -> tuple[Floats, Floats]:
    """Return the last arguments of `recurse_points` where no passes are kept."""
    return np.zeros((2, LOG, 0)), np.zeros((2, ABOUT))


@jit
def recurse_points(
    tables: PassTables,
    deployments: Deployments,
    loads: Loads,
    out: Floats,
    log: Floats,
    about: Floats,
) -> None:
    """Run closed loops on deployments pass by pass.

    Requests divide evenly among the batches under way; of those that have one request more
    and those that have one less, one of each is run, and counts as often as there are such.

    Parameters
    ----------
    tables : PassTables
    deployments, loads : Deployments, Loads
    out : shape (ROWS, deployment, load)
        Is filled. NaN where the load is an open loop (a trace, `replay`, tells) or the
        deployment has two pools.
    log : shape (2, LOG, entries)
        Receives the passes of the last point (`perfmodel.kernels.serving.rank.Rank.log`): of a
        batch with as many clients as others at least, and of one that has one more; where lengths
        are run in several orders, of the first. Without entries none.
    about : shape (2, ABOUT)
        Receives what is to be said of both; zeros where there is no such batch.
    """
    out[:] = math.nan
    chosen = np.ones(out.shape[1:], np.bool_)
    recurse_chosen(tables, deployments, loads, out, log, about, chosen, False)


@jit
def recurse_chosen(
    tables: PassTables,
    deployments: Deployments,
    loads: Loads,
    out: Floats,
    log: Floats,
    about: Floats,
    chosen: NDArray[np.bool_],
    bounded: bool,
) -> None:
    """Run some of them.

    Parameters
    ----------
    tables, deployments, loads, log, about
        As of `recurse_points`.
    out : shape (ROWS, deployment, load)
        Is filled for those that are chosen.
    chosen : shape (deployment, load)
        Points to run. False afterwards where nothing was filled: open loops, two pools, and what
        was given up.
    bounded : bool
        Give up what takes more than `CHANGES_OF_REQUEST`.
    """
    tally, gaps, entries = new_tally(), new_histogram(), log.shape[2]
    requests, rank = new_requests(0), new_rank(0, entries)
    for d in range(deployments.layout.size):
        limits = limits_of(deployments, d)
        groups = deployments.ranks[d] * deployments.stages[d] / limits.ranks
        for j in range(loads.concurrency.size):
            if not is_closed_loop(loads, j) or deployments.prefill_layout[d] >= 0:
                chosen[d, j] = False
            if not chosen[d, j]:
                continue
            values = out[:, d, j]
            if not holds_longest(deployments, d, loads, j):
                values[:] = math.nan
                values[ROWS.status] = NO_ROOM
                continue
            fewer = max(int(loads.concurrency[j] / groups), 1)
            # One more client may make fewer requests, where they are endless.
            most = max(requests_of(loads, j, fewer)[0], requests_of(loads, j, fewer + 1)[0])
            if most > requests.inputs.size:
                requests, rank = new_requests(most), new_rank(most, entries)
            clear_tally(tally)
            about[:] = 0.0
            changes = CHANGES_OF_REQUEST * max(most, LEAST_REQUESTS) if bounded else NEVER_GIVEN_UP
            chosen[d, j] = recurse_point(
                tables, limits, groups, loads, j, requests, rank, gaps, tally, log, about, changes
            )
            if not chosen[d, j]:
                continue
            half_width, devices = tables.half_width[limits.layout], deployments.devices[d]
            ranks = min(deployments.ranks[d], loads.concurrency[j])
            busy = min(groups, loads.concurrency[j])
            write_rows(tally, busy, ranks, devices, half_width, values)
            wide = first_token_width(half_width)
            first = values[ROWS.time_to_first_token_mean]
            values[ROWS.time_to_first_token_low] = first / wide
            values[ROWS.time_to_first_token_high] = first * wide
            enough = loads.concurrency[j] >= deployments.ranks[d]
            values[ROWS.status] = STABLE if enough else NO_STAGE_WORK


@jit_lean
def holds_longest(deployments: Deployments, d: int, loads: Loads, j: int) -> bool:
    """Tell whether the cache holds the longest request of a load."""
    tokens = loads.input_length[j] + loads.output_length[j] + deployments.draft_length[d]
    blocks = blocks_needed(
        tokens,
        deployments.block_tokens[d],
        deployments.state_blocks[d],
        deployments.window_tokens[d],
    )
    return bool(blocks <= deployments.blocks[d])


@jit_lean
def requests_of(loads: Loads, j: int, clients: int) -> tuple[int, int]:
    """Return how many requests so many clients make, and how many of them do not count."""
    if loads.rounds[j] < math.inf:
        return max(math.ceil(clients * loads.rounds[j]), clients), 0
    counted = max(min(math.ceil(ENOUGH_REQUESTS / clients), BEGINNING), FEWEST_ROUNDS)
    before = BEGINNING if loads.length_spread[j] < 1.0 else counted
    return int(clients * (before + counted)), int(clients * before)


@jit_lean
def recurse_point(
    tables: PassTables,
    limits: Limits,
    groups: float,
    loads: Loads,
    j: int,
    requests: Requests,
    rank: Rank,
    gaps: Histogram,
    tally: Tally,
    log: Floats,
    about: Floats,
    most: int,
) -> bool:
    """Run one load on batches of which there are so many; tell whether it was not given up."""
    fewer = int(loads.concurrency[j] / groups)
    longer = loads.concurrency[j] - fewer * groups  # have one more
    runs = 1
    if loads.length_spread[j] < 1.0:
        runs = math.ceil(LEAST_REQUESTS / requests_of(loads, j, max(fewer, 1))[0])
    state = 1
    for run in range(runs):
        duration = 0.0
        for clients in range(max(fewer, 1), fewer + 2):
            alike = longer if clients > fewer else groups - longer
            if alike <= 1e-9 * groups:
                continue
            count, before = requests_of(loads, j, clients)
            state = fill_requests(requests, count, loads, j, state)
            since = run_clients(tables, limits, requests, rank, gaps, clients, count, before, most)
            if rank.counts[LOGGED] >= most:
                return False
            until = rank.numbers[CLOCK]
            if run == 0:
                place = 0 if clients == max(fewer, 1) else 1
                for entry in range(min(rank.counts[LOGGED], log.shape[2])):
                    for row in range(LOG):
                        log[place, row, entry] = rank.log[row, entry]
                about[place, LOGGED_ENTRIES] = rank.counts[LOGGED]
                about[place, SINCE], about[place, UNTIL] = since, until
                about[place, ALIKE] = alike
            count_requests(limits, requests, count, since, until, alike / runs, tally)
            count_passes(rank, alike / runs, tally)
            merge(tally.gap, gaps, alike / runs)
            duration = max(duration, until + limits.output_host - since)
        tally.sums[DURATION] += duration / runs
    return True
