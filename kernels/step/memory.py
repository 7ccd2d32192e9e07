"""Memory of the pipeline stage that needs most."""

from __future__ import annotations

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.step.tables import (
    ACTIVATIONS,
    EXPERTS,
    GPIPE,
    INTERLEAVED,
    LARGEST,
    LOGITS,
    MEMORY_ACTIVATIONS,
    MEMORY_BUFFERS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_PARAMETERS,
    MEMORY_RESERVE,
    MEMORY_TOTAL,
    WEIGHTS,
    WORKING,
)


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
def stage_memory(
    i,
    first,
    last,
    sums,
    first_stage,
    schedule,
    batches,
    p,
    v,
    zero,
    dense_shards,
    expert_shards,
    weight_bytes,
    settings,
    out,
):
    """Write the memory of the stage that needs most; components add up to the total [B].

    Parameters
    ----------
    i : int
        Column of `out`.
    first, last : int
        Stage rows of the strategy: ``first ... last - 1``.
    sums : float64, shape (stage rows, STAGE_COLUMNS)
    first_stage : float64, shape (stage rows,)
    schedule, batches, p, v, zero : int
        Schedule code, micro-batches, stages, chunks per stage, ZeRO stage.
    dense_shards, expert_shards : int
        Ranks that share optimizer state of replicated and of expert parameters.
    weight_bytes : float
        Bytes of one stored parameter [B].
    settings : Settings
    out : ndarray, shape (RESULT_ROWS, n)
    """
    worst = -1.0
    for row in range(first, last):
        owned = sums[row, WEIGHTS] / dense_shards + sums[row, EXPERTS] / expert_shards
        whole = sums[row, WEIGHTS] + sums[row, EXPERTS]
        parameters = (owned if zero == 3 else whole) * weight_bytes
        gradients = (owned if zero >= 2 else whole) * settings.gradient_bytes
        optimizer = owned * settings.optimizer_bytes
        flight = in_flight(schedule, first_stage[row], batches, p, v)
        # Backward follows the output's forward at once, but in GPipe.
        heads = batches if schedule == GPIPE else 1
        activations = flight * sums[row, ACTIVATIONS] + heads * sums[row, LOGITS]
        # Beside the working set of one part: two gathered parts with ZeRO-3, one bucket of
        # gradients on the wire otherwise.
        buffers = sums[row, WORKING]
        if zero == 3:
            buffers += sums[row, LARGEST] * (2.0 * settings.gather_bytes + settings.reduce_bytes)
        elif dense_shards > 1:
            buffers += min(settings.bucket_bytes, whole * settings.gradient_bytes)
        live = parameters + gradients + optimizer + activations + buffers
        reserve = settings.reserve_bytes + settings.fragmentation * (activations + buffers)
        if live + reserve > worst:
            worst = live + reserve
            out[MEMORY_PARAMETERS, i] = parameters
            out[MEMORY_GRADIENTS, i] = gradients
            out[MEMORY_OPTIMIZER, i] = optimizer
            out[MEMORY_ACTIVATIONS, i] = activations
            out[MEMORY_BUFFERS, i] = buffers
            out[MEMORY_RESERVE, i] = reserve
            out[MEMORY_TOTAL, i] = live + reserve
