"""Communication of the data-parallel group: gradients out, parameters in."""

from __future__ import annotations

from perfmodel.kernels._jit import jit
from perfmodel.kernels.collective import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, collective_time
from perfmodel.kernels.step_tables import (
    EXPERTS,
    WEIGHTS,
)


@jit
def hide(total, window, tail, tax):
    """Exposed part of a communication that runs beside `window` seconds of compute.

    At least `tail` of it (the last bucket) has nothing beside it; the hidden rest
    slows the compute down by `tax`.
    """
    exposed = min(total, max(total - window, tail))
    return exposed + tax * (total - exposed)


@jit
def sharded_reduce(size, kind, members, stride, group, network):
    """Reduce or gather over a data group, hierarchically where shards repeat (HSDP).

    `group` members share one shard set; the other ``members / group`` hold copies of
    it, among which the reduced shards are all-reduced.
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    if group <= 0 or group >= members:
        return collective_time(kind, size, members, stride, network)
    time = collective_time(kind, size, group, stride, network)
    if kind == REDUCE_SCATTER:
        copies = members // group
        time += collective_time(ALL_REDUCE, size / group, copies, stride * group, network)
    return time


@jit
def layer_shards(part, replicas, stride, group, expert_replicas, expert_stride, settings, network):
    """Times to gather the parameters of one part and to reduce its gradients [s]."""
    gather = sharded_reduce(
        part[WEIGHTS] * settings.gather_bytes, ALL_GATHER, replicas, stride, group, network
    )
    reduce = sharded_reduce(
        part[WEIGHTS] * settings.reduce_bytes, REDUCE_SCATTER, replicas, stride, group, network
    )
    if part[EXPERTS] > 0.0:
        expert_group = min(group, expert_replicas)
        gather += sharded_reduce(
            part[EXPERTS] * settings.gather_bytes,
            ALL_GATHER,
            expert_replicas,
            expert_stride,
            expert_group,
            network,
        )
        reduce += sharded_reduce(
            part[EXPERTS] * settings.reduce_bytes,
            REDUCE_SCATTER,
            expert_replicas,
            expert_stride,
            expert_group,
            network,
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
    forward,
    backward,
    tax,
    settings,
    network,
):
    """Total and exposed time of gradient reduction and parameter gather, ZeRO 0 to 2 [s].

    Gradients are reduced beside the backward of the last micro-batch (of every
    micro-batch with ZeRO-2, which keeps no full gradients), parameters gathered beside
    the first forward. The last bucket has nothing left to hide behind.
    """
    kind = ALL_REDUCE if zero == 0 else REDUCE_SCATTER
    reduce = sharded_reduce(
        weights * settings.reduce_bytes, kind, replicas, stride, group, network
    ) + sharded_reduce(
        experts * settings.reduce_bytes,
        kind,
        expert_replicas,
        expert_stride,
        min(group, expert_replicas),
        network,
    )
    gather = 0.0
    if zero >= 1:
        gather = sharded_reduce(
            weights * settings.gather_bytes, ALL_GATHER, replicas, stride, group, network
        ) + sharded_reduce(
            experts * settings.gather_bytes,
            ALL_GATHER,
            expert_replicas,
            expert_stride,
            min(group, expert_replicas),
            network,
        )
    reductions = batches if zero == 2 else 1.0
    gradients = max((weights + experts) * settings.gradient_bytes, 1.0)
    tail = min(1.0, settings.bucket_bytes / gradients)
    exposed_reduce, exposed_gather = reduce, gather
    if settings.overlap_reduce:
        exposed_reduce = hide(reduce, backward, tail * reduce, tax)
    if settings.overlap_gather:
        exposed_gather = hide(gather, forward, tail * gather, tax)
    total = reductions * reduce + gather
    return total, reductions * exposed_reduce + exposed_gather
