"""Pipelines for which no closed form is exact: their passes run one by one.

`perfmodel.kernels.pipeline` says in which order and when; here strategies get what each pass of
each chunk takes, and what ranks keep. The closing pass reads the answers (`Waits`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.kernels.pipeline.closed import one_f_one_b_makespan
from perfmodel.kernels.pipeline.events import KINDS, Durations, paced_makespans
from perfmodel.kernels.pipeline.held import fullest, peaks
from perfmodel.kernels.pipeline.repetition import SAME
from perfmodel.kernels.step.memo import MEMO_SLOTS, TIME
from perfmodel.kernels.step.pipeline import boundary_send
from perfmodel.kernels.step.placement import data_groups

LOGIT_GRADIENTS = 1.0 / 3.0  # of what logits keep: 2 bytes beside a softmax in single precision
ANSWERS = 1024  # a power of two: strategies that differ in neither work nor sends share one


class Chunks(NamedTuple):
    """What the chunks of one pipeline hold.

    Attributes
    ----------
    counts : float64, shape (chunk rows, parts)
        How many of each part a distinct chunk holds.
    row : int64, shape (chunks,)
        Row of each chunk, in the order in which layers run.
    stage_row : int64, shape (stages,)
        Distinct composition of each stage, from 0.
    """

    counts: np.ndarray
    row: np.ndarray
    stage_row: np.ndarray


@jit
def run_schedules(
    order,
    program,
    steady,
    more,
    layer_key,
    sends,
    shards,
    keys,
    chunks,
    hidden,
    bounds,
    rows,
    waits,
):
    """Run the passes of strategies that have one order.

    Parameters
    ----------
    order : Order
    program : Program
        The same, linked.
    steady : int64[SHOWN, n]
        Of `perfmodel.kernels.pipeline.repetition.repetitions`.
    more : bool, shape (strategies,)
        Whether a strategy has more micro-batches than the order.
    layer_key : int64, shape (strategies,)
    sends : float64, shape (strategies,)
        What a send between stages takes [s].
    shards : Shards
    keys : KeyTables
    chunks : Chunks
    hidden : bool
        Sends run beside passes; otherwise they keep their sender.
    bounds : bool
        Instead of running, bound what it takes from below.
    rows : int64, shape (strategies,)
        Of `waits`, one for each strategy.
    waits : Waits
        Result.

    Returns
    -------
    bool, shape (strategies,)
        Whether its row is right: not where there are more micro-batches that do not add alike.
    """
    alike = np.zeros(rows.size, np.int64)
    case_of, first = distinct_cases(layer_key, alike, sends, shards.row)
    work = work_of_cases(order.rank_of, layer_key, first, keys, chunks, shards)
    cases, stages, ranks = first.size, order.rank_of.size, order.first.size - 1
    if bounds:
        alone, growth = least_makespans(order, work)
        with_sends, growth_with_sends = alone, growth
    else:
        send, together = np.empty((KINDS, stages, cases)), np.empty((0, 0, cases))
        for kind in range(KINDS):
            for stage in range(stages):
                for case in range(cases):
                    send[kind, stage, case] = sends[first[case]]
        plain = Durations(work, np.zeros((KINDS, stages, cases)), together, 0.0, 0.0)
        alone, growth = paced_makespans(program, plain, steady)
        share = 0.0 if hidden else 1.0
        sending = Durations(work, send, together, share, 0.0)
        with_sends, growth_with_sends = paced_makespans(program, sending, steady)
    flight = np.zeros((cases, waits.flight.shape[1]))
    held, moments = fullest(order, chunk_rows(order, chunks), chunks.counts.shape[0])
    for case in range(cases):
        parts = keys.parts[layer_key[first[case]]]
        write_flight(flight[case], order, held, moments, chunks, parts)
    lone, heads = alone_passes(order), heads_in_flight(order)
    right = np.ones(rows.size, np.bool_)
    for i in range(rows.size):
        row, case = rows[i], case_of[i]
        wait = waits.of[row]
        wait.makespan, wait.with_sends, wait.batches = (
            alone[case],
            with_sends[case],
            order.micro_batches,
        )
        if more[i]:
            wait.growth, wait.growth_with_sends = (
                growth[case] / ranks,
                growth_with_sends[case] / ranks,
            )
            right[i] = wait.growth >= 0.0 and wait.growth_with_sends >= 0.0  # neither is NaN
        for composition in range(flight.shape[1]):
            waits.flight[row, composition] = flight[case, composition]
        wait.heads, wait.alone = heads, lone
    return right


@jit
def least_makespans(order, work):
    """Bound from below how long a pipeline takes in every case, and what repetitions add [s].

    A rank works for as long as all its passes take, one after the other. With one copy of the model
    it begins when the first micro-batch has gone forward through all stages ahead of its first one,
    which is the last of its stages to go backward: then all those ahead have to, if backward passes
    are whole.

    Parameters
    ----------
    order : Order
    work : float64[KINDS, stages, cases]

    Returns
    -------
    least, growth : float64[cases]
        For the micro-batches of the order, and for as many more as there are ranks.
    """
    stages, ranks, cases = order.rank_of.size, order.first.size - 1, work.shape[2]
    each = order.micro_batches // order.copies  # all copies together have them
    whole = order.copies == 1
    for action in range(order.kind.size):
        whole = whole and order.kind[action] != WEIGHT
    least, growth = np.zeros(cases), np.zeros(cases)
    for case in range(cases):
        for rank in range(ranks):
            ahead, own, begun = 0.0, 0.0, False
            for stage in range(stages):
                both = work[FORWARD, stage, case] + work[BACKWARD, stage, case]
                begun = begun or order.rank_of[stage] == rank
                if not begun and whole:
                    ahead += both
                if order.rank_of[stage] == rank:
                    own += both
            found = ahead + each * own
            if found > least[case]:
                least[case], growth[case] = found, ranks * own / order.copies
    return least, growth


@jit
def close_one_f_one_b(layer_key, batches, more, sends, shards, keys, chunks, rows, waits):
    """The same of 1F1B, in closed form, whatever the micro-batches.

    Parameters
    ----------
    batches : int64, shape (strategies,)
        Micro-batches.
    more : bool, shape (strategies,)
        There may be more: these are more than stages, and the makespan a maximum of lines.
    layer_key, sends, shards, keys, chunks, rows, waits
        As of `run_schedules`. Nothing runs beside sends.
    """
    stages = chunks.row.size
    # Work is shared by strategies that differ in nothing but micro-batches.
    alike = np.zeros(rows.size, np.int64)
    work_of, leader = distinct_cases(layer_key, alike, sends, shards.row)
    case_of, first = distinct_cases(layer_key, batches, sends, shards.row)
    work = work_of_cases(np.arange(stages), layer_key, leader, keys, chunks, shards)
    alone, with_sends = np.empty(first.size), np.empty(first.size)
    growth, growth_with_sends = np.empty(first.size), np.empty(first.size)
    forward, backward = np.empty(stages), np.empty(stages)
    for case in range(first.size):
        own = work_of[first[case]]
        for stage in range(stages):
            forward[stage], backward[stage] = work[FORWARD, stage, own], work[BACKWARD, stage, own]
        count = batches[first[case]]
        alone[case] = one_f_one_b_makespan(forward, backward, count)
        growth[case] = steepest(forward, backward, count, alone[case])
        for stage in range(1, stages):
            forward[stage - 1] += sends[first[case]]
            backward[stage] += sends[first[case]]
        with_sends[case] = one_f_one_b_makespan(forward, backward, count)
        growth_with_sends[case] = steepest(forward, backward, count, with_sends[case])
    ahead = np.zeros(waits.flight.shape[1], np.int64)  # micro-batches ahead of a first backward
    for stage in range(stages - 1, -1, -1):
        ahead[chunks.stage_row[stage]] = stages - stage
    right = np.ones(rows.size, np.bool_)
    for i in range(rows.size):
        row, case = rows[i], case_of[i]
        wait = waits.of[row]
        wait.batches, wait.makespan, wait.with_sends = batches[i], alone[case], with_sends[case]
        wait.heads = wait.alone = 1.0
        if more[i]:
            wait.growth, wait.growth_with_sends = growth[case], growth_with_sends[case]
            right[i] = wait.growth >= 0.0 and wait.growth_with_sends >= 0.0  # neither is NaN
        for composition in range(ahead.size):
            waits.flight[row, composition] = min(batches[i], ahead[composition])
    return right


@jit
def steepest(forward, backward, batches, makespan):
    """Return what each further micro-batch adds to 1F1B; NaN where it will be more later [s].

    Parameters
    ----------
    forward, backward : float64[stages]
    batches : int
    makespan : float
        With so many micro-batches.
    """
    slowest = 0.0
    for stage in range(forward.size):
        slowest = max(slowest, forward[stage] + backward[stage])
    grown = one_f_one_b_makespan(forward, backward, batches + 1) - makespan
    return slowest if abs(grown - slowest) <= SAME * makespan else np.nan


@jit
def boundary_sends(strategies, layer_key, keys, settings, network):
    """Return what a send between stages takes, float64[strategies] [s].

    Parameters
    ----------
    strategies, layer_key, keys, settings, network
        As of `perfmodel.kernels.step.shards.shard_prices`.
    """
    memo = np.zeros((MEMO_SLOTS, TIME + 1))
    sends = np.empty(layer_key.size)
    for i in range(sends.size):
        key, strategy = keys.of[layer_key[i]], strategies[i]
        groups = data_groups(strategy, network)
        sends[i] = boundary_send(key, strategy.pipeline, groups, settings, network, memo).time
    return sends


@jit
def distinct_cases(layer_key, batches, sends, shard_row):
    """Find the strategies that differ in work, micro-batches or sends.

    Parameters
    ----------
    layer_key, batches, shard_row : int64, shape (strategies,)
    sends : float64, shape (strategies,)

    Returns
    -------
    case_of : int64, shape (strategies,)
    first : int64, shape (cases,)
        The first strategy of each case.
    """
    count = layer_key.size
    asked, sent = np.full((ANSWERS, 4), -1, np.int64), np.zeros(ANSWERS)
    case_of, first = np.empty(count, np.int64), np.empty(count, np.int64)
    cases = 0
    for i in range(count):
        key, send, shards = layer_key[i], sends[i], shard_row[i]
        mixed = key * 31 + 7 * batches[i] + 5 * shards + int(send * 1e9)
        place = mixed & (ANSWERS - 1)
        slot = asked[place]
        known = slot[0] == key and slot[1] == batches[i] and slot[2] == shards
        if not (known and sent[place] == send):
            slot[0], slot[1], slot[2], slot[3] = key, batches[i], shards, cases
            sent[place], first[cases] = send, i
            cases += 1
        case_of[i] = slot[3]
    return case_of, first[:cases].copy()


@jit
def work_of_cases(rank_of, layer_key, first, keys, chunks, shards):
    """Return what passes take in every case, float64[KINDS, stages, cases] [s]."""
    work = np.empty((KINDS, rank_of.size, first.size))
    for case in range(first.size):
        parts = keys.parts[layer_key[first[case]]]
        fill_work(work[:, :, case], rank_of, chunks, parts, shards, shards.row[first[case]])
    return work


@jit_inline
def fill_work(work, rank_of, chunks, parts, shards, sharded):
    """Write what the passes of every stage of an order take, float64[KINDS, stages] [s].

    Parameters
    ----------
    work : ndarray
        Result.
    rank_of : int64, shape (stages,)
        Rank of each stage. Those of a second copy of the model are its chunks again.
    chunks : Chunks
    parts : record array of PART, shape (parts,)
    shards : Shards
    sharded : int
        Row of these; -1 where parameters are not sharded.
    """
    rows = chunks.counts.shape[0]
    times, longest = np.zeros((KINDS, rows)), np.zeros(rows)
    for row in range(rows):
        for number in range(parts.size):
            count, part = chunks.counts[row, number], parts[number]
            if count == 0.0:
                continue
            busy = part.forward + part.backward + part.recompute + part.host
            busy += part.tensor_exposed + part.context_exposed + part.expert_exposed
            ahead, behind = part.forward_pass, busy - part.forward_pass
            if sharded >= 0:
                ahead += shards.parts[sharded, number].ahead
                behind += (
                    shards.parts[sharded, number].exposed - shards.parts[sharded, number].ahead
                )
                longest[row] = max(longest[row], shards.parts[sharded, number].last)
            times[FORWARD, row] += count * ahead
            times[BACKWARD, row] += count * behind
            times[WEIGHT, row] += count * part.weight_pass
    ranks = rank_of.max() + 1
    last = np.zeros(ranks)  # of a stage's reductions, the longest: shows once a micro-batch
    for stage in range(rank_of.size):
        row, rank = chunks.row[stage % chunks.row.size], rank_of[stage]
        last[rank] = max(last[rank], longest[row])
    for stage in range(rank_of.size):
        row = chunks.row[stage % chunks.row.size]
        backward = times[BACKWARD, row] + last[rank_of[stage]] * ranks / rank_of.size
        work[FORWARD, stage] = times[FORWARD, row]
        work[BACKWARD, stage] = backward
        work[INPUT, stage] = max(backward - times[WEIGHT, row], 0.0)
        work[WEIGHT, stage] = backward - work[INPUT, stage]


@jit_inline
def kept_bytes(order, chunks, parts):
    """Return what a forward pass of every stage keeps, float64[2, stages] [B].

    Until the gradients of its input are there, and until those of its weights.

    Where backward passes are split, activations wait for the gradients of the weights: the inputs
    of products are read for those, with the gradients of what they put out, which take the place of
    the rest. Of the logits only their gradients wait.
    """
    stages = order.rank_of.size
    size = np.zeros((2, stages))
    for stage in range(stages):
        held = chunks.counts[chunks.row[stage % chunks.row.size]]
        for number in range(held.size):
            logits = held[number] * parts[number].logits
            size[0, stage] += (1.0 - LOGIT_GRADIENTS) * logits
            size[1, stage] += held[number] * parts[number].activations + LOGIT_GRADIENTS * logits
    return size


@jit_inline
def chunk_rows(order, chunks):
    """Return the row of `chunks` that every stage of an order holds, int64[stages]."""
    return chunks.row[np.arange(order.rank_of.size) % chunks.row.size]


@jit
def write_flight(flight, order, held, moments, chunks, parts):
    """Write how many micro-batches stages of every composition keep, by bytes of activations.

    Parameters
    ----------
    flight : float64[compositions]
        Result.
    order, chunks
        As of `run_schedules`.
    held, moments
        Of `perfmodel.kernels.pipeline.held.fullest`, by row of `chunks`.
    parts : record array of PART, shape (parts,)
    """
    size, whole = np.zeros(chunks.counts.shape[0]), np.zeros(moments.size - 1)
    for row in range(size.size):
        for number in range(parts.size):
            size[row] += chunks.counts[row, number] * parts[number].activations
    for stage in range(order.rank_of.size):
        whole[order.rank_of[stage]] += size[chunks.row[stage % chunks.row.size]]
    for rank in range(whole.size):
        most = 0.0
        for moment in range(moments[rank], moments[rank + 1]):
            kept = 0.0
            for row in range(size.size):
                kept += held[moment, row] * size[row]
            most = max(most, kept)
        composition = chunks.stage_row[rank]
        if whole[rank] > 0.0:
            flight[composition] = max(flight[composition], most / whole[rank])


@jit_inline
def heads_in_flight(order):
    """Return how many micro-batches keep their logits at most, by bytes."""
    stages = order.rank_of.size
    first, second = np.zeros(stages), np.zeros(stages)
    last = stages // order.copies - 1
    first[last], second[last] = 1.0 - LOGIT_GRADIENTS, LOGIT_GRADIENTS
    return peaks(order, first, second).max()


@jit_inline
def alone_passes(order):
    """Return the share of forward and backward passes that do not run in pairs [1]."""
    pairs, weights = 0, 0
    for action in range(order.kind.size):
        pairs += order.paired[action]
        weights += order.kind[action] == WEIGHT
    passes = order.kind.size - weights
    return 1.0 - 2.0 * pairs / passes
