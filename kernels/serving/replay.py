"""Requests of a trace pass by pass: assigned to ranks, prompts looked up in each rank's cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.serving.queues import Histogram, merge, new_histogram
from perfmodel.kernels.serving.rank import (
    CLOCK,
    COUNTS,
    HEAD,
    LOGGED,
    MOST,
    NEVER_GIVEN_UP,
    NEWEST,
    NOBODY,
    NUMBERS,
    TAIL,
    TOTALS,
    UNDER_WAY,
    Limits,
    Rank,
    Requests,
    advance,
    limits_of,
    new_rank,
    new_requests,
    send,
)
from perfmodel.kernels.serving.recursion import (
    DURATION,
    count_passes,
    count_requests,
    new_tally,
    run_clients,
    write_rows,
)
from perfmodel.kernels.serving.tables import ROWS, STABLE, Deployments, Floats, Integers, PassTables

ROUND_ROBIN, LEAST_LOADED = range(2)
DISPATCHES = ("round_robin", "least_loaded")
"""Requests go to ranks in turn, or to the one with the fewest under way."""

OLDEST, LATEST, HELD_BLOCKS, ENDS = range(4)
"""Places in `Cache.ends`: the ends of the list by use, and how many blocks it holds."""


class Prompts(NamedTuple):
    """What prompts consist of, where it is known.

    Attributes
    ----------
    starts : shape (request + 1,)
        Where in `blocks` the blocks of each begin and end.
    blocks : shape (any,)
        Numbers of blocks, each for its tokens and all before them, from 0 on.
    block_tokens : float
        Tokens of each; the last of a prompt may have fewer.
    """

    starts: Integers
    blocks: Integers
    block_tokens: float


class Cache(NamedTuple):
    """Blocks that were used last, per cache: when it is full, the one unused for longest goes.

    Attributes
    ----------
    older, newer : shape (cache, block)
        Neighbours in the order of use; `NOBODY` at its ends.
    held : shape (cache, block)
        Whether a block is there.
    ends : shape (cache, ENDS)
    capacity : float
        Blocks of each cache.
    """

    older: Integers
    newer: Integers
    held: np.ndarray
    ends: Integers
    capacity: float


@jit
def new_caches(count: int, blocks: int, capacity: float) -> Cache:
    """Return so many empty ones for numbers of blocks below a limit."""
    ends = np.full((count, ENDS), NOBODY)
    ends[:, HELD_BLOCKS] = 0
    return Cache(
        np.full((count, blocks), NOBODY),
        np.full((count, blocks), NOBODY),
        np.zeros((count, blocks), np.bool_),
        ends,
        capacity,
    )


@jit_lean
def forget(cache: Cache, r: int, block: int) -> None:
    """Take a block out of the order of use."""
    older, newer = cache.older[r, block], cache.newer[r, block]
    if older == NOBODY:
        cache.ends[r, OLDEST] = newer
    else:
        cache.newer[r, older] = newer
    if newer == NOBODY:
        cache.ends[r, LATEST] = older
    else:
        cache.older[r, newer] = older
    cache.held[r, block] = False
    cache.ends[r, HELD_BLOCKS] -= 1


@jit_lean
def use(cache: Cache, r: int, block: int) -> None:
    """Make a block the last used; the one unused for longest goes where there is no room."""
    if cache.held[r, block]:
        forget(cache, r, block)
    elif cache.ends[r, HELD_BLOCKS] + 1 > cache.capacity:
        if cache.ends[r, OLDEST] == NOBODY:
            return
        forget(cache, r, cache.ends[r, OLDEST])
    latest = cache.ends[r, LATEST]
    cache.older[r, block], cache.newer[r, block] = latest, NOBODY
    if latest == NOBODY:
        cache.ends[r, OLDEST] = block
    else:
        cache.newer[r, latest] = block
    cache.ends[r, LATEST] = block
    cache.held[r, block] = True
    cache.ends[r, HELD_BLOCKS] += 1


@jit_lean
def look_up(cache: Cache, prompts: Prompts, r: int, i: int, tokens: float) -> float:
    """Return the tokens of a prompt that a rank's cache holds; from now on it holds them all.

    The last token is computed in any case: it gives the first of the answer. The end of a
    prompt is used before its beginning, so that it goes first.
    """
    first, last = prompts.starts[i], prompts.starts[i + 1]
    held = first
    while held < last and cache.held[r, prompts.blocks[held]]:
        held += 1
    for at in range(last - 1, first - 1, -1):
        use(cache, r, prompts.blocks[at])
    return float(max(min((held - first) * prompts.block_tokens, tokens - 1.0), 0.0))


class Ranks(NamedTuple):
    """Memory of ranks, as of `Rank` with an axis of ranks ahead."""

    numbers: Floats
    counts: Integers
    heap: Integers
    partial: Integers
    fresh: Integers
    group_sizes: Floats
    group_times: Floats
    totals: Floats
    log: Floats


@jit
def new_ranks(ranks: int, most: int, log: Floats) -> Ranks:
    """Return memory for ranks with so many requests at once, idle at time 0.

    Parameters
    ----------
    ranks, most : int
    log : shape (rank, LOG, entries)
    """
    counts = np.zeros((ranks, COUNTS), np.int64)
    counts[:, MOST] = NEVER_GIVEN_UP
    counts[:, HEAD] = counts[:, TAIL] = counts[:, NEWEST] = NOBODY
    return Ranks(
        np.zeros((ranks, NUMBERS)),
        counts,
        np.zeros((ranks, most), np.int64),
        np.zeros((ranks, most), np.int64),
        np.zeros((ranks, most), np.int64),
        np.zeros((ranks, most + 1)),
        np.zeros((ranks, most + 1)),
        np.zeros((ranks, TOTALS)),
        log,
    )


@jit_lean
def step_rank(
    tables: PassTables,
    limits: Limits,
    requests: Requests,
    ranks: Ranks,
    r: int,
    gaps: Histogram,
    until: float,
    i: int,
) -> None:
    """Run passes of a rank until a time, then send it a request (`NOBODY`: none)."""
    rank = Rank(
        ranks.numbers[r],
        ranks.counts[r],
        ranks.heap[r],
        ranks.partial[r],
        ranks.fresh[r],
        ranks.group_sizes[r],
        ranks.group_times[r],
        ranks.totals[r],
        ranks.log[r],
    )
    advance(tables, limits, requests, rank, gaps, until)
    if i != NOBODY:
        send(limits, requests, rank, i, requests.sent[i])


@jit_lean
def least_loaded(ranks: Ranks, after: int) -> int:
    """Return the rank with the fewest requests under way, the first after one among equals."""
    count = ranks.counts.shape[0]
    best = (after + 1) % count
    for step in range(2, count + 1):
        r = (after + step) % count
        if ranks.counts[r, UNDER_WAY] < ranks.counts[best, UNDER_WAY]:
            best = r
    return int(best)


@jit_lean
def run_trace(
    tables: PassTables,
    limits: Limits,
    requests: Requests,
    arrivals: Floats,
    prompts: Prompts,
    cache: Cache,
    ranks: Ranks,
    dispatch: int,
    gaps: Histogram,
    lanes: Integers,
) -> None:
    """Run requests that come at given times, in their order.

    Parameters
    ----------
    arrivals : shape (request,)
        When clients send them, from 0 on and never falling [s].
    dispatch : int
        Position in `DISPATCHES`.
    lanes : shape (request,)
        Receives the rank of each.
    """
    count = ranks.counts.shape[0]
    r = count - 1
    for i in range(arrivals.size):
        if dispatch == LEAST_LOADED and count > 1:
            for other in range(count):
                step_rank(tables, limits, requests, ranks, other, gaps, arrivals[i], NOBODY)
            r = least_loaded(ranks, r)
        else:
            r = (r + 1) % count
        lanes[i] = r
        if prompts.blocks.size > 0:
            kept = r % cache.ends.shape[0]  # batches that stages have under way share one
            requests.cached[i] = look_up(cache, prompts, kept, i, requests.inputs[i])
        requests.sent[i] = arrivals[i]
        step_rank(tables, limits, requests, ranks, r, gaps, 0.0, i)
    for r in range(count):
        step_rank(tables, limits, requests, ranks, r, gaps, np.inf, NOBODY)


@jit_lean
def write_request(
    limits: Limits, requests: Requests, i: int, place: int, lane: int, columns: Floats
) -> None:
    """Write what became of a request into the columns of `COLUMN_NAMES`."""
    first = requests.first[i] + limits.output_host
    last = requests.last[i] + limits.output_host
    columns[0, place] = first - requests.sent[i]
    columns[1, place] = np.nan
    if requests.outputs[i] > 1.0:
        columns[1, place] = (last - first) / (requests.outputs[i] - 1.0)
    columns[2, place] = last
    columns[3, place] = requests.started[i] - requests.ready[i]
    columns[4, place] = requests.cached[i]
    columns[5, place] = lane


@jit
def replay_requests(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    arrivals: Floats,
    inputs: Floats,
    outputs: Floats,
    prompts: Prompts,
    capacity: float,
    dispatch: int,
    columns: Floats,
    values: Floats,
    log: Floats,
    logged: Integers,
) -> None:
    """Replay a trace on a deployment.

    Parameters
    ----------
    tables : PassTables
    deployments : Deployments
    d : int
        Which of them.
    arrivals, inputs, outputs : shape (request,)
        When clients send requests, from 0 on and never falling [s], and tokens of prompts and
        answers.
    prompts : Prompts
        Empty where nothing is known of what prompts have in common.
    capacity : float
        Blocks of `prompts` that the cache of a rank holds.
    dispatch : int
        Position in `DISPATCHES`.
    columns : shape (COLUMNS, request)
        Receives the columns of `COLUMN_NAMES`.
    values : shape (ROWS,)
        Receives the variables over all requests.
    log : shape (lanes, LOG, entries)
        Receives the passes of every batch under way (`Rank.log`); without entries none.
    logged : shape (lanes,)
        Receives how many entries all of them take.
    """
    limits = limits_of(deployments, d)
    lanes = logged.size
    count = arrivals.size
    requests, tally = new_requests(count), new_tally()
    requests.inputs[:] = inputs
    requests.outputs[:] = outputs
    most = int(min(limits.sequences, count))
    ranks = new_ranks(lanes, most, log)
    distinct = prompts.blocks.max() + 1 if prompts.blocks.size else 0
    caches = max(int(deployments.ranks[d] / limits.ranks), 1)
    cache = new_caches(caches, distinct, capacity * limits.ranks)
    assigned = np.zeros(count, np.int64)
    run_trace(
        tables, limits, requests, arrivals, prompts, cache, ranks, dispatch, tally.gap, assigned
    )
    logged[:] = ranks.counts[:, LOGGED]
    until = ranks.numbers[:, CLOCK].max()
    count_requests(limits, requests, count, 0.0, until, 1.0, tally)
    tally.totals[:] = ranks.totals.sum(axis=0)
    tally.sums[DURATION] = until + limits.output_host
    for i in range(count):
        write_request(limits, requests, i, i, assigned[i], columns)
    half_width, devices = tables.half_width[limits.layout], deployments.devices[d]
    write_rows(tally, float(lanes), deployments.ranks[d], devices, half_width, values)
    values[ROWS.status] = STABLE


@jit
def replay_clients(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    clients: int,
    inputs: Floats,
    outputs: Floats,
    columns: Floats,
    values: Floats,
    log: Floats,
    logged: Integers,
) -> None:
    """Let clients send requests of given lengths, each when the one before has ended.

    Requests are assigned to ranks in turn, and so are clients.

    Parameters
    ----------
    tables, deployments, d
        As of `replay_requests`.
    clients : int
        Requests under way at once.
    inputs, outputs : shape (request,)
        Tokens of prompts and answers.
    columns, values, log, logged
        As of `replay_requests`.
    """
    limits = limits_of(deployments, d)
    lanes = min(logged.size, clients)
    total = inputs.size
    most = (total + lanes - 1) // lanes
    requests, rank = new_requests(most), new_rank(most, log.shape[2])
    tally, gaps = new_tally(), new_histogram()
    for lane in range(lanes):
        count = (total - lane + lanes - 1) // lanes
        for i in range(count):
            requests.inputs[i] = inputs[lane + i * lanes]
            requests.outputs[i] = outputs[lane + i * lanes]
        share = min((clients - lane + lanes - 1) // lanes, count)
        run_clients(tables, limits, requests, rank, gaps, share, count, 0, NEVER_GIVEN_UP)
        count_requests(limits, requests, count, 0.0, rank.numbers[CLOCK], 1.0, tally)
        count_passes(rank, 1.0, tally)
        log[lane] = rank.log
        logged[lane] = rank.counts[LOGGED]
        merge(tally.gap, gaps, 1.0)
        time = rank.numbers[CLOCK] + limits.output_host
        tally.sums[DURATION] = max(tally.sums[DURATION], time)
        for i in range(count):
            write_request(limits, requests, i, lane + i * lanes, lane, columns)
    half_width, devices = tables.half_width[limits.layout], deployments.devices[d]
    ranks = min(deployments.ranks[d], float(clients))
    write_rows(tally, float(lanes), ranks, devices, half_width, values)
    values[ROWS.status] = STABLE


COLUMNS = 6
COLUMN_NAMES = (
    "time_to_first_token",
    "time_per_output_token",
    "finish_time",
    "queue_time",
    "cached_tokens",
    "rank",
)
"""What is told of each request: times in seconds; `finish_time` counts as arrivals do."""
