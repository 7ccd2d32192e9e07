"""Memory of a pipeline stage at the moments of a step that may be its peak.

What is alive changes through a step, so the peak is a maximum over moments, never a sum over what
does not live together: logits are gone before the first layer goes backward, gathered parameters
come and go part by part, gradients appear in the first backward where no buffer holds them always.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit, jit_lean_inline
from perfmodel.kernels.step.offload import offload_memory, offloads, parked
from perfmodel.kernels.step.sharding import (
    kept,
    shard_count,
    shards_gradients,
    shards_optimizer,
    shards_parameters,
)
from perfmodel.kernels.step.tables import GPIPE, INTERLEAVED, ROW

# Moments, in the order in which a step comes to them.
LOSS = 0  # the last forward of those in flight has ended; on the last stage its loss goes backward
BACKWARD = 1  # a layer goes backward, the others still wait
GRADIENTS = 2  # that micro-batch has gone backward, but for a last layer; or the next one begins
UPDATE = 3  # the optimizer's step
MOMENTS = 4


@jit
def in_flight(schedule, stage, batches, stages, chunks):
    """Micro-batches whose activations a stage keeps at its peak, in whole-stage units.

    A lone stage has no schedule: backward follows forward. GPipe keeps all m. 1F1B keeps
    ``min(m, p - s)``. Interleaved 1F1B keeps the chunk passes of its warm-up,
    ``2 (p - s - 1) + (v - 1) p + 1`` of 1/v stage each
    (Narayanan et al. 2021, section 2.2; Megatron-Core ``schedules.py``).
    """
    if stages == 1:
        return 1.0
    if schedule & GPIPE:
        return float(batches)
    if schedule & INTERLEAVED:
        warm_up = 2.0 * (stages - stage - 1) + (chunks - 1) * stages + 1
        return min(float(batches), warm_up / chunks)
    return min(float(batches), float(stages - stage))


class Batches(NamedTuple):
    """Micro-batches of a strategy."""

    micro: int  # how many
    waits: int  # row of `Waits`, -1 where a closed form holds


@jit_lean_inline
def stage_flight(strategy, batches, stages, waits, row):
    """Micro-batches in flight on the stages of a row, of its mean layers."""
    if batches.waits >= 0:
        return waits.flight[batches.waits, row - stages.of[strategy.stage_key].first]
    first, p, v = (
        stages.sums[row].first_stage,
        strategy.pipeline_parallel,
        strategy.virtual_pipeline,
    )
    return in_flight(strategy.schedule, first, batches.micro, p, v)


@jit_lean_inline
def heads_kept(strategy, batches, waits):
    """Micro-batches whose logits are kept: backward follows the output at once, but in GPipe."""
    if batches.waits >= 0:
        return waits.of[batches.waits].heads
    return (
        float(batches.micro)
        if strategy.schedule & GPIPE and strategy.pipeline_parallel > 1
        else 1.0
    )


class Held(NamedTuple):
    """What one device holds at a moment [B]."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float  # logits included
    buffers: float  # what lives shorter: working sets, parts that are whole for a while
    idle: float  # held by the allocator for what is not there now


class Standing(NamedTuple):
    """What holds for a stage at every moment [B]."""

    whole: float  # its parameters [1], those of other ranks included
    owned: float  # those of which this rank holds the shard [1]
    trained: float  # of the whole, those that are trained [1]
    updated: float  # of these, those that this rank updates [1]
    here: float  # of these, those that its device does, not its host [1]
    parameters: float
    optimizer: float
    gradients: float  # once they are there
    idle: float  # held by the allocator until the next step
    early: bool  # gradients are there before the backward in question
    static: float  # buffers that are there throughout: of the pipeline, of graphs
    flat: float  # parameters that one buffer gathers behind the update [1]


@jit_lean_inline
def standing(strategy, batches, flight, stage, groups, sizes, settings):
    """Return what holds for a stage at every moment.

    Parameters
    ----------
    strategy : record of STRATEGY
    batches : Batches
    flight : float
        Of `stage_flight`.
    stage : record of STAGE
    groups : Groups
    sizes : tuple of two floats
        Of a stored parameter, low-precision copies included, and of the hidden state that a
        stage sends to the next [B].
    settings : record of SETTINGS

    Returns
    -------
    Standing
    """
    weight_bytes, boundary = sizes
    zero, of = strategy.zero_stage, settings.memory
    own = kept(zero, stage.weights, stage.experts, groups)
    trained = kept(zero, stage.trained, stage.trained_experts, groups)
    whole = stage.trained + stage.trained_experts

    # Parameters. Where they are the master themselves, the 16-bit ones that other stages of ZeRO
    # keep beside it come and go with the gathers; frozen ones have no master.
    copies = own.parameters * weight_bytes
    if of.master_bytes > 0.0 and shards_parameters(zero):
        copies = (own.parameters - trained.parameters) * weight_bytes
    parameters = copies + of.master_bytes * trained.updated
    optimizer = (settings.optimizer_bytes - of.master_bytes) * trained.updated

    gradients = trained.gradients * settings.gradient_bytes
    idle = 0.0
    if of.whole_in_pipeline and strategy.pipeline_parallel > 1 and zero == 2:
        if of.own_pool:
            idle = gradients  # the shards, which come last
        gradients = whole * settings.reduce_bytes
    if groups.dense.members > 1 and (of.beside_with_zero or not shards_optimizer(zero)):
        gradients += whole * of.beside_bytes
    early = of.persistent_gradients or batches.micro > flight
    static = 0.0
    if of.receives_ahead and strategy.pipeline_parallel > 1:
        static = 2.0 * batches.micro * boundary
    if of.layer_graphs:  # the gradient that comes to the last graph of every micro-batch
        static += flight * boundary
    flat = 0.0
    if of.gathers_flat and not shards_parameters(zero):
        # What other ranks update.
        flat += stage.weights if shard_count(zero, groups.dense) > 1 else 0.0
        flat += stage.experts if shard_count(zero, groups.sparse) > 1 else 0.0
    return Standing(
        stage.weights + stage.experts,
        own.updated,
        whole,
        trained.updated,
        trained.updated,
        parameters,
        optimizer,
        gradients,
        idle,
        early,
        static,
        flat,
    )


@jit_lean_inline
def without_offloaded(strategy, at, flight, stage, parking, groups, settings):
    """Return what holds for a stage, and its micro-batches in flight, less what waits elsewhere.

    Third and fourth, what the host's memory and its drives keep [B]. Of activations on the device
    are left those of the layers that leave or come; those that another stage has parked here
    (`parked`) come on top.
    """
    trained = kept(strategy.zero_stage, stage.trained, stage.trained_experts, groups)
    away = offload_memory(strategy, stage, flight, parking, at.parameters, trained, settings)
    left = flight
    if stage.activations > 0.0:
        left -= away.activations / stage.activations
    device = Standing(
        at.whole,
        at.owned,
        at.trained,
        at.updated,
        at.here * (1.0 - strategy.offload_optimizer),
        at.parameters - away.parameters,
        at.optimizer - min(at.optimizer, away.optimizer),
        at.gradients - min(at.gradients, away.gradients),
        at.idle,
        at.early,
        at.static,
        at.flat,
    )
    return device, left, away.host, away.nvme


@jit_lean_inline
def held_at(moment, strategy, flight, heads, stage, at, weight_bytes, settings):
    """Return what a stage holds at a moment, but for a reserve and what fragments.

    Parameters
    ----------
    moment : int
        One of `LOSS` to `UPDATE`.
    strategy : record of STRATEGY
    flight, heads : float
        Micro-batches whose layers, and whose logits, are kept.
    stage : record of STAGE
    at : Standing
    weight_bytes : float
        Of a stored parameter [B].
    settings : record of SETTINGS

    Returns
    -------
    Held
    """
    zero, of = strategy.zero_stage, settings.memory
    gradients, idle = at.gradients, at.idle
    if not at.early:
        gradients *= gradients_there(moment, flight, stage, at)
        if of.own_pool and shards_gradients(zero):
            idle += at.gradients - gradients  # of a pool that the next moments fill
    update = of.idle_update_bytes * at.here
    flat = settings.gather_bytes * at.flat
    if moment != UPDATE:
        idle += flat  # no other tensor is as large
    buffers = at.static
    if moment == LOSS:
        activations = flight * stage.activations + heads * stage.logits
        buffers += stage.loss
        idle += stage.loss_idle + update
    elif moment == UPDATE:
        activations = stage.logits_held
        buffers += update + of.update_bytes * at.here
        if flat > 0.0:  # beside it the shares of all ranks, and a copy of this one's
            buffers += 2.0 * flat + settings.gather_bytes * at.updated
    else:
        # Autograd's own gradients, ahead of their sum with the main ones: first the output's.
        gradients += of.pass_bytes * (stage.head if moment == BACKWARD else at.trained)
        if moment == GRADIENTS and flight <= 1.0:
            activations = stage.widest_part  # of the layer that is last
        else:
            layers = flight if moment == BACKWARD else flight - 1.0
            activations = layers * stage.activations + (heads - 1.0) * stage.logits
        activations += stage.logits_held
        buffers += stage.working
        idle += update
    if of.layer_graphs:
        idle += graph_idle_bytes(moment, flight, stage)
    if shards_parameters(zero) and moment != UPDATE:
        buffers += gathered_bytes(moment, stage, at, weight_bytes, settings)
    if moment != LOSS:
        buffers += reduced_bytes(zero, stage, at.trained, at.updated, settings)
    return Held(at.parameters, gradients, at.optimizer, activations, buffers, idle)


@jit_lean_inline
def gradients_there(moment, flight, stage, at):
    """Share of the gradients that the first backward of a step has made at a moment.

    The output's as the first layer goes backward; all but the embedding's and a layer's as the
    last one does. With more micro-batches in flight the next one begins with all of them.
    """
    if moment == LOSS or at.trained == 0.0:
        return 0.0
    output = min(stage.head, stage.ends_trained)
    if moment == BACKWARD:
        return min(output / at.trained, 1.0)
    if moment == GRADIENTS and flight <= 1.0:
        late = stage.ends_trained - output + stage.layer_trained
        return max(1.0 - late / at.trained, 0.0)
    return 1.0


@jit_lean_inline
def graph_idle_bytes(moment, flight, stage):
    """Bytes that one of two pools holds in vain where each layer is a captured graph.

    The graphs' own pool keeps its working set while the loss runs, and everything while the
    optimizer does; that of eager code keeps logits and loss while layers go backward.
    """
    if moment == LOSS:
        return stage.working
    if moment == UPDATE:
        return flight * stage.activations + stage.working
    return max(stage.logits + stage.loss - stage.logits_held, 0.0)


@jit_lean_inline
def gathered_bytes(moment, stage, at, weight_bytes, settings):
    """Bytes of sharded parameters (ZeRO-3) that are whole at a moment ahead of the update.

    A layer at work and the next one; at the loss the output's. Software that gathers embedding
    and output with the root of the model keeps these throughout, and the layer that is last
    forward and first backward. No more than what sharding has taken away, the allocator's loss
    included: what a rank owns is gathered in its place, unless it is the master, which is cast.
    """
    of = settings.memory
    if moment == LOSS:
        parts = stage.head if stage.head > 0.0 else 2.0 * stage.layer
        if of.ends_in_root:
            parts = stage.ends + stage.layer
    else:
        parts = 2.0 * stage.layer
        if of.ends_in_root:
            parts += stage.ends
        elif stage.layer == 0.0:
            parts = stage.ends
    most = at.whole if of.master_bytes > 0.0 else at.whole - at.owned
    most *= min(settings.gather_bytes, weight_bytes) / (1.0 + settings.fragmentation)
    return min(parts * settings.gather_bytes, most)


@jit_lean_inline
def reduced_bytes(zero, stage, whole, updated, settings):
    """Bytes of gradients on their way to the ranks that own them.

    One bucket on the wire; where gradients are kept as shards, at least those of one layer, which
    are whole until they are reduced, and the buffer that is reduced (ZeRO-3: these alone, layer by
    layer). No more than what sharding has taken away, the allocator's loss included.
    """
    away = (whole - updated) / (1.0 + settings.fragmentation)  # parameters of other ranks
    bucket = min(settings.bucket_bytes, whole * settings.gradient_bytes)
    if not shards_gradients(zero):
        return min(bucket, away * settings.optimizer_bytes)
    layer = stage.layer_trained if stage.layer_trained > 0.0 else stage.ends_trained
    part = layer * (settings.reduce_bytes + settings.memory.unreduced_bytes)
    if not shards_parameters(zero):
        part = max(bucket, part)
    return min(part, away * settings.gradient_bytes)


@jit_lean_inline
def lost_bytes(held, settings):
    """Return what the allocator holds in vain: a share of what comes and goes, and idle pools."""
    return settings.fragmentation * (held.activations + held.buffers) + held.idle


@jit_lean_inline
def taken_bytes(held, settings):
    """Return what is alive, and what the allocator holds beside it."""
    state = held.parameters + held.gradients + held.optimizer
    return state + held.activations + held.buffers + lost_bytes(held, settings)


@jit_lean_inline
def reserve(strategy, settings):
    """Return what context, libraries and communicators of a process take.

    One communicator of all ranks and one for each axis of more than one; the pipeline has a
    second, of its ends (tied embeddings, the loss).
    """
    of = settings.memory
    groups = 0.0
    for degree in (
        strategy.tensor_parallel,
        strategy.context_parallel,
        strategy.data_parallel,
        strategy.expert_parallel,
    ):
        if degree > 1:
            groups += 1.0
    if strategy.pipeline_parallel > 1:
        groups += 2.0
    if groups > 0.0:
        groups += 1.0
    return settings.reserve_bytes + groups * of.communicator_bytes


@jit_lean_inline
def walk(strategy, batches, stages, waits, groups, sizes, settings, curve):
    """Walk through the moments of a step on every distinct stage, and return the one at the peak.

    Parameters
    ----------
    strategy : record of STRATEGY
    batches : Batches
    stages : Stages
    waits : Waits
    groups : Groups
    sizes : tuple of two floats
        As of `standing`.
    settings : record of SETTINGS
    curve : ndarray, shape (rows of the stage key * MOMENTS, components), or without rows
        Result [B], where it has rows: as of `memory_curve`.

    Returns
    -------
    tuple
        `Held` of the stage that needs most, at its peak, and what its host and drives keep [B].
    """
    worst, host, nvme, every = -1.0, 0.0, 0.0, curve.shape[0] > 0
    peak = Held(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    heads, away = heads_kept(strategy, batches, waits), offloads(strategy)
    of, context = settings.memory, reserve(strategy, settings)
    updates = of.update_bytes + of.idle_update_bytes > 0.0
    key = stages.of[strategy.stage_key]
    start = key.first
    for row in range(start, key.behind):
        stage = stages.sums[row]
        flight = stage_flight(strategy, batches, stages, waits, row)
        at = standing(strategy, batches, flight, stage, groups, sizes, settings)
        on_host, on_nvme = 0.0, 0.0
        if away:
            parking = parked(strategy, batches.micro, stages, row)
            at, flight, on_host, on_nvme = without_offloaded(
                strategy, at, flight, stage, parking, groups, settings
            )
        for moment in range(MOMENTS):
            # Where gradients were there before, what follows a backward holds less than it, but
            # for what the moment itself brings.
            lower = at.early and (
                (moment == GRADIENTS and of.pass_bytes == 0.0)
                or (moment == UPDATE and not updates and at.flat == 0.0)  # nor what pools hold
            )
            if lower and not every:
                continue
            held = held_at(moment, strategy, flight, heads, stage, at, sizes[0], settings)
            total = taken_bytes(held, settings)
            if total > worst:
                worst, peak, host, nvme = total, held, on_host, on_nvme
            if every:
                place = curve[(row - start) * MOMENTS + moment]
                place[0], place[1], place[2] = held.parameters, held.gradients, held.optimizer
                place[3], place[4] = held.activations, held.buffers
                place[5], place[6] = lost_bytes(held, settings), context
    return peak, host, nvme


@jit_lean_inline
def stage_memory(strategy, batches, stages, waits, groups, sizes, settings, out):
    """Write the memory of the stage that needs most, at its peak; components add up [B].

    Parameters
    ----------
    strategy, batches, stages, waits, groups, sizes, settings
        As `walk`.
    out : float64[len(ROW)]
        Result of one strategy.
    """
    nowhere = out[:0].reshape((0, 1))
    peak, host, nvme = walk(strategy, batches, stages, waits, groups, sizes, settings, nowhere)
    context = reserve(strategy, settings)
    total = taken_bytes(peak, settings) + context
    out[ROW.memory_parameters] = peak.parameters
    out[ROW.memory_gradients] = peak.gradients
    out[ROW.memory_optimizer] = peak.optimizer
    out[ROW.memory_activations] = peak.activations
    out[ROW.memory_buffers] = peak.buffers
    out[ROW.memory_fragmentation] = lost_bytes(peak, settings)
    out[ROW.memory_reserve] = context
    out[ROW.memory_total] = total
    out[ROW.memory_high] = total * settings.memory.high
    out[ROW.memory_host] = host
    out[ROW.memory_nvme] = nvme


@jit
def memory_curve(strategy, batches, stages, waits, groups, sizes, settings, out):
    """Write what every distinct stage of one strategy holds at every moment.

    Parameters
    ----------
    strategy, batches, stages, waits, groups, sizes, settings
        As `walk`.
    out : ndarray, shape (rows of the stage key * MOMENTS, components)
        Result [B]: parameters, gradients, optimizer, activations, buffers, fragmentation, reserve.
    """
    walk(strategy, batches, stages, waits, groups, sizes, settings, out)
