"""Communication of the data-parallel group: gradients out, parameters in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.collective.times import ALL_REDUCE
from perfmodel.kernels.step.memo import remembered_time
from perfmodel.kernels.step.overlap import (
    beside_sends,
    hidden_width,
    hide,
    overlap_tax,
    width_of,
)
from perfmodel.kernels.step.sharding import (
    gradient_transfers,
    parameter_transfers,
    repeats,
    shards_optimizer,
    shards_parameters,
)


@jit_inline
def transfer_time(pair, network, memo):
    """Time of two `Transfer` in turn [s]."""
    first, second = pair
    time = remembered_time(first.kind, first.size, first.members, first.stride, network, memo)
    if second.members > 1:
        time += remembered_time(
            second.kind, second.size, second.members, second.stride, network, memo
        )
    return time


@jit_inline
def reduce_time(zero, weights, experts, groups, settings, network, memo):
    """Time to reduce the gradients of so many parameters once [s]."""
    time = transfer_time(gradient_transfers(zero, weights, groups.dense, settings), network, memo)
    if experts > 0.0:
        time += transfer_time(
            gradient_transfers(zero, experts, groups.sparse, settings), network, memo
        )
    return time


@jit_inline
def gather_time(weights, experts, groups, settings, network, memo):
    """Time to gather so many parameters once [s]."""
    time = transfer_time(parameter_transfers(weights, groups.dense, settings), network, memo)
    if experts > 0.0:
        time += transfer_time(parameter_transfers(experts, groups.sparse, settings), network, memo)
    return time


class Shards(NamedTuple):
    """What moving the parameters of each part takes per micro-batch (ZeRO-3) [s]."""

    total: np.ndarray
    exposed: np.ndarray
    width: np.ndarray  # half-width of exposed


@jit
def price_shards(zero, parts, groups, settings, network, memo, shards):
    """Fill the times to gather and reduce each sharded part.

    A part is gathered one ahead, in forward and again in backward, where its gradients
    are reduced as well; what outlasts the part's own pass is exposed.
    """
    tax = overlap_tax(groups, settings)
    for number in range(shards.total.size):
        part = parts[number]
        gather = gather_time(part.weights, part.experts, groups, settings, network, memo)
        reduce = reduce_time(zero, part.weights, part.experts, groups, settings, network, memo)
        both = gather + reduce
        size = (part.weights + part.experts) * settings.gather_bytes
        relative = width_of(size, settings.collective_widths)
        forward, backward = gather, both
        forward_width, backward_width = relative * gather, relative * both
        if settings.overlap_gather:
            forward = hide(gather, part.forward_window, 0.0, tax)
            forward_width = hidden_width(gather, part.forward_window, 0.0, tax, relative)
        if settings.overlap_reduce:
            backward = hide(both, part.backward_window, 0.0, tax)
            backward_width = hidden_width(both, part.backward_window, 0.0, tax, relative)
        shards.total[number] = gather + both
        shards.exposed[number] = forward + backward
        shards.width[number] = forward_width + backward_width


@jit_inline
def whole_stage(zero, m, load, groups, stage, sends, sends_show, settings, network, memo):
    """Total, exposed time, half-width and waits with ZeRO 0 to 2: a whole stage at once [s].

    Gradients are reduced beside the backward of the last micro-batch (of every
    micro-batch with ZeRO-2, which keeps no full gradients), parameters gathered beside
    the first forward. The last bucket has nothing left to hide behind.

    Parameters
    ----------
    zero : int
    m : float
        Micro-batches.
    load : Load
    groups : Groups
    stage : record of STAGE
        The slowest stage.
    sends : float
        Time of pipeline sends per micro-batch and pass [s], 0 where they use other links.
    sends_show : bool
        As of `beside_sends`.
    settings, network, memo

    Returns
    -------
    total, exposed, width, waits : float
        As of `DataParallel`, without a tied table.
    """
    tax = overlap_tax(groups, settings)
    times = repeats(zero, m)
    whole = load.weights + load.experts
    reduce = reduce_time(zero, load.weights, load.experts, groups, settings, network, memo)
    gather = 0.0
    if shards_optimizer(zero):
        gather = gather_time(load.weights, load.experts, groups, settings, network, memo)
    tail = min(1.0, settings.bucket_bytes / max(whole * settings.gradient_bytes, 1.0))
    relative = width_of(whole * settings.reduce_bytes, settings.collective_widths)
    waits = 0.0
    exposed_reduce, width_reduce = reduce, relative * reduce
    if settings.overlap_reduce:
        wait, lost, window = beside_sends(reduce, stage.backward_window, sends, sends_show, tail)
        waits += times.reductions * wait
        exposed_reduce = hide(reduce + lost, window, tail * reduce, tax)
        width_reduce = hidden_width(reduce + lost, window, tail * reduce, tax, relative)
    exposed_gather, width_gather = gather, relative * gather
    if settings.overlap_gather:
        wait, lost, window = beside_sends(gather, stage.forward_window, sends, sends_show, tail)
        waits += wait
        exposed_gather = hide(gather + lost, window, tail * gather, tax)
        width_gather = hidden_width(gather + lost, window, tail * gather, tax, relative)
    return (
        times.reductions * reduce + gather,
        times.reductions * exposed_reduce + exposed_gather,
        times.reductions * width_reduce + width_gather,
        waits,
    )


@jit_inline
def tied_table(parameters, p, groups, settings, network, memo):
    """Time to add up the gradients of a table that first and last stage hold, and its width.

    Parameters
    ----------
    parameters : float
        Of the table; 0 for none.
    p : int
        Stages.
    groups, settings, network, memo

    Returns
    -------
    time, width : float
        [s]
    """
    if p == 1 or parameters <= 0.0:
        return 0.0, 0.0
    size = parameters * settings.gradient_bytes
    span = groups.pipeline_stride * (p - 1)
    time = remembered_time(ALL_REDUCE, size, 2, span, network, memo)
    return time, width_of(size, settings.collective_widths) * time


class DataParallel(NamedTuple):
    """What moving parameters and gradients takes in a step."""

    total: float  # [s]
    exposed: float  # what delays the step [s]
    width: float  # half-width of that, without a tied table [s]
    table_width: float  # of the tied table [s]
    waits: float  # what pipeline sends on the same links lose [s]


@jit_inline
def data_parallel_time(
    strategy, m, load, groups, stage, pipeline, table_parameters, settings, network, memo
):
    """Parameters and gradients of a strategy, those of a tied table included.

    Parameters
    ----------
    strategy : Strategies
        One of them.
    m : float
        Micro-batches.
    load : Load
    groups : Groups
    stage : record of STAGE
        The slowest stage.
    pipeline : Pipeline
    table_parameters : float
        Of a table that first and last stage hold; 0 for none.
    settings, network, memo

    Returns
    -------
    DataParallel
    """
    table, table_width = tied_table(
        table_parameters, strategy.pipeline, groups, settings, network, memo
    )
    if shards_parameters(strategy.zero):
        return DataParallel(
            m * load.shard_total + table, m * load.shard_exposed + table, 0.0, table_width, 0.0
        )
    sends_show = not (settings.overlap_pipeline and strategy.virtual > 1)
    total, exposed, width, waits = whole_stage(
        strategy.zero,
        m,
        load,
        groups,
        stage,
        pipeline.beside,
        sends_show,
        settings,
        network,
        memo,
    )
    return DataParallel(total + table, exposed + table, width, table_width, waits)
