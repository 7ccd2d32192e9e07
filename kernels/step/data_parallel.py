"""Communication of the data-parallel group: gradients out, parameters in."""

from __future__ import annotations

from perfmodel.kernels._jit import jit_inline
from perfmodel.kernels.collective.times import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    collective_time,
)
from perfmodel.kernels.links.fair_share import shared_time
from perfmodel.kernels.step.tables import EXPERTS, WEIGHTS

MEMO_SLOTS = 4096  # a power of two
MEMO_COLUMNS = 5  # kind, size, members, stride, time


@jit_inline
def remembered_time(kind, size, members, stride, network, memo):
    """Collective time that remembers its last answers.

    Neighbouring strategies of a grid ask for the same collectives again and again.

    Parameters
    ----------
    kind, size, members, stride, network
        As of `perfmodel.kernels.collective.times.collective_time`.
    memo : float64[MEMO_SLOTS, MEMO_COLUMNS]
        Answers so far; rows of zeros (size 0) are free.

    Returns
    -------
    float
        Time [s].
    """
    if members <= 1 or size <= 0.0:
        return 0.0
    slot = (kind + 7 * members + 3 * stride + int(size) // 64) & (MEMO_SLOTS - 1)
    if (
        memo[slot, 1] == size
        and memo[slot, 0] == kind
        and memo[slot, 2] == members
        and memo[slot, 3] == stride
    ):
        return memo[slot, 4]
    # int: a kind or group that is a constant would compile the whole model once more.
    time = collective_time(int(kind), size, int(members), int(stride), network)
    memo[slot, 0], memo[slot, 1], memo[slot, 2] = kind, size, members
    memo[slot, 3], memo[slot, 4] = stride, time
    return time


@jit_inline
def hide(total, window, tail, tax):
    """Exposed part of a communication that runs beside `window` seconds of compute.

    At least `tail` of it (the last bucket) has nothing beside it; the hidden rest
    slows the compute down by `tax`.
    """
    exposed = min(total, max(total - window, tail))
    return exposed + tax * (total - exposed)


@jit_inline
def width_of(quantity, regimes):
    """Relative half-width of the regime in which a quantity lies.

    Parameters
    ----------
    quantity : float
    regimes : tuple of five floats
        First value of the middle and of the large regime, then the half-widths of small,
        middle and large operations (`perfmodel.operations.uncertainty.kernel_widths`).
    """
    if quantity < regimes[0]:
        return regimes[2]
    return regimes[3] if quantity < regimes[1] else regimes[4]


@jit_inline
def hidden_width(total, window, tail, tax, relative):
    """Half-width of what `hide` leaves exposed of a communication known to ± `relative`.

    Half the difference between a slow and a fast communication: the whole of the error
    shows where compute no longer hides it, little where it has room.
    """
    more, less = 1.0 + relative, max(0.0, 1.0 - relative)
    slow = hide(more * total, window, more * tail, tax)
    return 0.5 * (slow - hide(less * total, window, less * tail, tax))


@jit_inline
def sharded_reduce(size, kind, group, network, memo):
    """Reduce or gather over a data group, hierarchically where shards repeat (HSDP).

    The members of a shard set share one set of shards; the other sets hold copies of
    it, among which the reduced shards are all-reduced.
    """
    if group.members <= 1 or size <= 0.0:
        return 0.0
    if group.shard_set == 0:
        return remembered_time(kind, size, group.members, group.stride, network, memo)
    shards = group.shard_set
    time = remembered_time(kind, size, shards, group.set_stride, network, memo)
    if kind == REDUCE_SCATTER:
        copies = group.members // shards
        time += remembered_time(
            ALL_REDUCE, size / shards, copies, group.copies_stride, network, memo
        )
    return time


@jit_inline
def layer_shards(part, dense, sparse, settings, network, memo):
    """Times to gather the parameters of one part and to reduce its gradients [s].

    `dense` and `sparse` are the `Group` of dense parameters and of experts.
    """
    gather = sharded_reduce(part[WEIGHTS] * settings.gather_bytes, ALL_GATHER, dense, network, memo)
    reduce = sharded_reduce(
        part[WEIGHTS] * settings.reduce_bytes, REDUCE_SCATTER, dense, network, memo
    )
    if part[EXPERTS] > 0.0:
        gather += sharded_reduce(
            part[EXPERTS] * settings.gather_bytes, ALL_GATHER, sparse, network, memo
        )
        reduce += sharded_reduce(
            part[EXPERTS] * settings.reduce_bytes, REDUCE_SCATTER, sparse, network, memo
        )
    return gather, reduce


@jit_inline
def beside_sends(time, window, sends, sends_show, tail):
    """Share links between a data-parallel collective and the pipeline sends beside it.

    Parameters
    ----------
    time : float
        Of the collective alone [s].
    window : float
        Compute that it runs beside [s].
    sends : float
        Of the sends alone [s], in the same pass of the same micro-batch; 0: other links.
    sends_show : bool
        Whether the sends delay compute (True) or run beside it.
    tail : float
        Share of the collective that comes after the pass, when no sends are left.

    Returns
    -------
    wait : float
        What the sends lose and show [s].
    lost : float
        What the collective loses [s].
    window : float
        What the collective runs beside: sends that delay compute lengthen the pass, and
        leave it half of the links for twice their time [s].

    Notes
    -----
    Both get half of the links until one is done (max-min fairness): one that takes t alone
    is done after ``t + min(t, other)``. Derived here.
    """
    together = min(sends, (1.0 - tail) * time)
    if sends_show:
        return shared_time(sends, together) - sends, 0.0, window + together
    return 0.0, min(together, 0.5 * window), window


@jit_inline
def data_parallel(
    zero,
    batches,
    weights,
    experts,
    dense,
    sparse,
    forward,
    backward,
    sends,
    sends_show,
    tax,
    settings,
    network,
    memo,
):
    """Total, exposed time and its half-width: gradients and parameters, ZeRO 0 to 2 [s].

    Fourth, what pipeline sends on the same links lose: `sends` is their time per
    micro-batch and pass [s], 0 where they use other links (see `beside_sends`).

    Gradients are reduced beside the backward of the last micro-batch (of every
    micro-batch with ZeRO-2, which keeps no full gradients), parameters gathered beside
    the first forward. The last bucket has nothing left to hide behind. `dense` and
    `sparse` are the `Group` of dense parameters and of experts.
    """
    kind = ALL_REDUCE if zero == 0 else REDUCE_SCATTER
    reduce = sharded_reduce(
        weights * settings.reduce_bytes, kind, dense, network, memo
    ) + sharded_reduce(experts * settings.reduce_bytes, kind, sparse, network, memo)
    gather = 0.0
    if zero >= 1:
        gather = sharded_reduce(
            weights * settings.gather_bytes, ALL_GATHER, dense, network, memo
        ) + sharded_reduce(experts * settings.gather_bytes, ALL_GATHER, sparse, network, memo)
    reductions = batches if zero == 2 else 1.0
    gradients = max((weights + experts) * settings.gradient_bytes, 1.0)
    tail = min(1.0, settings.bucket_bytes / gradients)
    relative = width_of((weights + experts) * settings.reduce_bytes, settings.collective_widths)
    waits = 0.0
    exposed_reduce, width_reduce = reduce, relative * reduce
    if settings.overlap_reduce:
        wait, lost, window = beside_sends(reduce, backward, sends, sends_show, tail)
        waits += reductions * wait
        exposed_reduce = hide(reduce + lost, window, tail * reduce, tax)
        width_reduce = hidden_width(reduce + lost, window, tail * reduce, tax, relative)
    exposed_gather, width_gather = gather, relative * gather
    if settings.overlap_gather:
        wait, lost, window = beside_sends(gather, forward, sends, sends_show, tail)
        waits += wait
        exposed_gather = hide(gather + lost, window, tail * gather, tax)
        width_gather = hidden_width(gather + lost, window, tail * gather, tax, relative)
    total = reductions * reduce + gather
    exposed = reductions * exposed_reduce + exposed_gather
    return total, exposed, reductions * width_reduce + width_gather, waits


# The update: multi-tensor kernels, a handful of launches (8 assumed), and about 12 FLOP per
# parameter (Adam's rule).
OPTIMIZER_LAUNCHES = 8.0
OPTIMIZER_FLOPS = 12.0


@jit_inline
def optimizer_work(
    weights, experts, dense_shards, expert_shards, zero, gradient_bytes, optimizer_bytes
):
    """Parameters that a device updates, and the bytes that its update reads and writes.

    The shard's gradients are read for their norm, scaled by it and read for the update; the
    state is read and written, parameters are written. All gradients are zeroed for the next
    step. `dense_shards` and `expert_shards` devices share the update from ZeRO-1 on.

    Parameters
    ----------
    weights, experts : float
        Parameters of a stage on one device.
    dense_shards, expert_shards : int
    zero : int
        ZeRO stage; from 2 on only the shard's gradients are kept.
    gradient_bytes, optimizer_bytes : float
        Of one stored gradient, and of the state of one parameter [B].
    """
    updated = weights / dense_shards + experts / expert_shards
    kept = updated if zero >= 2 else weights + experts
    read = updated * (3.0 * gradient_bytes + optimizer_bytes)
    written = updated * (gradient_bytes + optimizer_bytes + 2.0)
    return updated, read, written + kept * gradient_bytes
