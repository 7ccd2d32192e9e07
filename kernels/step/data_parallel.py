"""Communication of the data-parallel group: gradients out, parameters in."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit_lean_inline
from perfmodel.kernels.collective.algorithms import ALL_REDUCE
from perfmodel.kernels.collective.times import memoised_time
from perfmodel.kernels.step.overlap import (
    beside_sends,
    boundary_span,
    hidden_width,
    hide,
    overlap_tax,
    width_of,
)
from perfmodel.kernels.step.sharding import (
    gradient_transfers,
    kept,
    parameter_transfers,
    shard_count,
    shards_gradients,
    shards_optimizer,
    shards_parameters,
)
from perfmodel.kernels.step.tables import JOINED_ENDS, TWO_COPIES


@jit_lean_inline
def transfer_time(dense, sparse, network, memo):
    """Time of two pairs of `Transfer` in turn: of dense parameters and of experts [s]."""
    total = 0.0
    for pair in (dense, sparse):
        time = 0.0
        for one in pair:
            time += memoised_time(one.kind, one.size, one.members, one.stride, network, memo)
        total += time
    return total


@jit_lean_inline
def copies_time(dense, sparse, network, memo):
    """Time of what `transfers` sends among copies of shards [s]."""
    time = 0.0
    for one in (dense[1], sparse[1]):
        time += memoised_time(one.kind, one.size, one.members, one.stride, network, memo)
    return time


@jit_lean_inline
def on_other_links(group, settings):
    """Whether shard sets lie inside a node and copies of their shards in different ones.

    Then the two reductions of a bucket take different links, and that of one bucket among
    copies runs beside that of the next within its set: PyTorch and Megatron-Core have a stream
    for either, for this reason (`FSDPCommContext.all_reduce_stream`).
    """
    within = group.shard_set == 1 or group.shard_set * group.set_stride <= settings.domain
    return group.shard_set > 0 and within and group.copies_stride >= settings.domain


@jit_lean_inline
def ready_window(time, window, pipeline, virtual):
    """Return the compute that buckets of a stage run beside, from when each is ready [s].

    With one chunk, a pass of one micro-batch. Interleaved schedules finish chunk by chunk, p
    micro-batches of one and then of the next: between two chunks p passes of a chunk go by, and
    only the last chunk has no more than its own. What is left at the end is the larger of what the
    last chunk leaves, and what all leave of all that time.

    Parameters
    ----------
    time : float
        To move the parameters of the stage [s].
    window : float
        A pass of one micro-batch through all chunks of the stage [s].
    pipeline, virtual : int
        Stages, and chunks of each.
    """
    v = float(virtual)
    last = time * (1.0 - 1.0 / v) + window / v
    everything = window * (1.0 + (v - 1.0) * pipeline) / v
    return min(last, everything)


@jit_lean_inline
def moved(weights, experts, groups):
    """Of so many parameters, those that a group of several devices shares or reduces."""
    return (weights if groups.dense.members > 1 else 0.0) + (
        experts if groups.sparse.members > 1 else 0.0
    )


@jit_lean_inline
def gradients(zero, weights, experts, groups, settings):
    """Transfers that reduce the gradients of so many parameters once."""
    return (
        gradient_transfers(zero, weights, groups.dense, settings),
        gradient_transfers(zero, experts, groups.sparse, settings),
    )


@jit_lean_inline
def parameters(weights, experts, groups, settings):
    """Transfers that gather so many parameters once."""
    return (
        parameter_transfers(weights, groups.dense, settings),
        parameter_transfers(experts, groups.sparse, settings),
    )


class Moved(NamedTuple):
    """What moving parameters or gradients takes."""

    total: float  # with copies out of and into the buffers [s]
    exposed: float  # what delays the step [s]
    width: float  # half-width of that, without a tied table [s]
    waits: float  # what pipeline sends on the same links lose [s]


@jit_lean_inline
def whole_stage(
    strategy, load, reduce, beside, gather, update, groups, stage, sends, sends_show, settings
):
    """What it takes with ZeRO 0 to 2, a whole stage at once: one reduction, and one gather.

    Gradients are reduced beside the backward of the last micro-batch of each chunk (of every
    micro-batch with ZeRO-2, which keeps no full gradients), parameters gathered beside
    the first forward (`ready_window`). The last bucket has nothing left to hide behind.

    Where the first chunk is gathered beside the update of the others
    (`Settings.overlap_update`), it is one bucket: of its gather shows what outlasts that update,
    and its gradients are reduced once all of them are there (Megatron-Core, which updates it apart
    from the others and turns off bucketing).

    Parameters
    ----------
    strategy : record of STRATEGY
    load : Load
    reduce, gather : float
        Time to reduce the gradients, and to gather the parameters, once [s].
    beside : float
        What of the former runs beside the rest of it, bucket by bucket (`on_other_links`) [s].
    update : float
        Of the parameters [s].
    groups : Groups
    stage : record of STAGE
        The slowest stage.
    sends : float
        Time of pipeline sends per micro-batch and pass [s], 0 where they use other links.
    sends_show : bool
        As of `beside_sends`.
    settings : record of SETTINGS

    Returns
    -------
    reduced, gathered : Moved
    """
    tax = overlap_tax(groups, load.experts > 0.0, settings)
    p, v = strategy.pipeline_parallel, strategy.virtual_pipeline
    whole = load.weights + load.experts
    bucket = settings.bucket_bytes
    if not shards_gradients(strategy.zero_stage):  # then a layer moves at a time
        bucket = max(bucket, settings.bucket_bytes_per_rank * groups.dense.members)
    tail = min(1.0, bucket / max(whole * settings.gradient_bytes, 1.0))
    first, ahead = tail * gather, 0.0  # of the gather: shown at least, and time ahead of the pass
    if settings.overlap_update and shards_optimizer(strategy.zero_stage) and v > 1 and p > 1:
        ahead = update * (1.0 - 1.0 / v)
        tail = max(tail, 1.0 / v)
        first = max(0.0, gather / v - ahead)
    relative = width_of(whole * settings.reduce_bytes, settings.collective_widths)
    reduced = Moved(reduce, reduce, relative * reduce, 0.0)
    if settings.overlap_reduce:
        last = tail * reduce
        left = reduce - (1.0 - tail) * min(beside, reduce - beside)
        passed = stage.backward_window
        if not shards_gradients(strategy.zero_stage):
            passed = ready_window(left, passed, p, v)
        wait, lost, window = beside_sends(left, passed, sends, sends_show, tail)
        exposed = hide(left + lost, window, last, tax)
        width = hidden_width(left + lost, window, last, tax, relative)
        reduced = Moved(reduce, exposed, width, wait)
    gathered = Moved(gather, gather, relative * gather, 0.0)
    if settings.overlap_gather:
        passed = ready_window(gather, stage.forward_window, p, v) + min(ahead, gather / v)
        wait, lost, window = beside_sends(gather, passed, sends, sends_show, tail)
        exposed = hide(gather + lost, window, first, tax)
        width = hidden_width(gather + lost, window, first, tax, relative)
        gathered = Moved(gather, exposed, width, wait)
    return reduced, gathered


@jit_lean_inline
def scales_time(strategy, size, network, memo):
    """Time in which a stage's ranks agree on the scales of delayed fp8, per micro-batch [s].

    After the forward and the backward pass of every chunk all of them reduce the maxima that
    they have seen, with nothing beside it (Transformer Engine, `FP8GlobalStateManager`). They are
    taken as neighbours, as in the default order of the axes.
    """
    ranks = strategy.tensor_parallel * strategy.context_parallel * strategy.data_parallel
    if not size > 0.0 or ranks == 1:
        return 0.0
    return (
        2.0 * strategy.virtual_pipeline * memoised_time(ALL_REDUCE, size, ranks, 1, network, memo)
    )


class DataParallel(NamedTuple):
    """What moving parameters and gradients takes in a step."""

    once: Moved
    each: Moved  # more for each micro-batch
    ahead: Moved  # of once: what comes ahead of the first pass
    table_width: float  # half-width of the tied table, once [s]


@jit_lean_inline
def data_parallel_time(
    strategy, load, groups, stage, beside_pass, update, key, settings, network, memo
):
    """Parameters and gradients of a strategy, those of a tied table and scales included.

    Parameters
    ----------
    strategy : record of STRATEGY
    load : Load
    groups : Groups
    stage : record of STAGE
        The slowest stage.
    beside_pass : float
        Pipeline sends of a micro-batch and pass on the same links [s].
    update : float
        Of the parameters [s].
    key : record of KEY
    settings, network, memo

    Returns
    -------
    DataParallel
    """
    zero, p = strategy.zero_stage, strategy.pipeline_parallel
    table, table_width = 0.0, 0.0
    if p > 1 and key.trained_table > 0.0 and not strategy.schedule & JOINED_ENDS:
        # First and last stage add up its gradients.
        size = key.trained_table * settings.gradient_bytes
        span = boundary_span(groups.pipeline_stride, p)
        table = memoised_time(ALL_REDUCE, size, 2, span, network, memo)
        table_width = width_of(size, settings.collective_widths) * table
    if strategy.schedule & TWO_COPIES and p > 1:  # either copy of the model on the mirrored stage
        owned = kept(zero, load.weights, load.experts, groups).updated
        span = boundary_span(groups.pipeline_stride, p)
        size = owned * settings.reduce_bytes
        table += memoised_time(ALL_REDUCE, size, 2, span, network, memo)
    if settings.sums_experts:
        # Main gradients, once a step, in one collective behind all others (Megatron-Bridge,
        # peft/utils.py, `allreduce_expert_parallel_replicated_grads`).
        size, inner = load.experts * settings.gradient_bytes, strategy.expert_tensor_parallel
        table += memoised_time(ALL_REDUCE, size, strategy.expert_parallel, inner, network, memo)
    scales = scales_time(strategy, key.scale_bytes, network, memo)
    if shards_parameters(zero):
        once = Moved(table, load.shard_first + table, 0.0, 0.0)
        each = Moved(load.shard_total + scales, load.shard_exposed + scales, 0.0, 0.0)
        return DataParallel(once, each, Moved(0.0, load.shard_first, 0.0, 0.0), table_width)
    dense, sparse = gradients(zero, load.weights, load.experts, groups, settings)
    reduce = transfer_time(dense, sparse, network, memo)
    beside = 0.0
    if settings.overlap_copies and on_other_links(groups.dense, settings):
        beside = copies_time(dense, sparse, network, memo)
    gather = 0.0
    if shards_optimizer(zero):
        dense, sparse = parameters(load.weights, load.experts, groups, settings)
        gather = transfer_time(dense, sparse, network, memo)
        further = shard_count(zero, groups.dense) - 1  # owners with a broadcast each, in turn
        gather = max(gather, settings.owner_call * further)
    sends_show = not (settings.overlap_pipeline and strategy.virtual_pipeline > 1)
    reduced, gathered = whole_stage(
        strategy,
        load,
        reduce,
        beside,
        gather,
        update,
        groups,
        stage,
        beside_pass,
        sends_show,
        settings,
    )
    here = moved(load.weights, load.experts, groups)
    copied_out = settings.reduce_copy_time * here
    copied_in = settings.gather_copy_time * here if shards_optimizer(zero) else 0.0
    ahead = Moved(gathered.total + copied_in, gathered.exposed + copied_in, 0.0, gathered.waits)
    rest = table + copied_in
    if shards_gradients(zero):
        once = Moved(gathered.total + rest, gathered.exposed + rest, gathered.width, gathered.waits)
        own = copied_out + scales
        each = Moved(reduced.total + own, reduced.exposed + own, reduced.width, reduced.waits)
        return DataParallel(once, each, ahead, table_width)
    rest += copied_out
    once = Moved(
        reduced.total + gathered.total + rest,
        reduced.exposed + gathered.exposed + rest,
        reduced.width + gathered.width,
        reduced.waits + gathered.waits,
    )
    return DataParallel(once, Moved(scales, scales, 0.0, 0.0), ahead, table_width)
