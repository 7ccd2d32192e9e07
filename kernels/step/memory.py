"""Memory of the pipeline stage that needs most."""

from __future__ import annotations

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.step.sharding import kept, shards_gradients, shards_parameters
from perfmodel.kernels.step.tables import GPIPE, INTERLEAVED, ROW


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
    if schedule == GPIPE:
        return float(batches)
    if schedule == INTERLEAVED:
        warm_up = 2.0 * (stages - stage - 1) + (chunks - 1) * stages + 1
        return min(float(batches), warm_up / chunks)
    return min(float(batches), float(stages - stage))


@jit_inline
def transfer_buffers(zero, stage, own, weight_bytes, settings):
    """Bytes in which sharded parameters and gradients of a stage are whole for a while.

    Gradients: one bucket on the wire; where they are kept as shards, at least those of one
    part, which are whole until they are reduced (ZeRO-3: these alone, part by part).
    Parameters (ZeRO-3): two parts gathered, the one at work and the next. No buffer counts
    for more than what sharding has taken away, the allocator's loss included: what a rank
    owns is gathered in its place (software that copies its own shard, as PyTorch's FSDP does,
    needs 1/n of the part more).

    Parameters
    ----------
    zero : int
        ZeRO stage.
    stage : record of STAGE
    own : Kept
        What the device keeps of it.
    weight_bytes : float
        Of a stored parameter [B].
    settings : Settings

    Returns
    -------
    float
        [B]; 0 with one replica, which shards nothing.
    """
    whole = stage.weights + stage.experts
    away = (whole - own.updated) / (1.0 + settings.fragmentation)  # parameters of other ranks
    bucket = min(settings.bucket_bytes, whole * settings.gradient_bytes)
    if not shards_gradients(zero):
        return min(bucket, away * settings.optimizer_bytes)
    part = stage.largest * settings.reduce_bytes
    if not shards_parameters(zero):
        return min(max(bucket, part), away * settings.gradient_bytes)
    gathered = 2.0 * stage.largest * settings.gather_bytes
    gathered = min(gathered, away * min(settings.gather_bytes, weight_bytes))
    return min(part, away * settings.gradient_bytes) + gathered


@jit_inline
def stage_memory(strategy, batches, stages, groups, weight_bytes, settings, out, column):
    """Write the memory of the stage that needs most; components add up to the total [B].

    Parameters
    ----------
    strategy : Strategies
        One of them.
    batches : int
        Micro-batches.
    stages : Stages
    groups : Groups
    weight_bytes : float
        Bytes of one stored parameter [B].
    settings : Settings
    out : ndarray, shape (RESULT_ROWS, n)
    column : int
        Of `out`.
    """
    zero = strategy.zero
    worst = -1.0
    key = strategy.stage_key
    for row in range(stages.offset[key], stages.offset[key + 1]):
        stage = stages.sums[row]
        own = kept(zero, stage.weights, stage.experts, groups)
        parameters = own.parameters * weight_bytes
        gradients = own.gradients * settings.gradient_bytes
        optimizer = own.updated * settings.optimizer_bytes
        flight = in_flight(
            strategy.schedule,
            stages.first_stage[row],
            batches,
            strategy.pipeline,
            strategy.virtual,
        )
        # Backward follows the output's forward at once, but in GPipe.
        heads = batches if strategy.schedule == GPIPE and strategy.pipeline > 1 else 1
        activations = flight * stage.activations + heads * stage.logits
        buffers = stage.working + transfer_buffers(zero, stage, own, weight_bytes, settings)
        live = parameters + gradients + optimizer + activations + buffers
        lost = settings.fragmentation * (activations + buffers)
        total = live + lost + settings.reserve_bytes
        if total > worst:
            worst = total
            out[ROW.memory_parameters, column] = parameters
            out[ROW.memory_gradients, column] = gradients
            out[ROW.memory_optimizer, column] = optimizer
            out[ROW.memory_activations, column] = activations
            out[ROW.memory_buffers, column] = buffers
            out[ROW.memory_fragmentation, column] = lost
            out[ROW.memory_reserve, column] = settings.reserve_bytes
            out[ROW.memory_total, column] = total
