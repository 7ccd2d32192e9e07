"""Memory of the pipeline stage that needs most."""

from __future__ import annotations

from perfmodel.kernels._jit import jit
from perfmodel.kernels.step_tables import (
    ACTIVATIONS,
    EXPERTS,
    GPIPE,
    INTERLEAVED,
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


@jit
def stage_parameters(row, parts, stages):
    """Parameters of one stage on one device: (replicated, experts)."""
    weights, experts = 0.0, 0.0
    for part in range(parts.shape[0]):
        count = stages.counts[row, part]
        # Several heads (multi-token prediction) share one output matrix.
        if part == stages.output_part:
            count = min(count, 1.0)
        weights += count * parts[part, WEIGHTS]
        experts += count * parts[part, EXPERTS]
    both = stages.tied_part >= 0 and stages.counts[row, stages.tied_part] > 0.0
    if both and stages.counts[row, stages.output_part] > 0.0:
        weights -= parts[stages.output_part, WEIGHTS]
    return weights, experts


@jit
def stage_memory(
    i,
    parts,
    stages,
    first,
    last,
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
    """Memory of the stage that needs most; components add up to the total [B]."""
    worst = -1.0
    for row in range(first, last):
        weights, experts = stage_parameters(row, parts, stages)
        owned = weights / dense_shards + experts / expert_shards
        whole = weights + experts
        layers, working, largest = 0.0, 0.0, 0.0
        for part in range(parts.shape[0]):
            count = stages.counts[row, part]
            if count != 0.0:
                layers += count * parts[part, ACTIVATIONS]
                working = max(working, parts[part, WORKING])
                largest = max(largest, parts[part, WEIGHTS] + parts[part, EXPERTS])
        flight = in_flight(schedule, stages.first_stage[row], batches, p, v)
        parameters = (owned if zero == 3 else whole) * weight_bytes
        gradients = (owned if zero >= 2 else whole) * settings.gradient_bytes
        optimizer = owned * settings.optimizer_bytes
        activations = flight * layers
        # Beside the working set of one part: two gathered parts with ZeRO-3, one bucket of
        # gradients on the wire otherwise.
        buffers = working
        if zero == 3:
            buffers += 2.0 * largest * settings.gather_bytes + largest * settings.reduce_bytes
        elif dense_shards > 1:
            buffers += min(settings.bucket_bytes, gradients)
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
