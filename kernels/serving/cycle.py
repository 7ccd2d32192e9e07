"""What a client of a closed loop goes through, and with how many others, in passes.

Counts are of one batch under way: with p stages there are p on an attention rank. A prompt that
is longer than a pass has room for runs in several chunks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from perfmodel.kernels._jit import jit, jit_inline, jit_lean_inline
from perfmodel.kernels.serving.admission import (
    MOST_SET_ASIDE,
    SET_ASIDE,
    mean_length,
    mean_square,
)
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import (
    FUSED,
    PREEMPT,
    RESERVE,
    Deployments,
    Loads,
    PassTables,
)

LEAST_PASSES = 1e-6
"""Passes of an answer of one token, which comes out of its prompt's own."""


class Cycle(NamedTuple):
    """From one request of a client to the next.

    Attributes
    ----------
    fused
        1 where chunks of prompts run beside decoded tokens, 0 where decoding waits.
    clients, slots
        Of the batch, and how many of their requests run at once.
    everyone, together
        That run on all ranks in step, and how many ranks these are.
    replaced
        1 where a request that has ended is followed at once by one that waits; between 0 and
        1 where less than one waits.
    rounds
        Requests of each client; inf in the steady state.
    prompt, new, varied, earlier
        Tokens of a prompt, those not in the cache, by how much the most or least are off these,
        relative, and tokens ahead of a chunk on average.
    answer, context
        Tokens of an answer, and those that a decoding sequence keeps.
    verified, gained
        Tokens that a sequence runs and gains per pass.
    passes, length
        Passes of an answer, and of a cycle.
    step
        Variance of the passes of an answer.
    decoding
        Sequences that decode.
    chunks, chunk, room
        Of a prompt: how many, of so many tokens; chunks that a pass has room for.
    alone
        Time of a pass that decodes alone, and its parts [s].
    host, away
        What a request takes from its client's last answer to the scheduler [s], and how many
        passes that decode alone run meanwhile.
    stays
        1 where requests that come together do so again: their answers are all alike, or end apart
        by less than others wait meanwhile.
    put_back
        Of a request's wait for a place the share that it spends put back, behind its first token.
    again, piece
        Tokens that are computed again per request, and of how many those that are put back are.
    """

    fused: float
    clients: float
    slots: float
    everyone: float
    together: float
    replaced: float
    rounds: float
    prompt: float
    new: float
    varied: float
    earlier: float
    answer: float
    context: float
    verified: float
    gained: float
    passes: float
    length: float
    step: float
    decoding: float
    chunks: float
    chunk: float
    room: float
    alone: tuple[float, float, float, float, float, float, float]
    host: float
    away: float
    stays: float
    put_back: float
    again: float
    piece: float


class Crowd(NamedTuple):
    """With how many others a request comes.

    Attributes
    ----------
    burst, turn
        Passes in which the prompts of all clients run that come at once, and the mean one in
        which a prompt is completed.
    dense
        Share of the others that come per pass, about a request that comes.
    even, local
        Prompts per pass of a rank: on average, and about a request that comes.
    others
        Others on all ranks in step that come in the same pass.
    with_me, turns, my_turn
        Prompts that come together on the rank with most, the passes that they take, and the
        mean one in which a prompt is completed.
    mixed, held, runs
        Share of passes with prompts (passes that decode, between which prompts run, where
        decoding waits), chunks in such a pass, and how many such passes follow each other.
    ahead
        Share with prompts of the passes that are under way when a request comes.
    stretch
        Passes in which a rank decodes once, where decoding waits for prompts of its own alone, as
        other ranks in step go on; 0 elsewhere.
    """

    burst: float
    turn: float
    dense: float
    even: float
    local: float
    others: float
    with_me: float
    turns: float
    my_turn: float
    mixed: float
    held: float
    runs: float
    ahead: float
    stretch: float


@jit_lean_inline
def cycle_of(
    tables: PassTables,
    deployments: Deployments,
    d: int,
    loads: Loads,
    j: int,
    limit: float,
    gained: float,
) -> Cycle:
    """Return the cycle of a client.

    Parameters
    ----------
    tables : PassTables
    deployments, loads : Deployments, Loads
    d, j : int
        Which of them.
    limit : float
        Requests that run at once on a rank at most, at least 1.
    gained : float
        Tokens that a sequence gains per pass.

    Notes
    -----
    A cycle are the passes of an answer, those of the prompt, and the one that a request misses
    as it comes while a pass runs. Where decoding waits for prompts only its own passes count.
    Where prompts of all need more tokens than passes have room for, b (q + D v)/D tokens per
    pass for prompts of q tokens and answers of D passes with v tokens each, b is as large as
    fits.
    """
    concurrency, stages = loads.concurrency[j], deployments.stages[d]
    working = min(concurrency, deployments.ranks[d] * stages)
    clients = concurrency / working
    slots = min(max(limit / stages, 1.0), clients)
    together = min(deployments.lockstep_ranks[d], max(working / stages, 1.0))
    replaced = min(max(clients - slots, 0.0), 1.0)
    fused = 1.0 if deployments.scheduler[d] == FUSED else 0.0

    verified = 1.0 + deployments.draft_length[d]
    spread = loads.length_spread[j]
    answer = max(mean_length(loads.output_length[j], spread), 1.0)
    square = mean_square(loads.output_length[j], spread)
    prompt = mean_length(loads.input_length[j], spread)
    prefix = min(loads.prefix[j], prompt - 1.0)
    new = prompt - prefix
    # Passes are whole: the last of an answer gives half a pass too much on average.
    passes = max((answer - 1.0) / gained + 0.5 * (1.0 - 1.0 / gained), LEAST_PASSES)
    budget = deployments.token_budget[d]

    length, tokens = max(passes, 1.0), budget
    if fused > 0.0:
        length = passes + math.ceil(new / budget) + (1.0 - replaced) * min(1.0, slots - 1.0)
        length = max(length, slots * (new + passes * verified) / budget)
        tokens = max(budget - slots * passes / length * verified, 1.0)
    chunks = float(math.ceil(new / tokens))
    chunk = new / chunks
    decoding, context = slots * passes / length, prompt + 0.5 * square / answer
    alone = pass_times(
        tables, deployments.layout[d], 0.0, 0.0, 0.0, decoding, context, verified, 0.0
    )
    host = deployments.request_host[d] + deployments.output_host[d]
    host += deployments.token_host[d] * prompt
    away = (1.0 - replaced) * host / alone[0]
    if fused > 0.0:
        length = max(length, passes + math.ceil(new / budget) + min(away, slots - 1.0))
    step = max(square - answer * answer, 0.0) / (gained * gained)
    stays = 1.0 if math.sqrt(12.0 * step) <= away or step <= 0.0 else 0.0
    put_back, again, piece = 0.0, 0.0, prompt
    if deployments.admission[d] != RESERVE and clients > slots:
        most = deployments.max_sequences[d] / stages
        if fused > 0.0:
            most = min(most, budget / verified)
        put_back, again, piece = put_back_of(
            prompt,
            answer,
            slots * together,
            (min(clients, most) - slots) * together,
            (clients - slots) * together,
            spread,
            deployments.admission[d] == PREEMPT,
        )
    return Cycle(
        fused,
        clients,
        slots,
        slots * together,
        together,
        replaced,
        max(loads.rounds[j], 1.0),
        prompt,
        new,
        (loads.input_length[j] - prompt) / new,
        prefix + 0.5 * (new - chunk),
        answer,
        context,
        verified,
        gained,
        passes,
        length,
        step,
        decoding,
        chunks,
        chunk,
        max(tokens / chunk, 1.0),
        alone,
        host,
        away,
        stays,
        put_back,
        again,
        piece,
    )


ABOVE = 2.0
"""Deviations that the place up to which requests run reaches while one comes nearer to it."""
BUNCHED = 10.0
"""Power of the spread with which answers of nearly one length end together."""


@jit_inline
def put_back_of(
    prompt: float,
    answer: float,
    running: float,
    places: float,
    waiting: float,
    spread: float,
    preempting: bool,
) -> tuple[float, float, float]:
    """Return how requests fare that a cache has no room for until their end.

    Parameters
    ----------
    prompt, answer : float
        Mean tokens.
    running : float
        Requests that run on average.
    places, waiting : float
        How many more may have a place, and how many wait.
    spread : float
        The shortest length, relative to the longest.
    preempting : bool
        Blocks are taken as tokens come; else some are set aside for tokens to come.

    Returns
    -------
    share : float
        Of the time that requests wait, how much they do behind their first token.
    again, piece : float
        Tokens that are computed again per request, and of a request that is put back.

    Notes
    -----
    Who is put back stands ahead of who was admitted later, so that at any time the oldest requests
    run, as many as the cache holds: n on average. One that ends frees I + O tokens, which those
    behind it take at once with what they have so far, and until the next one ends all that run
    grow by O tokens together: that much is put back again, and computed once more.

    Ends come at random, every O/n passes, and room is lost again at a rate of 1/s for requests of s
    tokens that come and go there, s about I: so room varies by O sqrt(n s / 2 O) tokens, and who
    comes within two deviations of it was there once. Where it varies more slowly than requests
    come nearer, one end after the other, a walk of steps O/s against one each ends
    (O/s)^2 / 2 ahead on average. Answers of one length end together, n/2 at a time. Inside, where
    half of them run, a request was given O/n sqrt(n/2) phi(0) tokens.

    Blocks that are set aside for a share of the answer widen s by it, and spare that many.
    """
    if places <= 0.0:
        return 0.0, 0.0, prompt
    kept, again, deviations = prompt, answer, ABOVE
    if not preempting:
        kept += SET_ASIDE * answer
        again = 0.5 * max(answer - MOST_SET_ASIDE, 0.0)
        deviations = 0.5 * ABOVE
    together = spread**BUNCHED
    deviations += together * (2.0 * ABOVE - deviations)
    varying = deviations * math.sqrt(0.5 * running * answer / kept)
    walk = 0.5 * (answer / kept) ** 2 * (1.0 + 0.5 * running * together)
    behind = 1.0 / math.hypot(1.0 / varying, 1.0 / walk)
    behind /= (1.0 + (behind / places) ** 1.5) ** (2.0 / 3.0)
    piece = prompt + 0.28 * answer / math.sqrt(running)
    again *= -math.expm1(-places * piece / answer)
    return behind / waiting, again, piece


@jit_inline
def crowd_of(cycle: Cycle) -> Crowd:
    """Return with how many others a request comes.

    Notes
    -----
    The first requests of all come at once. Beside decoding they are completed one pass after
    the other, and their answers end so: this is their first spread. Where decoding waits for
    prompts, answers begin together. From then on they spread by the lengths of answers
    (`mean_density`). Numbers that come in a pass are Poisson-distributed, so that one came in
    1 - exp(-a) of all passes. Who comes finds the others as if they were alone (arrival theorem
    of closed networks), so prompts of theirs are under way with (n - 1)/n of that chance.
    """
    chunks, room, slots, together = cycle.chunks, cycle.room, cycle.slots, cycle.together
    fused = cycle.fused > 0.0
    burst = max(slots * chunks / room, chunks)
    turn = mean_turn(burst) if chunks <= 1.0 else 0.5 * (burst + chunks)
    first = max(burst * burst - 1.0, 0.0) / 12.0 if fused else 0.0
    step = 0.0 if cycle.stays > 0.0 else cycle.step
    dense = mean_density(cycle.rounds, first, step, cycle.length, cycle.clients / slots)
    alike = fused and cycle.stays > 0.0
    if alike:
        dense = max(1.0 / burst, 1.0 / max(cycle.length, 1.0))
    even = slots / cycle.length
    local = slots * dense
    if fused:  # no faster than they were completed before
        local = max(min(local, room / chunks), even)

    others = max(cycle.everyone - 1.0, 0.0) * local / slots
    group = 1.0
    if not fused and cycle.stays <= 0.0:
        others, group = gathered(others, cycle)
    with_me = most_on_one(1.0 + others, together)
    if fused:
        with_me = max(min(with_me, room / chunks), 1.0)
    turns = max(with_me * chunks / room, chunks)
    my_turn = mean_turn(turns) if chunks <= 1.0 else 0.5 * (turns + chunks)

    arriving = local * together
    mixed = -math.expm1(-arriving / group)
    most = most_on_one(max(arriving / mixed, 1.0), together)
    apart = 1.0 - math.expm1(1.0 - group)  # runs: of the first, and of those that come meanwhile
    held = max(min(most / apart, room), 1.0)
    runs = chunks * max(most / room, apart)
    if fused:
        full = min(local * chunks / room, 1.0)
        if runs > 1.0:
            # Prompts that come apart take whole passes, those that wait fill them.
            mixed = min(full + (mixed * runs - full) * (1.0 - full), 1.0)
        if chunks > 1.0:
            held = max(min(local * chunks / mixed, room), 1.0)
        runs = 1.0
    if alike:  # they fill passes, one after the other
        mixed, held = 1.0, max(min(local * chunks, room), 1.0)
    stretch = 0.0
    if not fused and together > 1.0:
        stretch, mixed, held = in_step(local, chunks, room, together)
        runs = 1.0
    ahead = mixed * max(cycle.everyone - 1.0, 0.0) / cycle.everyone
    if alike:
        # Answers all alike end as their prompts did, pass by pass: after the last come none.
        ahead = min(1.0 - 1.0 / burst, mixed)
    return Crowd(
        burst,
        turn,
        dense,
        even,
        local,
        others,
        with_me,
        turns,
        my_turn,
        mixed,
        held,
        runs,
        ahead,
        stretch,
    )


@jit_inline
def in_step(
    local: float, chunks: float, room: float, together: float
) -> tuple[float, float, float]:
    """Return how ranks in step decode that wait for prompts of their own alone.

    Parameters
    ----------
    local : float
        Prompts that come at a rank per pass in which it decodes.
    chunks, room, together : float
        As of `Cycle`.

    Returns
    -------
    stretch : float
        Passes in which a rank decodes once: that one, and those of prompts that came meanwhile.
    mixed : float
        Share of all passes in which some rank runs prompts, so that all wait for it.
    held : float
        Chunks that the fullest of those has.
    """
    own = -math.expm1(-local)
    runs = chunks * max(local / own / room, 1.0)
    stretch = 1.0 + own * runs
    share = 1.0 - 1.0 / stretch
    mixed = 1.0 - (1.0 - share) ** together
    held = min(max(local / own, 1.0), room) if chunks <= 1.0 else 1.0
    return stretch, mixed, held


@jit_inline
def gathered(others: float, cycle: Cycle) -> tuple[float, float]:
    """Return with whom a request comes where decoding waits for prompts, and how large groups are.

    Parameters
    ----------
    others : float
        Whose requests end in the same pass.

    Notes
    -----
    From when the first prompt is there nothing decodes. Whoever ended before that, while it was on
    its way, comes meanwhile: x requests, Poisson-distributed with mean m, which run together after
    the first, E[x (x - 1)] / E[x] = m others with each. Of all requests m / (1 + m) do so.
    """
    more = others * cycle.away
    most = max(cycle.everyone - 1.0, 0.0)
    met = more * more / (1.0 + more)
    return min(others + met, most), min(1.0 + more, max(cycle.everyone, 1.0))


BEGINNING = 20.0
"""Of endless requests of a client so many are not counted, and as many are at most."""

GAUSSIAN = 0.5 / math.sqrt(math.pi)
"""Mean density of a normal distribution, weighted by itself, times its standard deviation."""


@jit
def mean_density(
    rounds: float, first: float, step: float, cycle: float, lives: float = 1.0
) -> float:
    """Return how densely requests come about a request, mean over all rounds but the first.

    Parameters
    ----------
    rounds : float
        Requests that each client makes, one after the other; inf: the steady state, which is what
        the recursion counts of it.
    first : float
        Variance of the passes in which the first requests of all clients start their answers.
    step : float
        Variance that each answer adds.
    cycle : float
        Passes from one request of a client to the next.
    lives : float
        Clients per place: so many requests follow each other at a place per round.

    Returns
    -------
    float
        Share of all clients per pass; 1 where all come in the same.

    Notes
    -----
    A client's request of round k + 1 starts a sum of k answers after its first, so times are
    spread with variance first + k step, and the mean of a normal density over itself is
    1/(2 sqrt(pi) sigma); 1/(4 pi) more makes it 1 where all are alike. It falls until requests
    are spread over the whole cycle. The mean over rounds is taken as an integral over k from
    1/2 to rounds - 1/2. Answers that are all alike stay as they came.
    """
    even = 1.0 / max(cycle, 1.0)
    first += GAUSSIAN * GAUSSIAN
    if step <= 0.0:
        return max(even, GAUSSIAN / math.sqrt(first))
    if rounds * lives < 2.0:
        return max(even, GAUSSIAN / math.sqrt(first + step))
    begin, last = 0.5, rounds * lives - 0.5
    if math.isinf(rounds):
        begin, last = BEGINNING * lives, 2.0 * BEGINNING * lives
    spread = (GAUSSIAN * cycle) ** 2  # variance from which on they are spread evenly
    until = min(max((spread - first) / step, begin), last)
    dense = 2.0 / step * (math.sqrt(first + until * step) - math.sqrt(first + begin * step))
    return (GAUSSIAN * dense + even * (last - until)) / (last - begin)


@jit
def mean_turn(turns: float) -> float:
    """Return the mean turn of requests that come at once and need so many turns together.

    Of an even spread from 0 to `turns`, each rounded up.
    """
    if turns <= 1.0:
        return 1.0
    whole = math.floor(turns)
    return (0.5 * whole * (whole + 1.0) + (turns - whole) * (whole + 1.0)) / turns


@jit
def most_on_one(requests: float, ranks: float) -> float:
    """Return how many requests the rank with most has, where ranks take them in turn.

    Parameters
    ----------
    requests : float
        Of all ranks, at least 1, on average.
    ranks : float

    Notes
    -----
    1 + floor((n - 1) / ranks), smoothed as the number n varies.
    """
    more = (requests - 1.0) / ranks
    if more <= 0.0:
        return 1.0
    return 1.0 + more * more / (more + 0.5 * (1.0 - 1.0 / ranks))
