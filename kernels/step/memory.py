"""Memory of the pipeline stage that needs most."""

from __future__ import annotations

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.step.sharding import kept, shard_count, shards_parameters
from perfmodel.kernels.step.tables import GPIPE, INTERLEAVED, ROW


@jit
def in_flight(schedule, stage, batches, stages, chunks):
    """Micro-batches whose activations a stage keeps at its peak, in whole-stage units.

    GPipe keeps all m. 1F1B keeps ``min(m, p - s)``. Interleaved 1F1B keeps the chunk
    passes of its warm-up, ``2 (p - s - 1) + (v - 1) p + 1`` of 1/v stage each
    (Narayanan et al. 2021, section 2.2; Megatron-Core ``schedules.py``).
    """
    if schedule == GPIPE:
        return float(batches)
    if schedule == INTERLEAVED:
        warm_up = 2.0 * (stages - stage - 1) + (chunks - 1) * stages + 1
        return min(float(batches), warm_up / chunks)
    return min(float(batches), float(stages - stage))


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
        heads = batches if strategy.schedule == GPIPE else 1
        activations = flight * stage.activations + heads * stage.logits
        # Beside the working set of one part: two gathered parts with ZeRO-3, one bucket of
        # gradients on the wire otherwise.
        buffers = stage.working
        if shards_parameters(zero):
            buffers += stage.largest * (2.0 * settings.gather_bytes + settings.reduce_bytes)
        elif shard_count(zero, groups.dense) > 1:
            whole = stage.weights + stage.experts
            buffers += min(settings.bucket_bytes, whole * settings.gradient_bytes)
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
