"""Where the groups of the parallel axes lie: strides, and members inside a domain.

Devices are numbered with the innermost network level contiguous, and the axes
tensor, context, data and pipeline fill them in some order. A *row* of ranks (those
of one axis, of data × context, or of a pipeline stage) has blocks of ``block``
ranks ``stride`` apart, one block every ``jump`` devices: index x is on device

    (x mod block) stride + (x div block) jump

and the row is even where ``jump == block * stride``. A group takes every ``step``-th
index of a row. It stays one arithmetic progression, or becomes two nested ones,
``inner`` members inside each of ``outer`` blocks, where an axis that does not belong
to it lies in between.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean

TENSOR, CONTEXT, DATA, PIPELINE = 0, 1, 2, 3
# Axes of every order, innermost first; the row is the code of the order.
ORDERS = np.array(list(permutations((TENSOR, CONTEXT, DATA, PIPELINE))))


class Group(NamedTuple):
    """A group over which gradients are reduced, and the shard sets inside it."""

    members: int
    stride: int
    shard_set: int  # members that share one set of shards; 0: all of them
    set_stride: int
    copies_stride: int  # between members that hold the same shard


@jit_lean
def axis_strides(mapping, t, c, d, p):
    """Return the strides of tensor, context, data and pipeline ranks, of degrees t, c, d and p.

    The stride of an axis is the product of the degrees of the axes inside it.
    """
    tensor_stride = context_stride = data_stride = pipeline_stride = stride = 1
    for position in range(4):
        axis = ORDERS[mapping, position]
        if axis == TENSOR:
            tensor_stride = stride
            stride *= t
        elif axis == CONTEXT:
            context_stride = stride
            stride *= c
        elif axis == DATA:
            data_stride = stride
            stride *= d
        else:
            pipeline_stride = stride
            stride *= p
    return tensor_stride, context_stride, data_stride, pipeline_stride


@jit_lean
def data_row(c, context_stride, d, data_stride):
    """Return block, stride and jump of the d × c ranks that hold equal weights."""
    if c == 1:
        return d, data_stride, d * data_stride
    if d == 1:
        return c, context_stride, c * context_stride
    if context_stride < data_stride:
        return c, context_stride, data_stride
    return d, data_stride, context_stride


@jit_lean
def stage_row(t, c, d, p, pipeline_stride):
    """Return block and jump of the t × c × d ranks of each of p stages; the stride is 1.

    Only the pipeline is not among these axes, so the ranks inside it are contiguous.
    """
    if p == 1 or pipeline_stride == t * c * d:
        return 1, 1
    return pipeline_stride, pipeline_stride * p


@jit_lean
def split(members, step, block, stride, jump):
    """Split a group of a row into inner members and stride, outer members and stride.

    The group has `members` ranks, every `step`-th of the row; ``outer`` is 1 for an
    arithmetic progression. Groups that neither fill blocks nor lie inside one
    (`nests`) are not modelled.
    """
    if jump == block * stride or members * step <= block:
        return members, step * stride, 1, members * step * stride
    if step >= block:
        return members, step // block * jump, 1, members * (step // block) * jump
    inner = block // step
    return inner, step * stride, members // inner, jump


@jit_lean
def nests(size, block):
    """Tell whether sets of `size` consecutive ranks of a row fill blocks or divide them."""
    if size <= 0 or block <= 0:
        return True
    return size % block == 0 or block % size == 0


@jit_lean
def members_in_domain(inner, stride, outer, outer_stride, domain):
    """Count the members of a split group inside one domain of `domain` devices.

    Domains that do not divide evenly count as `collective_hierarchy.members_inside`
    does: whole strides from the first member. 0 devices stand for all.
    """
    if domain == 0:
        return inner * outer
    alone = min(inner, max(1, domain // stride))
    if outer == 1 or domain < outer_stride:
        return alone
    blocks = domain // outer_stride
    if blocks >= outer:
        return inner * outer
    rest = (domain - blocks * outer_stride) // stride
    return blocks * alone + min(inner, rest)


@jit_lean
def even_stride(inner, stride, outer, outer_stride, network):
    """Stride of the arithmetic progression that stands for a split group.

    It has as many members inside a domain of the innermost level, and of every further
    level for which one stride can serve. Where no whole stride gives the innermost count
    (3 of 8), the next smaller stride does, with more members.

    Parameters
    ----------
    inner, stride, outer, outer_stride : int
        As of `split`.
    network : Network
        Only the domains of its levels are read.

    Returns
    -------
    int
        Between the stride inside a block and the average distance of members.
    """
    if outer == 1:
        return stride
    if inner == 1:
        return outer_stride
    members = inner * outer
    smallest, largest = 1, max(1, outer_stride // inner)
    domain = 1
    for level in range(network.levels.shape[0] - 1):
        domain *= int(network.levels[level].domains)
        if domain == 0:
            break
        count = members_in_domain(inner, stride, outer, outer_stride, domain)
        # floor(domain / s) is the count, or at least all members, for s in low … high.
        low = 1 if count == members else domain // (count + 1) + 1
        high = largest if count == 1 else min(largest, domain // count)
        if level == 0:
            smallest, largest = min(low, high), high
        elif max(low, smallest) <= high:
            smallest, largest = max(low, smallest), high
        if count == members:
            break
    return largest


@jit_lean
def stride_in_row(members, step, block, stride, jump, network):
    """Stride that stands for every `step`-th rank of a row (`split`, `even_stride`)."""
    inner, inner_stride, outer, outer_stride = split(members, step, block, stride, jump)
    return even_stride(inner, inner_stride, outer, outer_stride, network)


@jit_lean
def group_in_row(members, step, shard_set, block, stride, jump, network):
    """Return the `Group` of every `step`-th rank of a row, in shard sets of `shard_set`."""
    whole = stride_in_row(members, step, block, stride, jump, network)
    if shard_set <= 0 or shard_set >= members:
        return Group(members, whole, 0, whole, whole)
    return Group(
        members,
        whole,
        shard_set,
        stride_in_row(shard_set, step, block, stride, jump, network),
        stride_in_row(members // shard_set, step * shard_set, block, stride, jump, network),
    )


class Groups(NamedTuple):
    """Groups of a strategy that reach over its layers."""

    dense: Group  # ranks that hold equal parameters
    sparse: Group  # ranks that hold the same experts
    pipeline_stride: int  # between neighbouring stages


@jit_lean
def data_groups(strategy, network):
    """Return the `Groups` of a strategy (one of `Strategies`).

    Dense parameters are held by all data × context ranks, an expert by every `spread`-th
    rank of a stage, `spread` devices holding all experts once. A shard set of data ranks
    spans ``shard_set * tensor`` devices, which hold that many ranks for each expert.
    """
    t, c, d = strategy.tensor_parallel, strategy.context_parallel, strategy.data_parallel
    p = strategy.pipeline_parallel
    shard_set = strategy.shard_group
    spread = strategy.expert_parallel * strategy.expert_tensor_parallel
    replicas = d * c
    holders = t * replicas // spread
    expert_set = max(1, shard_set * t // spread) if shard_set > 0 else 0
    if strategy.mapping == 0:  # tensor-context-data-pipeline: every row is even
        dense = Group(replicas, t, shard_set, t, t * shard_set)
        sparse = Group(holders, spread, expert_set, spread, spread * expert_set)
        return Groups(dense, sparse, t * replicas)
    _, context_stride, data_stride, pipeline_stride = axis_strides(strategy.mapping, t, c, d, p)
    block, stride, jump = data_row(c, context_stride, d, data_stride)
    dense = group_in_row(replicas, 1, shard_set, block, stride, jump, network)
    block, jump = stage_row(t, c, d, p, pipeline_stride)
    sparse = group_in_row(holders, spread, expert_set, block, 1, jump, network)
    return Groups(dense, sparse, pipeline_stride)


@jit_lean
def leaves_domain(group, settings):
    """Whether a `Group` reaches beyond one scale-up network; one device alone never does."""
    return group.members > 1 and group.members * group.stride > settings.domain


@jit
def place_layers(mapping, tensor, context, data, pipeline, expert, expert_tensor, out):
    """Fill what the groups inside a layer need to know about the mapping.

    Parameters
    ----------
    mapping, tensor, context, data, pipeline, expert, expert_tensor : int64[rows]
        Strategy columns: the mapping and the degrees of these axes.
    out : int64[4, rows]
        Strides of tensor and context ranks, block and jump of the ranks of a stage.
        What makes no difference to a row's groups is as in the default order, so that
        rows which cost the same stay equal.
    """
    for i in range(mapping.size):
        t, c, d, p = tensor[i], context[i], data[i], pipeline[i]
        tensor_stride, context_stride, _, pipeline_stride = axis_strides(mapping[i], t, c, d, p)
        out[0, i] = tensor_stride if t > 1 else 1
        out[1, i] = context_stride if c > 1 else t
        block, jump = stage_row(t, c, d, p, pipeline_stride)
        spread = expert[i] * expert_tensor[i]
        if spread == 1 or block % spread == 0:
            block, jump = 1, 1
        out[2, i], out[3, i] = block, jump


@jit
def strides_in_rows(members, step, block, jump, network, out):
    """`stride_in_row` for many groups of pipeline stages, int64[rows] each."""
    for i in range(members.size):
        out[i] = stride_in_row(members[i], step[i], block[i], 1, jump[i], network)


@jit
def members_in_rows(members, step, block, jump, domain, out):
    """`members_in_domain` for many groups of pipeline stages, int64[rows] each."""
    for i in range(members.size):
        inner, stride, outer, outer_stride = split(members[i], step[i], block[i], 1, jump[i])
        out[i] = members_in_domain(inner, stride, outer, outer_stride, domain)


@jit
def cut_expert_groups(mapping, tensor, context, data, pipeline, expert, expert_tensor, out):
    """Mark expert groups that the pipeline axis cuts into unequal pieces, uint8[rows]."""
    for i in range(mapping.size):
        t, c, d, p = tensor[i], context[i], data[i], pipeline[i]
        strides = axis_strides(mapping[i], t, c, d, p)
        block, _ = stage_row(t, c, d, p, strides[3])
        spread = expert[i] * expert_tensor[i]
        if block > 1 and not (nests(expert_tensor[i], block) and nests(spread, block)):
            out[i] = 1


@jit
def cut_shard_sets(mapping, tensor, context, data, pipeline, spread, shard_group, has_experts, out):
    """Mark shard sets that other axes cut into unequal pieces, uint8[rows].

    A set of n data × context ranks has as many devices of a stage as n tensor groups,
    and the copies of an expert among that many consecutive ranks share its shards.
    `spread` is the number of devices that hold all experts once.
    """
    for i in range(mapping.size):
        if shard_group[i] <= 0:
            continue
        t, c, d, p = tensor[i], context[i], data[i], pipeline[i]
        _, context_stride, data_stride, pipeline_stride = axis_strides(mapping[i], t, c, d, p)
        block, stride, jump = data_row(c, context_stride, d, data_stride)
        if jump != block * stride and not nests(shard_group[i], block):
            out[i] = 1
        block, _ = stage_row(t, c, d, p, pipeline_stride)
        if has_experts and block > 1 and not nests(max(shard_group[i] * t, spread[i]), block):
            out[i] = 1
