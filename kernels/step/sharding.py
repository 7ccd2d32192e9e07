"""What ZeRO shards over the ranks that hold equal parameters, which bytes then travel; the update.

The rule stands here once: the closing pass prices it (`kernels.step.data_parallel`), memory
and optimizer count with it, exports write its collectives down
(`perfmodel.training.step.data_parallel`).

Stages of ZeRO (Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion
parameter models", section 5): 1 shards the optimizer state, 2 the gradients as well, 3 the
parameters too. Hybrid sharding (HSDP; Zhao et al. 2023, "PyTorch FSDP", section 3.2.2): the
members of a *shard set* share one set of shards, the other sets of the group hold copies.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit_lean_inline
from perfmodel.kernels.collective.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.kernels.step.overlap import width_of
from perfmodel.kernels.stream import stream_time


@jit_lean_inline
def shards_optimizer(zero):
    """Whether each rank updates its share of the parameters only, and gathers the others'."""
    return zero >= 1


@jit_lean_inline
def shards_gradients(zero):
    """Whether gradients are kept as shards, and so reduced after every micro-batch."""
    return zero >= 2


@jit_lean_inline
def shards_parameters(zero):
    """Whether parameters are kept as shards, and so gathered part by part for every pass."""
    return zero == 3


class Repeats(NamedTuple):
    """How often per step each rank takes part in moving a parameter."""

    gathers: float  # of the parameter itself
    reductions: float  # of its gradient


def repeats(zero, batches):
    """Return how often parameters and gradients travel in a step of so many micro-batches.

    Sharded parameters are gathered for both passes of every micro-batch; else those that
    another rank has updated are gathered once.
    """
    gathers = 1.0 if shards_optimizer(zero) else 0.0
    if shards_parameters(zero):
        gathers = 2.0 * batches
    return Repeats(gathers, 1.0 * batches if shards_gradients(zero) else 1.0)


@jit_lean_inline
def shard_count(zero, group):
    """Ranks of a `Group` that share one set of shards; 1 where nothing is sharded."""
    if not shards_optimizer(zero):
        return 1
    return group.shard_set if group.shard_set > 0 else group.members


class Kept(NamedTuple):
    """How many parameters a device keeps what of."""

    parameters: float
    gradients: float
    updated: float  # those whose optimizer state it keeps, and which it updates


@jit_lean_inline
def kept(zero, weights, experts, groups):
    """Return what a device keeps of the `weights` that all ranks hold alike, and of `experts`."""
    whole = weights + experts
    owned = weights / shard_count(zero, groups.dense) + experts / shard_count(zero, groups.sparse)
    return Kept(
        owned if shards_parameters(zero) else whole,
        owned if shards_gradients(zero) else whole,
        owned,
    )


class Transfer(NamedTuple):
    """A collective over ranks `stride` apart; one of a single member moves nothing."""

    kind: int
    size: float  # [B], nccl-tests convention
    members: int
    stride: int


@jit_lean_inline
def transfers(kind, size, group):
    """Return the collectives that gather or reduce a `size` [B] over a `Group`, in turn.

    Within each shard set where shards repeat (HSDP); the shards that a set has reduced are
    then all-reduced among their copies.
    """
    if group.members <= 1:
        return Transfer(kind, size, 1, 1), Transfer(kind, size, 1, 1)
    if group.shard_set == 0:
        whole = Transfer(kind, size, group.members, group.stride)
        return whole, Transfer(kind, size, 1, 1)
    within = Transfer(kind, size, group.shard_set, group.set_stride)
    if kind != REDUCE_SCATTER:
        return within, Transfer(kind, size, 1, 1)
    copies = group.members // group.shard_set
    return within, Transfer(ALL_REDUCE, size / group.shard_set, copies, group.copies_stride)


@jit_lean_inline
def gradient_transfers(zero, parameters, group, settings):
    """Return the collectives that reduce the gradients of so many parameters.

    To the ranks that own them, or whole on all ranks where these own everything (or with ZeRO 1
    in software that reduces so: `Settings.reduces_whole`).
    """
    size = parameters * settings.reduce_bytes
    if not shards_optimizer(zero) or (settings.reduces_whole and not shards_gradients(zero)):
        whole = Transfer(ALL_REDUCE, size, group.members, group.stride)
        return whole, Transfer(ALL_REDUCE, size, 1, 1)
    within, copies = transfers(REDUCE_SCATTER, size, group)
    wide = copies.size * settings.copies_bytes / settings.reduce_bytes
    return within, Transfer(copies.kind, wide, copies.members, copies.stride)


@jit_lean_inline
def parameter_transfers(parameters, group, settings):
    """Return the collectives that gather so many sharded parameters."""
    return transfers(ALL_GATHER, parameters * settings.gather_bytes, group)


# Multi-tensor kernels, a handful of launches (8 assumed), and about 12 FLOP per parameter
# (Adam's rule).
OPTIMIZER_LAUNCHES = 8.0
OPTIMIZER_FLOPS = 12.0


@jit_lean_inline
def optimizer_work(zero, weights, experts, groups, settings):
    """Parameters that a device updates, and the bytes that its update reads and writes.

    The shard's gradients are read for their norm, scaled by it and read for the update; the
    state is read and written, parameters are written. All gradients are zeroed for the next
    step.

    Parameters
    ----------
    zero : int
        ZeRO stage.
    weights, experts : float
        Parameters of a stage on one device.
    groups : Groups
    settings : record of SETTINGS
    """
    own = kept(zero, weights, experts, groups)
    updated = own.updated
    read = updated * (3.0 * settings.gradient_bytes + settings.optimizer_bytes)
    written = updated * (settings.gradient_bytes + settings.optimizer_bytes + 2.0)
    return updated, read, written + own.gradients * settings.gradient_bytes


class Update(NamedTuple):
    """The update on the stage with most parameters."""

    time: float  # [s]
    width: float  # its half-width [s]


@jit_lean_inline
def optimizer_time(strategy, load, groups, settings, device):
    """Return the `Update` of a strategy: of what the host does not update."""
    updated, read, written = optimizer_work(
        strategy.zero_stage, load.weights, load.experts, groups, settings
    )
    own = 1.0 - strategy.offload_optimizer
    updated, read, written = own * updated, own * read, own * written
    # Nothing cached, nothing read again, no chain.
    time, _ = stream_time(
        device, read, written, OPTIMIZER_FLOPS * updated, OPTIMIZER_LAUNCHES, 0.0, 0.0, 0.0, 0.0
    )
    return Update(time, width_of(read + written, settings.stream_widths) * time)
