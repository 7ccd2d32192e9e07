"""Close strategies: from tables of parts and stages to step time and memory.

One fused pass over strategies. Everything that needs a tile-level model is already
in the part table; here a strategy only adds up parts per stage, finds the slowest
stage, lets the pipeline, the data-parallel group and the host have their share,
and finds the peak of memory. Strategies that differ in nothing but the batch are a *family*:
what it does not change is found once for all of them. Letters in formulas: m micro-batches, p
stages, v chunks per stage, t_s time of one micro-batch on stage s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_inline, jit_lean, jit_lean_inline
from perfmodel.kernels.collective.times import MEMO_SLOTS, TIME
from perfmodel.kernels.step.data_parallel import DataParallel, data_parallel_time
from perfmodel.kernels.step.memory import Batches
from perfmodel.kernels.step.offload import update_exposed
from perfmodel.kernels.step.overlap import (
    Sends,
    alone_share,
    boundary_send,
    pipeline_time,
    waited_pipeline,
)
from perfmodel.kernels.step.peaks import Peaks, holds_alike, memoised_memory, no_peaks
from perfmodel.kernels.step.placement import data_groups
from perfmodel.kernels.step.sharding import Update, optimizer_time, shards_parameters
from perfmodel.kernels.step.stages import Load, stage_load
from perfmodel.kernels.step.tables import CLOSED, ROW, STAGE_PLACE, TWO_COPIES

WIDEST = 700.0
"""Logarithm of the widest band that float64 can hold."""


class SharedCosts(NamedTuple):
    """What strategies share that differ in nothing but the batch."""

    load: Load
    sends: Sends
    optimizer: Update
    copies: float  # of what waits elsewhere, once a step [s]
    data: DataParallel


class DetailRows(NamedTuple):
    """What is known of a family beyond its results: which place holds what, times in seconds."""

    critical: int  # the slowest stage: a row of `Stages.sums`
    send: int  # what a send between stages takes
    gather: int  # data parallel, ahead of the first pass: what shows, and all of it
    gather_total: int
    reduce: int  # behind the last one
    reduce_total: int
    each: int  # for each micro-batch
    each_total: int
    sharded: int  # of each, what sharded parameters take (ZeRO-3), which is part of passes
    copied: int  # offload: for each micro-batch on the slowest stage,
    copies: int  # and once a step, behind the update


DETAIL = DetailRows(*range(len(DetailRows._fields)))


class Results(NamedTuple):
    """Where results are kept: in one of two arrays, so that kernels are compiled once for both.

    Of shape (len(ROW), strategies); the other one is empty.
    """

    double: np.ndarray  # float64
    single: np.ndarray  # float32
    details: np.ndarray  # float64[len(DETAIL)]: of the last family


def results_in(out):
    """Return the `Results` that fill an array of float64 or float32."""
    details = np.zeros(len(DETAIL))
    if out.dtype == np.float32:
        return Results(np.empty((0, 0)), out, details)
    return Results(out, np.empty((0, 0), np.float32), details)


@jit
def close_strategies(
    families, batch, keys, stages, waits, shards, settings, stream_device, network, out
):
    """Fill the result rows of every strategy.

    Parameters
    ----------
    families : record array of STRATEGY, shape (families,)
    batch : int64, shape (n,)
        Sequences per step, as families name them.
    keys : KeyTables
    stages : Stages
    waits : Waits
        Of the strategies whose passes ran one by one.
    shards : Shards
        Of these families (`perfmodel.kernels.step.scheduled.shard_prices`).
    settings : record of SETTINGS
    stream_device : StreamDevice
        For the optimizer, which streams its state.
    network : Network
        Of `perfmodel.compute.network.network_table`.
    out : Results
        Rows as in `ROW`; all of a strategy NaN where the device lacks its precision.
    """
    if families.size > 0:
        tables = keys, stages, waits, shards, settings, stream_device, network
        _close_all(families, batch, tables, new_scratch(stages), out)


class Scratch(NamedTuple):
    """What closing remembers from one strategy to the next, and writes to."""

    memo: np.ndarray  # of `memoised_time`
    peaks: Peaks
    row: np.ndarray  # float64[len(ROW)]: results of one strategy


@jit_inline
def new_scratch(stages):
    """Return `Scratch` that remembers nothing."""
    return Scratch(np.zeros((MEMO_SLOTS, TIME + 1)), no_peaks(stages), np.zeros(len(ROW)))


@jit_lean
def _close_all(families, batch, tables, scratch, out):
    """Do what `close_strategies` does with its `tables`."""
    keys, stages, waits, shards, settings, _, network = tables
    row = scratch.row
    groups = data_groups(families[0], network)
    for at in range(families.size):
        strategy = families[at]
        if at > 0 and not same_placement(strategy, families[at - 1]):
            groups = data_groups(strategy, network)
        key = keys.of[stages.of[strategy.stage_key].layer_key]
        size, place = strategy.behind - strategy.first, strategy.number
        if not key.peak > 0.0:  # the device lacks the precision
            for variable in range(row.size):
                row[variable] = np.nan
            for one in range(size):
                keep_row(row, place + one, out)
            continue
        sizes, slot = (key.weight_bytes, key.boundary_bytes), shards.row[at]
        before = Batches(0, -1)
        for one in range(size):
            batches = batches_at(strategy, batch, one)
            if one == 0 or parks(strategy):  # what is parked depends on how many there are
                shared = shared_costs(
                    strategy, batches.micro, key, slot, groups, tables, scratch.memo
                )
                write_details(strategy, shared, out.details)
            if one == 0 or not holds_alike(strategy, batches, before, stages, waits, settings):
                memoised_memory(
                    strategy, batches, stages, waits, groups, sizes, settings, row, scratch.peaks
                )
            before = batches
            sequences = batch[strategy.first + one]
            write_strategy(strategy, batches, sequences, shared, key, stages, waits, settings, row)
            keep_row(row, place + one, out)


@jit_lean_inline
def keep_row(row, column, out):
    """Keep the results of one strategy, `float64[len(ROW)]`, in a column of `Results`.

    Zeros are not written where there are some: pages of fresh memory that hold nothing else, as of
    exchanges of experts that a model does not have, are never made.
    """
    if out.single.size > 0:
        _keep_in(out.single, row, column)
    else:
        _keep_in(out.double, row, column)


@jit_lean_inline
def _keep_in(results, row, column):
    for variable in range(row.size):
        if row[variable] != 0.0 or results[variable, column] != 0.0:
            results[variable, column] = row[variable]


@jit_lean_inline
def write_details(strategy, shared, details):
    """Write what timelines need of a family, by the places of `DETAIL`."""
    once, each, ahead = shared.data.once, shared.data.each, shared.data.ahead
    details[DETAIL.critical] = shared.load.critical
    details[DETAIL.send] = shared.sends.time
    details[DETAIL.gather] = ahead.exposed
    details[DETAIL.gather_total] = ahead.total
    details[DETAIL.reduce] = once.exposed - ahead.exposed
    details[DETAIL.reduce_total] = once.total - ahead.total
    details[DETAIL.each] = each.exposed
    details[DETAIL.each_total] = each.total
    details[DETAIL.sharded] = 0.0
    if shards_parameters(strategy.zero_stage):
        details[DETAIL.sharded] = shared.load.shard_exposed
    details[DETAIL.copied] = shared.load.offload_exposed
    details[DETAIL.copies] = shared.copies


@jit_lean_inline
def batches_at(strategy, batch, one):
    """Return the `Batches` of one strategy of a family."""
    count = batch[strategy.first + one] // (strategy.data_parallel * strategy.micro_batch_size)
    line = strategy.waits + min(one, strategy.lines - 1) if strategy.waits >= 0 else -1
    return Batches(count, line)


@jit_lean_inline
def parks(strategy):
    """Tell whether a strategy leaves activations on other stages."""
    return strategy.offload_activations > 0.0 and strategy.offload_activations_to == STAGE_PLACE


@jit_lean_inline
def shared_costs(strategy, batches, key, slot, groups, tables, memo):
    """Return what all strategies of a family share, `batches` being micro-batches of one.

    `tables` are those of `close_strategies`, and `slot` is a row of its `shards`.
    """
    _, stages, _, shards, settings, stream_device, network = tables
    load = stage_load(strategy, batches, stages, shards, slot, groups, settings, network, memo)
    stage = stages.sums[load.critical]
    sends = Sends(0.0, 0.0, 0.0)
    if strategy.pipeline_parallel > 1:
        sends = boundary_send(key, strategy.pipeline_parallel, groups, settings, network, memo)
    optimizer = optimizer_time(strategy, load, groups, settings, stream_device)
    copies = update_exposed(strategy, load, stage, groups, settings, optimizer.time)
    beside = strategy.virtual_pipeline * sends.beside
    data = data_parallel_time(
        strategy, load, groups, stage, beside, optimizer.time, key, settings, network, memo
    )
    return SharedCosts(load, sends, optimizer, copies, data)


@jit_lean_inline
def write_strategy(strategy, batches, batch, shared, key, stages, waits, settings, out):
    """Write the times of one strategy of a family, and what follows from them.

    Parameters
    ----------
    strategy : record of STRATEGY
    batches : Batches
    batch : int
        Sequences per step.
    shared : SharedCosts
    key : record of KEY
    stages, waits, settings
        As of `close_strategies`.
    out : float64[len(ROW)]
        Result.
    """
    load, p, v = shared.load, strategy.pipeline_parallel, strategy.virtual_pipeline
    stage = stages.sums[load.critical]
    m = float(batches.micro)
    if strategy.schedule & TWO_COPIES and p > 1:
        m *= 0.5  # either copy of the model takes half of them
    alone = alone_share(m, p, v)
    if batches.waits >= 0:
        wait = waits.of[batches.waits]
        pipeline = waited_pipeline(m, batches.micro, p, v, load, shared.sends, wait)
        if not strategy.schedule & CLOSED:
            alone = wait.alone
    else:
        overlap = settings.overlap_pipeline
        pipeline = pipeline_time(strategy.schedule, m, p, v, load, shared.sends, overlap)
    step = write_times(m, alone, stage, pipeline, shared, settings, out)
    widths = stages.of[strategy.stage_key]
    width = band_width(m, v, step, stage, widths, pipeline, shared, settings)
    # No run is faster than its matrix FLOP at the datasheet's rate.
    limit = load.executed * m / (p * key.peak)
    out[ROW.step_time_low] = max(step / width, min(limit, step))
    out[ROW.step_time_high] = step * width
    tokens = float(batch) * float(strategy.sequence_length) * (1.0 - strategy.padding)
    rate = tokens / (step * settings.devices)
    out[ROW.tokens_per_second_per_device] = rate
    out[ROW.model_flops_utilization] = rate * key.flops_causal / key.peak
    out[ROW.model_flops_utilization_non_causal] = rate * key.flops_non_causal / key.peak
    out[ROW.hardware_flops_utilization] = limit / step


@jit_lean_inline
def same_placement(one, other):
    """Tell whether two strategies have the same `data_groups`."""
    return (
        one.mapping == other.mapping
        and one.tensor_parallel == other.tensor_parallel
        and one.context_parallel == other.context_parallel
        and one.pipeline_parallel == other.pipeline_parallel
        and one.data_parallel == other.data_parallel
        and one.shard_group == other.shard_group
        and one.expert_parallel == other.expert_parallel
        and one.expert_tensor_parallel == other.expert_tensor_parallel
    )


@jit_lean_inline
def write_times(m, alone, stage, pipeline, shared, settings, out):
    """Write the time of the step [s] and its components, and return it."""
    once, each = shared.data.once, shared.data.each
    exposed = pipeline.exposed + once.waits + m * each.waits
    data = once.exposed + m * each.exposed
    copies = m * shared.load.offload_exposed + shared.copies
    exchange = m * stage.expert_exposed
    if settings.pairs:
        hidden = m * (stage.expert_total - stage.expert_exposed)
        exchange += alone * hidden
    step = m * stage.busy + settings.step_overhead + shared.optimizer.time
    step += exposed + data + pipeline.bubble + exchange - m * stage.expert_exposed
    step += copies
    out[ROW.step_time] = step
    out[ROW.forward_time] = m * stage.forward
    out[ROW.backward_time] = m * stage.backward
    out[ROW.recompute_time] = m * stage.recompute
    out[ROW.optimizer_time] = shared.optimizer.time
    out[ROW.host_time] = m * stage.host + settings.step_overhead
    out[ROW.tensor_parallel_exposed] = m * stage.tensor_exposed
    out[ROW.context_parallel_exposed] = m * stage.context_exposed
    out[ROW.expert_parallel_exposed] = exchange
    out[ROW.pipeline_exposed] = exposed
    out[ROW.data_parallel_exposed] = data
    out[ROW.offload_exposed] = copies
    out[ROW.pipeline_bubble] = pipeline.bubble
    out[ROW.tensor_parallel_total] = m * stage.tensor_total
    out[ROW.context_parallel_total] = m * stage.context_total
    out[ROW.expert_parallel_total] = m * stage.expert_total
    out[ROW.pipeline_total] = pipeline.total + once.waits + m * each.waits
    out[ROW.data_parallel_total] = once.total + m * each.total
    return step


@jit_lean_inline
def band_width(m, v, step, stage, widths, pipeline, shared, settings):
    """Return the 90th percentile of the step time over the projected one [1].

    Half-widths: of the slowest stage m times, but for its share of the bubble, and of all
    stages (`widths`) once through the bubble. Independent classes, and what no kernel
    explains: in quadrature. The band is even in the logarithm, in which the errors were found.
    """
    load, data = shared.load, shared.data
    ahead = m - 1.0 / v
    compute = ahead * stage.compute_width + widths.compute_width / v
    stream = ahead * stage.stream_width + widths.stream_width / v
    stream += shared.optimizer.width
    collective = ahead * (stage.collective_width + load.shard_width)
    collective += (widths.collective_width + load.shard_widths) / v
    collective += pipeline.width
    collective += data.once.width + m * data.each.width
    collective += data.table_width
    unexplained = settings.step_width * step
    variance = unexplained * unexplained
    variance += compute * compute + stream * stream + collective * collective
    return math.exp(min(math.sqrt(variance) / step, WIDEST))
