"""Communication of the data-parallel group: gradients out, parameters in."""

from __future__ import annotations

from perfmodel.kernels._jit import jit
from perfmodel.kernels.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, collective_time
from perfmodel.kernels.step_tables import (
    EXPERTS,
    WEIGHTS,
)

MEMO_SLOTS = 256  # a power of two
MEMO_COLUMNS = 5  # kind, size, members, stride, time


@jit
def remembered_time(kind, size, members, stride, network, memo):
    """Collective time that remembers its last answers.

    Neighbouring strategies of a grid ask for the same collectives again and again.

    Parameters
    ----------
    kind, size, members, stride, network
        As of `perfmodel.kernels.collective.collective_time`.
    memo : float64[MEMO_SLOTS, MEMO_COLUMNS]
        Answers so far; rows of zeros (size 0) are free.

    Returns
    -------
    float
        Time [s].
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    row = memo[(kind + 7 * members + 3 * stride + int(size) // 64) & (MEMO_SLOTS - 1)]
    if row[1] == size and row[0] == kind and row[2] == members and row[3] == stride:
        return row[4]
    time = collective_time(kind, size, members, stride, network)
    row[0], row[1], row[2], row[3], row[4] = kind, size, members, stride, time
    return time


@jit
def hide(total, window, tail, tax):
    """Exposed part of a communication that runs beside `window` seconds of compute.

    At least `tail` of it (the last bucket) has nothing beside it; the hidden rest
    slows the compute down by `tax`.
    """
    exposed = min(total, max(total - window, tail))
    return exposed + tax * (total - exposed)


@jit
def width_of(quantity, regimes):
    """Relative half-width of the regime in which a quantity lies.

    Parameters
    ----------
    quantity : float
    regimes : tuple of five floats
        First value of the middle and of the large regime, then the half-widths of small,
        middle and large operations (`perfmodel.uncertainty.kernel_widths`).
    """
    if quantity < regimes[0]:
        return regimes[2]
    return regimes[3] if quantity < regimes[1] else regimes[4]


@jit
def hidden_width(total, window, tail, tax, relative):
    """Half-width of what `hide` leaves exposed of a communication known to ± `relative`.

    Half the difference between a slow and a fast communication: the whole of the error
    shows where compute no longer hides it, little where it has room.
    """
    more, less = 1.0 + relative, max(0.0, 1.0 - relative)
    slow = hide(more * total, window, more * tail, tax)
    return 0.5 * (slow - hide(less * total, window, less * tail, tax))


@jit
def sharded_reduce(size, kind, members, stride, group, network, memo):
    """Reduce or gather over a data group, hierarchically where shards repeat (HSDP).

    `group` members share one shard set; the other ``members / group`` hold copies of
    it, among which the reduced shards are all-reduced.
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    if group <= 0 or group >= members:
        return remembered_time(kind, size, members, stride, network, memo)
    time = remembered_time(kind, size, group, stride, network, memo)
    if kind == REDUCE_SCATTER:
        copies = members // group
        time += remembered_time(ALL_REDUCE, size / group, copies, stride * group, network, memo)
    return time


@jit
def layer_shards(
    part,
    replicas,
    stride,
    group,
    expert_replicas,
    expert_stride,
    expert_group,
    settings,
    network,
    memo,
):
    """Times to gather the parameters of one part and to reduce its gradients [s]."""
    gather = sharded_reduce(
        part[WEIGHTS] * settings.gather_bytes, ALL_GATHER, replicas, stride, group, network, memo
    )
    reduce = sharded_reduce(
        part[WEIGHTS] * settings.reduce_bytes,
        REDUCE_SCATTER,
        replicas,
        stride,
        group,
        network,
        memo,
    )
    if part[EXPERTS] > 0.0:
        gather += sharded_reduce(
            part[EXPERTS] * settings.gather_bytes,
            ALL_GATHER,
            expert_replicas,
            expert_stride,
            expert_group,
            network,
            memo,
        )
        reduce += sharded_reduce(
            part[EXPERTS] * settings.reduce_bytes,
            REDUCE_SCATTER,
            expert_replicas,
            expert_stride,
            expert_group,
            network,
            memo,
        )
    return gather, reduce


@jit
def data_parallel(
    zero,
    batches,
    weights,
    experts,
    replicas,
    stride,
    group,
    expert_replicas,
    expert_stride,
    expert_group,
    forward,
    backward,
    tax,
    settings,
    network,
    memo,
):
    """Total, exposed time and its half-width: gradients and parameters, ZeRO 0 to 2 [s].

    Gradients are reduced beside the backward of the last micro-batch (of every
    micro-batch with ZeRO-2, which keeps no full gradients), parameters gathered beside
    the first forward. The last bucket has nothing left to hide behind.
    """
    kind = ALL_REDUCE if zero == 0 else REDUCE_SCATTER
    reduce = sharded_reduce(
        weights * settings.reduce_bytes, kind, replicas, stride, group, network, memo
    ) + sharded_reduce(
        experts * settings.reduce_bytes,
        kind,
        expert_replicas,
        expert_stride,
        expert_group,
        network,
        memo,
    )
    gather = 0.0
    if zero >= 1:
        gather = sharded_reduce(
            weights * settings.gather_bytes, ALL_GATHER, replicas, stride, group, network, memo
        ) + sharded_reduce(
            experts * settings.gather_bytes,
            ALL_GATHER,
            expert_replicas,
            expert_stride,
            expert_group,
            network,
            memo,
        )
    reductions = batches if zero == 2 else 1.0
    gradients = max((weights + experts) * settings.gradient_bytes, 1.0)
    tail = min(1.0, settings.bucket_bytes / gradients)
    relative = width_of((weights + experts) * settings.reduce_bytes, settings.collective_widths)
    exposed_reduce, width_reduce = reduce, relative * reduce
    if settings.overlap_reduce:
        exposed_reduce = hide(reduce, backward, tail * reduce, tax)
        width_reduce = hidden_width(reduce, backward, tail * reduce, tax, relative)
    exposed_gather, width_gather = gather, relative * gather
    if settings.overlap_gather:
        exposed_gather = hide(gather, forward, tail * gather, tax)
        width_gather = hidden_width(gather, forward, tail * gather, tax, relative)
    total = reductions * reduce + gather
    exposed = reductions * exposed_reduce + exposed_gather
    return total, exposed, reductions * width_reduce + width_gather
