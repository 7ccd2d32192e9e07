"""Memory of the pipeline stage that needs most."""

from __future__ import annotations

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.step.offload import offload_memory, offloads
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
def transfer_buffers(zero, stage, own, trained, weight_bytes, settings):
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
    own, trained : Kept
        What the device keeps of it, and of its trained parameters.
    weight_bytes : float
        Of a stored parameter [B].
    settings : Settings

    Returns
    -------
    float
        [B]; 0 with one replica, which shards nothing.
    """
    whole = stage.trained + stage.trained_experts
    away = (whole - trained.updated) / (1.0 + settings.fragmentation)  # parameters of other ranks
    bucket = min(settings.bucket_bytes, whole * settings.gradient_bytes)
    if not shards_gradients(zero):
        return min(bucket, away * settings.optimizer_bytes)
    part = stage.largest_trained * settings.reduce_bytes
    if not shards_parameters(zero):
        return min(max(bucket, part), away * settings.gradient_bytes)
    gathered = 2.0 * stage.largest * settings.gather_bytes
    others = (stage.weights + stage.experts - own.updated) / (1.0 + settings.fragmentation)
    gathered = min(gathered, others * min(settings.gather_bytes, weight_bytes))
    return min(part, away * settings.gradient_bytes) + gathered


@jit_inline
def stage_memory(strategy, batches, stages, waits, groups, weight_bytes, settings, out, column):
    """Write the memory of the stage that needs most; components add up to the total [B].

    Parameters
    ----------
    strategy : Strategies
        One of them.
    batches : int
        Micro-batches.
    stages : Stages
    waits : Waits
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
        trained = kept(zero, stage.trained, stage.trained_experts, groups)
        gradients = trained.gradients * settings.gradient_bytes
        optimizer = trained.updated * settings.optimizer_bytes
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
        if strategy.waits >= 0:
            activations = waits.kept[strategy.waits, row - stages.offset[key]]
        buffers = stage.working + transfer_buffers(
            zero, stage, own, trained, weight_bytes, settings
        )
        host = 0.0
        if offloads(strategy):
            away = offload_memory(strategy, stage, flight, own, trained, weight_bytes, settings)
            parameters, gradients = parameters - away.parameters, gradients - away.gradients
            optimizer = optimizer - away.optimizer
            activations, host = activations - away.activations, away.host
        live = parameters + gradients + optimizer + activations + buffers
        reserve = settings.reserve_bytes + settings.fragmentation * (activations + buffers)
        if live + reserve > worst:
            worst = live + reserve
            out[ROW.memory_parameters, column] = parameters
            out[ROW.memory_gradients, column] = gradients
            out[ROW.memory_optimizer, column] = optimizer
            out[ROW.memory_activations, column] = activations
            out[ROW.memory_buffers, column] = buffers
            out[ROW.memory_reserve, column] = reserve
            out[ROW.memory_total, column] = live + reserve
            out[ROW.memory_host, column] = host
