"""Pipelines for which no closed form is exact: their passes run one by one.

`perfmodel.kernels.pipeline` says in which order and when; here strategies get what each pass of
each chunk takes, and what ranks keep. The closing pass reads the answers (`Waits`).

What it takes to gather and reduce sharded parameters (ZeRO-3) is worked out once for all strategies
alike, apart from the closing pass, which only looks it up: collectives are compiled once for all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.collective.times import MEMO_SLOTS, TIME
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT, Order
from perfmodel.kernels.pipeline.closed import one_f_one_b_makespan
from perfmodel.kernels.pipeline.events import fullest
from perfmodel.kernels.pipeline.paced import SAME
from perfmodel.kernels.plain import plain
from perfmodel.kernels.records import record_types
from perfmodel.kernels.step.data_parallel import (
    copies_time,
    gradients,
    moved,
    on_other_links,
    parameters,
    transfer_time,
)
from perfmodel.kernels.step.overlap import boundary_send, hidden_width, hide, overlap_tax, width_of
from perfmodel.kernels.step.placement import data_groups
from perfmodel.kernels.step.sharding import shards_parameters

SLOTS = 4096
"""A power of two: the last questions that are remembered."""
ASKED = 9
"""Numbers of a question."""


SHARD = record_types(__file__)["SHARD"]
"""What moving the parameters of a part takes per micro-batch (ZeRO-3) [s]."""


class Shards(NamedTuple):
    """The same of every part of all strategies with sharded parameters."""

    row: np.ndarray  # int64[strategies]: of what follows; -1 where parameters are not sharded
    parts: np.ndarray  # of SHARD, shape (rows, parts)


def shard_prices(strategies, layer_key, keys, settings, network):
    """Return what sharded parameters take of every strategy.

    Parameters
    ----------
    strategies : record array of STRATEGY, shape (strategies,)
    layer_key : int64, shape (strategies,)
    keys : KeyTables
    settings : record of SETTINGS
    network : Network

    Returns
    -------
    Shards
    """
    return send_and_shard_prices(strategies, layer_key, keys, settings, network, np.empty(0))


def send_and_shard_prices(strategies, layer_key, keys, settings, network, sends):
    """Write what a send between stages takes into `sends`, float64[strategies] [s].

    Returns what `shard_prices` does: one kernel, as each that prices collectives is a second of
    compiling.
    """
    row, leader = _distinct(plain(strategies), plain(layer_key))
    shards = np.zeros((leader.size, keys.parts.shape[1]), SHARD).view(np.recarray)
    if leader.size or sends.size:
        chosen = strategies[leader], layer_key[leader], strategies[: sends.size]
        asked = *chosen, layer_key[: sends.size], keys, settings, network
        _price(*map(plain, asked), sends, shards)
    return Shards(row, shards)


@jit
def _price(strategies, layer_key, sending, sending_key, keys, settings, network, sends, shards):
    """Fill a row of shards, record array of SHARD, for every strategy, and `sends`."""
    memo = np.zeros((MEMO_SLOTS, TIME + 1))
    for number in range(layer_key.size):
        strategy = strategies[number]
        groups = data_groups(strategy, network)
        own = keys.parts[layer_key[number]]
        price_shards(strategy.zero_stage, own, groups, settings, network, memo, shards[number])
    for i in range(sends.size):
        key, strategy = keys.of[sending_key[i]], sending[i]
        groups = data_groups(strategy, network)
        sends[i] = boundary_send(
            key, strategy.pipeline_parallel, groups, settings, network, memo
        ).time


@jit
def _distinct(strategies, layer_key):
    """Number strategies with sharded parameters by what these cost, and return one of each."""
    count = layer_key.size
    row, leader = np.full(count, -1), np.empty(count, np.int64)
    asked, found = np.full((SLOTS, ASKED), -1), np.empty(SLOTS, np.int64)
    now = np.empty(ASKED, np.int64)
    rows = 0
    for i in range(count):
        one = strategies[i]
        if not shards_parameters(one.zero_stage):
            continue
        now[0], now[1], now[2] = layer_key[i], one.mapping, one.tensor_parallel
        now[3], now[4], now[5] = one.context_parallel, one.pipeline_parallel, one.data_parallel
        now[6], now[7], now[8] = one.shard_group, one.expert_parallel, one.expert_tensor_parallel
        mixed = (
            2654435761 * now[0]
            + 7919 * one.mapping
            + 104729 * one.data_parallel
            + 31 * one.shard_group
        )
        slot = mixed // 128 & (SLOTS - 1)
        known = True
        for number in range(ASKED):
            known = known and asked[slot, number] == now[number]
        if not known:
            for number in range(ASKED):
                asked[slot, number] = now[number]
            found[slot], leader[rows] = rows, i
            rows += 1
        row[i] = found[slot]
    return row, leader[:rows].copy()


@jit_lean
def price_shards(zero, parts, groups, settings, network, memo, shards):
    """Write the times to gather and reduce each sharded part.

    A part is gathered one ahead, in forward and again in backward, where its gradients
    are reduced as well; what outlasts the part's own pass is exposed, and so is all that the
    software does not overlap. Copies out of and into the buffers run among the products.
    """
    dense_tax = overlap_tax(groups, False, settings)
    experts_tax = overlap_tax(groups, True, settings)
    for number in range(shards.size):
        part, shard = parts[number], shards[number]
        tax = experts_tax if part.experts > 0.0 else dense_tax
        dense, sparse = parameters(part.weights, part.experts, groups, settings)
        gather = transfer_time(dense, sparse, network, memo)
        dense, sparse = gradients(zero, part.trained, part.trained_experts, groups, settings)
        reduce = transfer_time(dense, sparse, network, memo)
        behind, beside = 0.0, 0.0  # among copies: once all of backward has run, or on other links
        if not settings.overlap_copies:
            behind = copies_time(dense, sparse, network, memo)
        elif settings.overlap_reduce and on_other_links(groups.dense, settings):
            beside = copies_time(dense, sparse, network, memo)
        reduce -= behind
        size = (part.weights + part.experts) * settings.gather_bytes
        relative = width_of(size, settings.collective_widths)
        early = gather if settings.overlap_gather else 0.0
        late = early
        shown = behind + 2.0 * (gather - early)  # beside nothing
        if settings.overlap_reduce:
            late = max(early + reduce - beside, beside)
        else:
            shown += reduce
        forward = hide(early, part.forward_window, 0.0, tax)
        backward = hide(late, part.backward_window, 0.0, tax)
        forward_width = hidden_width(early, part.forward_window, 0.0, tax, relative)
        backward_width = hidden_width(late, part.backward_window, 0.0, tax, relative)
        whole = moved(part.weights, part.experts, groups)
        copies = (2.0 * settings.gather_copy_time + settings.reduce_copy_time) * whole
        frozen = whole - moved(part.trained, part.trained_experts, groups)
        copies -= settings.reduce_copy_time * frozen
        shard.ahead = forward + gather - early + settings.gather_copy_time * whole
        shard.total = 2.0 * gather + reduce + behind + copies
        shard.exposed = forward + backward + shown + copies
        shard.width = forward_width + backward_width + relative * shown
        shard.first = early - forward
        reduced = (late - early) / late if late > 0.0 else 0.0
        shard.last = reduced * (late - backward)


LOGIT_GRADIENTS = 1.0 / 3.0  # of what logits keep: 2 bytes beside a softmax in single precision


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


def work_of_cases(
    rank_of: np.ndarray, parts: np.ndarray, sharded: np.ndarray, chunks: Chunks, shards: Shards
) -> tuple[np.ndarray, np.ndarray]:
    """Return what passes of all stages that differ take in every case [s].

    Parameters
    ----------
    rank_of : int64, shape (stages,)
        Rank of each stage. Those of a second copy of the model are its chunks again.
    parts : record array of PART, shape (cases, parts)
    sharded : int64, shape (cases,)
        Rows of `shards.parts`; -1 where parameters are not sharded.
    chunks : Chunks
    shards : Shards

    Returns
    -------
    work : float64[KINDS, works, cases]
    work_of : int64[stages]
        Which of these a stage does.
    """
    times, longest = _chunk_times(parts, sharded, chunks.counts, shards)
    row_of, ranks = chunk_rows(rank_of, chunks), int(rank_of.max()) + 1
    beside = np.zeros((ranks, longest.shape[0]), np.int64)  # chunks on the rank
    beside[rank_of, row_of] = 1
    differing = np.column_stack((row_of, beside[rank_of]))
    found, work_of = np.unique(differing, axis=0, return_inverse=True)
    work = np.empty((KINDS, found.shape[0], sharded.size))
    for number, (row, *on_rank) in enumerate(found):
        forward, backward, weight = times[:, row]
        last = longest[np.flatnonzero(on_rank)].max(axis=0)  # reductions show once a micro-batch
        work[FORWARD, number] = forward
        work[BACKWARD, number] = backward + last * ranks / rank_of.size
        work[INPUT, number] = np.maximum(work[BACKWARD, number] - weight, 0.0)
        work[WEIGHT, number] = work[BACKWARD, number] - work[INPUT, number]
    return work, work_of.ravel()


def _chunk_times(
    parts: np.ndarray, sharded: np.ndarray, counts: np.ndarray, shards: Shards
) -> tuple[np.ndarray, np.ndarray]:
    """Return what passes of every distinct chunk take, and its longest last reduction [s].

    Returns
    -------
    times : float64[3, chunk rows, cases]
        Forward passes, backward passes, and what of these is for the weights.
    longest : float64[chunk rows, cases]
    """
    busy = parts["forward"] + parts["backward"] + parts["recompute"] + parts["host"]
    busy += parts["tensor_exposed"] + parts["context_exposed"] + parts["expert_exposed"]
    ahead, last = parts["forward_pass"].copy(), np.zeros_like(busy)
    behind = busy - ahead
    own = np.flatnonzero(sharded >= 0)
    if own.size:
        moved = shards.parts[sharded[own]]
        ahead[own] += moved["ahead"]
        behind[own] += moved["exposed"] - moved["ahead"]
        last[own] = moved["last"]
    each = np.stack((ahead, behind, parts["weight_pass"]))  # [3, cases, parts]
    times = np.zeros((3, counts.shape[0], sharded.size))
    longest = np.zeros(times.shape[1:])
    for row, number in zip(*np.nonzero(counts), strict=True):
        times[:, row] += counts[row, number] * each[:, :, number]
        np.maximum(longest[row], last[:, number], out=longest[row])
    return times, longest


def chunk_rows(rank_of: np.ndarray, chunks: Chunks) -> np.ndarray:
    """Return the row of `chunks` that every stage of an order holds, int64[stages]."""
    return np.resize(chunks.row, rank_of.size)


def least_makespans(order: Order, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    ranks, cases = order.first.size - 1, np.arange(work.shape[2])
    both = work[FORWARD] + work[BACKWARD]
    own = np.zeros((ranks, cases.size))
    for stage, rank in enumerate(order.rank_of):
        own[rank] += both[stage]
    each = order.micro_batches // order.copies  # all copies together have them
    found = each * own
    if order.copies == 1 and not (order.kind == WEIGHT).any():
        passed = np.cumsum(both, axis=0)
        first = np.argmax(order.rank_of == np.arange(ranks)[:, None], axis=1)
        found[first > 0] += passed[first[first > 0] - 1]
    slowest = found.argmax(axis=0)
    return found[slowest, cases], ranks * own[slowest, cases] / order.copies


@jit
def one_f_one_b_times(work, work_of, case_of, batches, sends):
    """Return what 1F1B takes in every case, in closed form, and what a further micro-batch adds.

    Parameters
    ----------
    work, work_of
        Of `work_of_cases`.
    case_of : int64[cases]
        Case of these, for every one here.
    batches : int64[cases]
        Micro-batches.
    sends : float64[cases]
        What a send between stages takes; nothing runs beside it [s].

    Returns
    -------
    makespan, growth : float64[2, cases]
        Without sends and with them; of `steepest` [s].
    """
    cases, stages = case_of.size, work_of.size
    makespan, growth = np.empty((2, cases)), np.empty((2, cases))
    forward, backward = np.empty(stages), np.empty(stages)
    for case in range(cases):
        for one in range(2):
            send = sends[case] if one == 1 else 0.0
            for stage in range(stages):
                forward[stage] = work[FORWARD, work_of[stage], case_of[case]]
                backward[stage] = work[BACKWARD, work_of[stage], case_of[case]]
                forward[stage] += send if stage + 1 < stages else 0.0
                backward[stage] += send if stage > 0 else 0.0
            found = one_f_one_b_makespan(forward, backward, batches[case])
            makespan[one, case] = found
            growth[one, case] = steepest(forward, backward, batches[case], found)
    return makespan, growth


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


def kept_bytes(order: Order, chunks: Chunks, parts: np.ndarray) -> np.ndarray:
    """Return what a forward pass of every stage keeps, float64[2, stages] [B].

    Until the gradients of its input are there, and until those of its weights.

    Where backward passes are split, activations wait for the gradients of the weights: the inputs
    of products are read for those, with the gradients of what they put out, which take the place of
    the rest. Of the logits only their gradients wait.
    """
    held = chunks.counts[chunk_rows(order.rank_of, chunks)]
    logits = held @ parts["logits"]
    waiting = held @ parts["activations"] + LOGIT_GRADIENTS * logits
    return np.stack(((1.0 - LOGIT_GRADIENTS) * logits, waiting))


def flights(order: Order, chunks: Chunks, parts: np.ndarray, compositions: int) -> np.ndarray:
    """Return how many micro-batches stages of every composition keep, by bytes of activations.

    Parameters
    ----------
    order : Order
    chunks : Chunks
    parts : record array of PART, shape (cases, parts)
    compositions : int
        At least as many as the chunks' stages have.

    Returns
    -------
    float64[cases, compositions]
    """
    rows, row_of = np.arange(chunks.counts.shape[0]), chunk_rows(order.rank_of, chunks)
    held, begin = fullest(order.first, order.kind, row_of[order.stage], rows.size)
    size = parts["activations"] @ chunks.counts.T
    found = np.zeros((size.shape[0], compositions))
    for rank, composition in enumerate(chunks.stage_row):
        own = (row_of[order.rank_of == rank, None] == rows).sum(axis=0)
        most = (size @ held[begin[rank] : begin[rank + 1]].T).max(axis=1)
        whole = size @ own
        share = np.divide(most, whole, out=np.zeros_like(most), where=whole > 0.0)
        np.maximum(found[:, composition], share, out=found[:, composition])
    return found


def heads_in_flight(order: Order) -> float:
    """Return how many micro-batches keep their logits at most, by bytes."""
    last = order.rank_of.size // order.copies - 1
    change = np.array([1.0, -1.0, LOGIT_GRADIENTS - 1.0, -LOGIT_GRADIENTS])  # by kind
    return float(np.cumsum(change[order.kind[order.stage == last]]).max())


def alone_passes(order: Order) -> float:
    """Return the share of forward and backward passes that do not run in pairs [1]."""
    passes = np.count_nonzero(order.kind != WEIGHT)
    return 1.0 - 2.0 * int(order.paired.sum()) / passes
