"""Attention ranks pass by pass: whose prompt runs, who decodes, who waits, who is put back.

Nothing is drawn and no events are kept: a pass follows the pass before it. While only decoding
goes on, all passes until something changes are one step. Closed loops (`recursion`) and traces
(`replay`) run through here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.events import push, remove
from perfmodel.kernels.serving.admission import MOST_SET_ASIDE, SET_ASIDE, blocks_needed
from perfmodel.kernels.serving.passes import pass_times, position
from perfmodel.kernels.serving.queues import Histogram, add
from perfmodel.kernels.serving.tables import (
    FUSED,
    PREEMPT,
    RESERVE,
    Deployments,
    Floats,
    Integers,
    PassTables,
)

NOBODY = -1
ID_BITS = 26
"""Of an entry of the heap the lower bits say which request, the upper when it ends."""

CLOCK, KEPT, TO_COME, HELD, TOKEN_TIME, CREDIT, NUMBERS = range(7)
"""Places in `Rank.numbers`: time; tokens that decoding sequences keep, and are still to give;
blocks set aside for others (for all, where whole answers are); when decoding last gave tokens;
shares of a pass of decoding that ranks in step did while others ran prompts."""

(
    *(DECODING, PASSES, PARTIAL, GROUPS, HEAD, TAIL, NEWEST, NEXT, END, UNDER_WAY, LOGGED, MOST),
    COUNTS,
) = range(13)
"""Places in `Rank.counts`: sequences that decode; passes that decoded so far; prompts begun, and
groups, of which the arrays tell; ends of the queue; the last admitted of those that decode; in
a closed loop the next request to be sent, and how many there are; requests sent and not ended;
entries of the log, those for which it had no room included, and with how many it is given up."""
NEVER_GIVEN_UP = 1 << 62

TOTAL_PASSES, SEQUENCE_SECONDS, TOTALS = 7, 8, 9
"""Places in `Rank.totals`, after those of the parts of `pass_times`."""

START, SAME_PASSES, TIME, PROMPTS, CHUNK, BATCH, BLOCKS, PARTS_FROM = range(8)
LOG = PARTS_FROM + 6
"""Places in `Rank.log`: when passes alike begin, how many there are and what each takes [s];
prompts in each of them, and tokens of each of their chunks; sequences that decode; blocks of the
cache in use as they begin; and, from the last place on, what `pass_times` says one consists of."""


class Limits(NamedTuple):
    """What a rank may do; of ranks in step what all of them may."""

    layout: int
    scheduler: int
    admission: int
    ranks: float  # in step
    token_budget: float  # of each of them
    sequences: float
    blocks: float
    block_tokens: float
    state_blocks: float
    window_tokens: float
    drafted: float
    pass_tokens: float  # that a sequence is given in a pass, on average
    request_host: float
    token_host: float
    output_host: float


class Requests(NamedTuple):
    """Requests as columns, shape (request,) each.

    Attributes
    ----------
    inputs, outputs, cached
        Tokens of the prompt and of the answer, and tokens of the prompt that the cache holds.
    sent, ready
        When its client sends it, and when the scheduler has it [s].
    started, first, last
        When its first chunk starts; ends of the passes of its first and last token [s].
    done
        Tokens of its prompt that are computed, beside those of the cache.
    given
        Tokens it was given by the time it (again) began to decode.
    following
        The next in the queue.
    older, newer
        Who was admitted before and after it, of those that decode.
    """

    inputs: Floats
    outputs: Floats
    cached: Floats
    sent: Floats
    ready: Floats
    started: Floats
    first: Floats
    last: Floats
    done: Floats
    given: Floats
    following: Integers
    older: Integers
    newer: Integers


class Rank(NamedTuple):
    """Where a rank, or ranks in step, stand.

    Attributes
    ----------
    numbers, counts
        See the places above.
    heap
        Requests that decode; the first ends first.
    partial, fresh
        Requests whose prompt has begun; those whose prompt the pass under way completes.
    group_sizes, group_times
        Requests that began to decode while it waited for prompts, and when they did [s].
    totals
        Sums over passes.
    log : shape (LOG, entries)
        Passes, those alike that follow each other as one; without entries nothing is kept.
    """

    numbers: Floats
    counts: Integers
    heap: Integers
    partial: Integers
    fresh: Integers
    group_sizes: Floats
    group_times: Floats
    totals: Floats
    log: Floats


@jit_lean
def limits_of(deployments: Deployments, d: int) -> Limits:
    """Return the limits of one of the batches under way on the ranks of a deployment in step."""
    drafted, alpha = deployments.draft_length[d], deployments.acceptance[d]
    tokens = 1.0 + drafted
    if alpha < 1.0:
        tokens = (1.0 - alpha ** (1.0 + drafted)) / (1.0 - alpha)
    ranks = max(deployments.lockstep_ranks[d], 1.0)
    sequences = math.floor(deployments.max_sequences[d] / deployments.stages[d])
    budget = deployments.token_budget[d]
    if deployments.scheduler[d] == FUSED:
        sequences = min(sequences, math.floor(budget / (1.0 + drafted)))
    return Limits(
        deployments.layout[d],
        deployments.scheduler[d],
        deployments.admission[d],
        ranks,
        budget,
        ranks * max(sequences, 1.0),
        ranks * deployments.blocks[d] / deployments.stages[d],
        deployments.block_tokens[d],
        deployments.state_blocks[d],
        deployments.window_tokens[d],
        drafted,
        tokens,
        deployments.request_host[d],
        deployments.token_host[d],
        deployments.output_host[d],
    )


@jit
def new_requests(count: int) -> Requests:
    """Return memory for requests."""
    numbers = np.zeros((10, count))
    links = np.full((3, count), NOBODY)
    return Requests(
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
        numbers[9],
        links[0],
        links[1],
        links[2],
    )


@jit
def new_rank(most: int, entries: int) -> Rank:
    """Return memory for a rank, idle at time 0, with so many requests and entries of its log."""
    rank = Rank(
        np.zeros(NUMBERS),
        np.zeros(COUNTS, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most + 1),
        np.zeros(most + 1),
        np.zeros(TOTALS),
        np.zeros((LOG, entries)),
    )
    reset(rank)
    return rank


@jit_lean
def reset(rank: Rank) -> None:
    """Make a rank idle at time 0."""
    rank.numbers[:] = 0.0
    rank.totals[:] = 0.0
    rank.counts[:] = 0
    rank.counts[MOST] = NEVER_GIVEN_UP
    rank.counts[HEAD] = rank.counts[TAIL] = rank.counts[NEWEST] = NOBODY


@jit_lean
def send(limits: Limits, requests: Requests, rank: Rank, i: int, time: float) -> None:
    """Let a client send a request: it goes through the host into the queue."""
    requests.sent[i] = time
    requests.ready[i] = time + limits.request_host + limits.token_host * requests.inputs[i]
    requests.started[i] = requests.first[i] = requests.last[i] = -1.0
    requests.done[i] = requests.given[i] = 0.0
    requests.following[i] = NOBODY
    rank.counts[UNDER_WAY] += 1
    tail = rank.counts[TAIL]
    if tail == NOBODY:
        rank.counts[HEAD] = i
    else:
        requests.following[tail] = i
    rank.counts[TAIL] = i


@jit_lean
def take_head(requests: Requests, rank: Rank) -> int:
    """Take the first out of the queue."""
    i = rank.counts[HEAD]
    rank.counts[HEAD] = requests.following[i]
    if requests.following[i] == NOBODY:
        rank.counts[TAIL] = NOBODY
    return int(i)


@jit_lean
def put_ahead(requests: Requests, rank: Rank, i: int) -> None:
    """Put a request at the head of the queue, its prompt to be computed again."""
    requests.done[i] = 0.0
    requests.following[i] = rank.counts[HEAD]
    if rank.counts[HEAD] == NOBODY:
        rank.counts[TAIL] = i
    rank.counts[HEAD] = i


@jit_lean
def own_blocks(limits: Limits, requests: Requests, i: int) -> float:
    """Return the blocks set aside for a request: for its whole answer, or for its prompt."""
    tokens = requests.inputs[i] + requests.given[i]
    if limits.admission == RESERVE:
        tokens = requests.inputs[i] + requests.outputs[i]
    return blocks_needed(
        tokens + limits.drafted, limits.block_tokens, limits.state_blocks, limits.window_tokens
    )


@jit_lean
def used_blocks(limits: Limits, kept: float, decoding: float) -> float:
    """Return the blocks of sequences that decode, half of the last of each filled."""
    if decoding <= 0.0:
        return 0.0
    each = min(kept / decoding, limits.window_tokens) + 0.5 * (limits.block_tokens - 1.0)
    return decoding * (each / limits.block_tokens + limits.state_blocks)


@jit_lean
def fits(limits: Limits, requests: Requests, rank: Rank, i: int) -> bool:
    """Tell whether the cache has blocks for a request beside those that run."""
    taken = rank.numbers[HELD]
    needed = own_blocks(limits, requests, i)
    if limits.admission == RESERVE and limits.ranks > 1.0:
        # What is left over on each of the ranks in step holds nobody.
        each = limits.blocks / limits.ranks
        taken += limits.ranks * (each - needed * max(math.floor(each / needed), 1.0))
    if limits.admission != RESERVE:
        taken += used_blocks(limits, rank.numbers[KEPT], rank.counts[DECODING])
        if limits.admission != PREEMPT:
            taken += SET_ASIDE * rank.numbers[TO_COME] / limits.block_tokens
            rest = min(requests.outputs[i] - requests.given[i], MOST_SET_ASIDE)
            needed += rest / limits.block_tokens
    return bool(taken + needed <= limits.blocks)


@jit_lean
def passes_left(limits: Limits, requests: Requests, i: int) -> int:
    """Return how many passes give a request the rest of its answer."""
    left = requests.outputs[i] - requests.given[i]
    return math.ceil(left / limits.pass_tokens - 1e-9)


@jit_lean
def unlink(requests: Requests, rank: Rank, i: int) -> None:
    """Take a request out of those that decode."""
    older, newer = requests.older[i], requests.newer[i]
    if older != NOBODY:
        requests.newer[older] = newer
    if newer != NOBODY:
        requests.older[newer] = older
    else:
        rank.counts[NEWEST] = older
    rank.counts[DECODING] -= 1
    if rank.counts[DECODING] == 0:
        rank.numbers[KEPT] = rank.numbers[TO_COME] = 0.0


@jit_lean
def begin(limits: Limits, requests: Requests, rank: Rank, i: int, gaps: Histogram) -> None:
    """Give a request the token of its prompt, and let it decode."""
    counts, numbers = rank.counts, rank.numbers
    if requests.first[i] < 0.0:
        requests.first[i] = numbers[CLOCK]
    else:
        add(gaps, numbers[CLOCK] - requests.last[i], 1.0)
    if limits.admission != RESERVE:
        numbers[HELD] -= own_blocks(limits, requests, i)
    requests.given[i] += 1.0
    passes = passes_left(limits, requests, i)
    if passes <= 0:
        end(limits, requests, rank, i)
        return
    push(rank.heap, counts[DECODING], ((counts[PASSES] + passes) << ID_BITS) | i)
    counts[DECODING] += 1
    requests.older[i], requests.newer[i] = counts[NEWEST], NOBODY
    if counts[NEWEST] != NOBODY:
        requests.newer[counts[NEWEST]] = i
    counts[NEWEST] = i
    numbers[KEPT] += requests.inputs[i] + requests.given[i]
    numbers[TO_COME] += passes * limits.pass_tokens


@jit_lean
def end(limits: Limits, requests: Requests, rank: Rank, i: int) -> None:
    """Let a request end; in a closed loop its client sends the next one."""
    requests.last[i] = rank.numbers[CLOCK]
    rank.counts[UNDER_WAY] -= 1
    if limits.admission == RESERVE:
        rank.numbers[HELD] -= own_blocks(limits, requests, i)
    following = rank.counts[NEXT]
    if following < rank.counts[END]:
        rank.counts[NEXT] += 1
        send(limits, requests, rank, following, rank.numbers[CLOCK] + limits.output_host)


@jit_lean
def end_due(limits: Limits, requests: Requests, rank: Rank) -> None:
    """Let all requests end whose last pass is over."""
    counts, heap = rank.counts, rank.heap
    while counts[DECODING] > 0 and heap[0] >> ID_BITS <= counts[PASSES]:
        i = heap[0] & ((1 << ID_BITS) - 1)
        remove(heap, counts[DECODING], 0)
        passes = passes_left(limits, requests, i)
        rank.numbers[KEPT] -= requests.inputs[i] + requests.given[i] + passes * limits.pass_tokens
        unlink(requests, rank, i)
        end(limits, requests, rank, i)


@jit_lean
def put_back(limits: Limits, requests: Requests, rank: Rank) -> None:
    """Take the blocks of the last one admitted: it waits, and all its tokens run again."""
    counts, numbers, heap = rank.counts, rank.numbers, rank.heap
    if counts[PARTIAL] > 0:
        counts[PARTIAL] -= 1
        i = rank.partial[counts[PARTIAL]]
        numbers[HELD] -= own_blocks(limits, requests, i)
        put_ahead(requests, rank, i)
        return
    i = counts[NEWEST]
    at = 0
    while heap[at] & ((1 << ID_BITS) - 1) != i:
        at += 1
    left = (heap[at] >> ID_BITS) - counts[PASSES]
    given = (passes_left(limits, requests, i) - left) * limits.pass_tokens
    remove(heap, counts[DECODING], at)
    numbers[KEPT] -= requests.inputs[i] + requests.given[i] + given
    numbers[TO_COME] -= left * limits.pass_tokens
    unlink(requests, rank, i)
    requests.given[i] = min(requests.given[i] + math.floor(given), requests.outputs[i] - 1.0)
    requests.last[i] = numbers[TOKEN_TIME]
    put_ahead(requests, rank, i)


@jit_lean
def make_room(limits: Limits, requests: Requests, rank: Rank) -> bool:
    """Put requests back until the next pass has blocks; tell whether it had."""
    if limits.admission == RESERVE:
        return True
    numbers, counts = rank.numbers, rank.counts
    enough = True
    while counts[DECODING] + counts[PARTIAL] > 1 and counts[DECODING] > 0:
        kept = numbers[KEPT] + counts[DECODING] * limits.pass_tokens
        if used_blocks(limits, kept, counts[DECODING]) + numbers[HELD] <= limits.blocks:
            break
        put_back(limits, requests, rank)
        enough = False
    return enough


@jit_lean
def chunk_room(limits: Limits, decoding: int) -> float:
    """Return the tokens of prompts for which a pass of a rank has room beside those that decode."""
    if limits.scheduler != FUSED:
        return limits.token_budget
    beside = math.ceil(decoding / limits.ranks) * (1.0 + limits.drafted)
    return max(limits.token_budget - beside, 0.0)


@jit_lean
def take_prompts(
    limits: Limits, requests: Requests, rank: Rank, admitting: bool
) -> tuple[int, int, float, float, float]:
    """Choose the chunks of prompts of the next pass.

    Returns
    -------
    prompts, completed : int
        How many, and how many of them are completed: the first of `rank.fresh`.
    tokens, longest : float
        Of all chunks, and of the longest.
    pairs : float
        Tokens of chunks times tokens that they see ahead, half of their own chunk included.
    """
    counts, numbers = rank.counts, rank.numbers
    each = chunk_room(limits, counts[DECODING])
    room = limits.ranks * each
    prompts, completed, kept = 0, 0, 0
    tokens, longest, pairs = 0.0, 0.0, 0.0
    begun = counts[PARTIAL]
    at = 0
    while room >= 1.0 and (at < begun or admitting):
        if at < begun:
            i = rank.partial[at]
            at += 1
        else:
            i = counts[HEAD]
            if i == NOBODY or requests.ready[i] > numbers[CLOCK]:
                break
            running = counts[DECODING] + kept + completed
            if running >= limits.sequences:
                break
            if running > 0 and not fits(limits, requests, rank, i):
                break
            take_head(requests, rank)
            numbers[HELD] += own_blocks(limits, requests, i)
            if requests.started[i] < 0.0:
                requests.started[i] = numbers[CLOCK]
        left = requests.inputs[i] + requests.given[i] - requests.cached[i] - requests.done[i]
        chunk = min(left, room, each)
        ahead = requests.cached[i] + requests.done[i]
        requests.done[i] += chunk
        room -= chunk
        prompts += 1
        tokens += chunk
        longest = max(longest, chunk)
        pairs += chunk * (ahead + 0.5 * chunk)
        if chunk < left:
            rank.partial[kept] = i
            kept += 1
        else:
            rank.fresh[completed] = i
            completed += 1
    while at < begun:
        rank.partial[kept] = rank.partial[at]
        kept += 1
        at += 1
    counts[PARTIAL] = kept
    return prompts, completed, tokens, longest, pairs


@jit_lean
def spend(
    tables: PassTables,
    limits: Limits,
    rank: Rank,
    passes: float,
    prompts: float,
    chunk: float,
    before: float,
    decoding: float,
    context: float,
    completed: float,
) -> float:
    """Let passes alike go by; return the time of one."""
    verified = 1.0 + limits.drafted
    parts = pass_times(
        tables,
        limits.layout,
        prompts,
        chunk,
        before,
        float(math.ceil(decoding / limits.ranks)),
        context,
        verified,
        float(math.ceil(completed / limits.ranks)),
    )
    entry, totals = rank.counts[LOGGED], rank.totals
    if entry < rank.log.shape[1]:
        log = rank.log
        log[START, entry], log[SAME_PASSES, entry] = rank.numbers[CLOCK], passes
        log[TIME, entry], log[PROMPTS, entry], log[CHUNK, entry] = parts[0], prompts, chunk
        log[BATCH, entry] = decoding
        used = used_blocks(limits, rank.numbers[KEPT], rank.counts[DECODING])
        if limits.admission == RESERVE:
            used = 0.0  # is set aside
        log[BLOCKS, entry] = used + rank.numbers[HELD]
        for part in range(6):
            log[PARTS_FROM + part, entry] = parts[1 + part]
    rank.counts[LOGGED] += 1
    totals[0] += passes * parts[0]
    totals[1] += passes * parts[1]
    totals[2] += passes * parts[2]
    totals[3] += passes * parts[3]
    totals[4] += passes * parts[4]
    totals[5] += passes * parts[5]
    totals[6] += passes * parts[6]
    totals[TOTAL_PASSES] += passes
    totals[SEQUENCE_SECONDS] += passes * parts[0] * rank.counts[DECODING]
    rank.numbers[CLOCK] += passes * parts[0]
    return parts[0]


@jit_lean
def run_prompts(
    tables: PassTables,
    limits: Limits,
    requests: Requests,
    rank: Rank,
    gaps: Histogram,
    prompts: int,
    completed: int,
    tokens: float,
    longest: float,
    pairs: float,
) -> None:
    """Run a pass with chunks of prompts; of ranks in step the one with most of them counts."""
    counts, numbers = rank.counts, rank.numbers
    chunk = tokens / prompts
    before = max(pairs / tokens - 0.5 * chunk, 0.0)
    if prompts <= limits.ranks:
        chunk = longest
    decoding = counts[DECODING]
    fused = limits.scheduler == FUSED
    beside = decoding if fused else 0
    # Of ranks in step those without prompts decode all the same: all of them, ever so often.
    goes_on = fused
    if not fused and decoding > 0:
        numbers[CREDIT] += max(1.0 - prompts / limits.ranks, 0.0)
        if numbers[CREDIT] >= 1.0:
            numbers[CREDIT] -= 1.0
            goes_on = True
    context = numbers[KEPT] / decoding if beside > 0 else 0.0
    # As many as the fullest rank has, and no more than its tokens allow.
    most = max(min(math.ceil(prompts / limits.ranks), chunk_room(limits, decoding) / chunk), 1.0)
    spend(
        tables, limits, rank, 1.0, most, chunk, before, float(beside), context, float(completed)
    )  # fmt: skip
    if goes_on and decoding > 0:
        decoded(limits, requests, rank, gaps, 1)
        end_due(limits, requests, rank)
    for at in range(completed):
        begin(limits, requests, rank, rank.fresh[at], gaps)
    if goes_on or decoding == 0:
        numbers[TOKEN_TIME] = numbers[CLOCK]
    elif counts[DECODING] > decoding:  # they wait for the next pass that decodes
        rank.group_sizes[counts[GROUPS]] = counts[DECODING] - decoding
        rank.group_times[counts[GROUPS]] = numbers[CLOCK]
        counts[GROUPS] += 1


@jit_lean
def decoded(limits: Limits, requests: Requests, rank: Rank, gaps: Histogram, passes: int) -> None:
    """Count the tokens of passes that end now: gaps between them are all alike but the first."""
    counts, numbers = rank.counts, rank.numbers
    since = numbers[CLOCK]
    alike = float(counts[DECODING])
    for at in range(counts[GROUPS]):
        add(gaps, since - rank.group_times[at], rank.group_sizes[at])
        alike -= rank.group_sizes[at]
    counts[GROUPS] = 0
    add(gaps, since - numbers[TOKEN_TIME], alike)
    numbers[TOKEN_TIME] = since
    counts[PASSES] += passes
    numbers[KEPT] += passes * counts[DECODING] * limits.pass_tokens
    numbers[TO_COME] -= passes * counts[DECODING] * limits.pass_tokens


@jit_lean
def alike_passes(tables: PassTables, limits: Limits, rank: Rank, context: float) -> int:
    """Return how many passes of decoding alone follow each other with times in a line.

    Until a request ends, a knot of the tables is reached, or blocks run out.
    """
    counts, numbers = rank.counts, rank.numbers
    passes = (rank.heap[0] >> ID_BITS) - counts[PASSES]
    knots = tables.contexts
    at = position(knots, context) + 1
    if at < knots.size - 1:
        ahead = math.ceil((knots[at] - context) / limits.pass_tokens)
        passes = min(passes, max(int(ahead), 1))
    if limits.admission != RESERVE and counts[DECODING] > 1:
        used = used_blocks(limits, numbers[KEPT], counts[DECODING]) + numbers[HELD]
        grown = counts[DECODING] * limits.pass_tokens / limits.block_tokens
        passes = min(passes, max(int(min((limits.blocks - used) / grown, 1e9)), 1))
    return int(passes)


@jit_lean
def run_decoding(
    tables: PassTables,
    limits: Limits,
    requests: Requests,
    rank: Rank,
    gaps: Histogram,
    until: float,
) -> None:
    """Run passes of decoding alone until something changes."""
    counts, numbers = rank.counts, rank.numbers
    decoding = float(counts[DECODING])
    context = numbers[KEPT] / decoding
    passes = alike_passes(tables, limits, rank, context)
    stop = until
    head = counts[HEAD]
    if head != NOBODY and requests.ready[head] > numbers[CLOCK]:
        stop = min(stop, requests.ready[head])
    if passes == 1 or stop < math.inf or counts[GROUPS] > 0:
        time = spend(tables, limits, rank, 1.0, 0.0, 0.0, 0.0, decoding, context, 0.0)
        decoded(limits, requests, rank, gaps, 1)
        passes -= 1
        context += limits.pass_tokens
        if stop < math.inf:
            passes = min(passes, math.ceil((stop - numbers[CLOCK]) / time))
    if passes > 0:
        middle = context + 0.5 * (passes - 1) * limits.pass_tokens
        time = spend(tables, limits, rank, float(passes), 0.0, 0.0, 0.0, decoding, middle, 0.0)
        add(gaps, time, (passes - 1.0) * decoding)
        numbers[TOKEN_TIME] = numbers[CLOCK] - time
        decoded(limits, requests, rank, gaps, passes)
    end_due(limits, requests, rank)


@jit_lean
def advance(
    tables: PassTables,
    limits: Limits,
    requests: Requests,
    rank: Rank,
    gaps: Histogram,
    until: float,
) -> None:
    """Run passes until the clock has reached a time, or nothing is left to do before it.

    Parameters
    ----------
    tables : PassTables
    limits : Limits
    requests : Requests
    rank : Rank
    gaps : Histogram
        Receives the times between tokens that follow each other.
    until : float
        [s].
    """
    counts, numbers = rank.counts, rank.numbers
    while numbers[CLOCK] < until and counts[LOGGED] < counts[MOST]:
        head = counts[HEAD]
        if counts[DECODING] + counts[PARTIAL] == 0:
            if head == NOBODY or requests.ready[head] >= until:
                return
            numbers[CLOCK] = max(numbers[CLOCK], requests.ready[head])
            numbers[HELD] = 0.0
        prompts = 0
        if head != NOBODY or counts[PARTIAL] > 0:
            enough = make_room(limits, requests, rank)
            prompts, completed, tokens, longest, pairs = take_prompts(
                limits, requests, rank, enough
            )
            if prompts > 0:
                run_prompts(
                    tables, limits, requests, rank, gaps,
                    prompts, completed, tokens, longest, pairs,
                )  # fmt: skip
                continue
        else:
            make_room(limits, requests, rank)
        run_decoding(tables, limits, requests, rank, gaps, until)
