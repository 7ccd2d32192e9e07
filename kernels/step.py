"""Close strategies: from tables of parts and stages to step time and memory.

One fused pass over strategies. Everything that needs a tile-level model is already
in the part table; here a strategy only adds up parts per stage, finds the slowest
stage, lets the pipeline, the data-parallel group and the host have their share,
and sums memory. Letters in formulas: m micro-batches, p stages, v chunks per
stage, t_s time of one micro-batch on stage s.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.collective import POINT_TO_POINT, collective_time
from perfmodel.kernels.step_data import data_parallel, hide, layer_shards
from perfmodel.kernels.step_memory import stage_memory, stage_parameters
from perfmodel.kernels.step_tables import (
    BACKWARD,
    BACKWARD_TIME,
    CONTEXT_EXPOSED,
    CONTEXT_TOTAL,
    EXPERT_EXPOSED,
    EXPERT_TOTAL,
    FLOPS,
    FORWARD,
    FORWARD_TIME,
    HOST,
    HOST_TIME,
    OPTIMIZER_TIME,
    OUT_CONTEXT_EXPOSED,
    OUT_CONTEXT_TOTAL,
    OUT_DATA_EXPOSED,
    OUT_DATA_TOTAL,
    OUT_EXPERT_EXPOSED,
    OUT_EXPERT_TOTAL,
    OUT_PIPELINE_EXPOSED,
    OUT_PIPELINE_TOTAL,
    OUT_TENSOR_EXPOSED,
    OUT_TENSOR_TOTAL,
    PART_COLUMNS,
    PIPELINE_BUBBLE,
    RECOMPUTE,
    RECOMPUTE_TIME,
    STEP_TIME,
    TENSOR_EXPOSED,
    TENSOR_TOTAL,
    TOKENS_PER_SECOND,
    UTILIZATION_CAUSAL,
    UTILIZATION_HARDWARE,
    UTILIZATION_NON_CAUSAL,
)
from perfmodel.kernels.stream import stream_time


@jit
def close_strategies(strategies, keys, stages, settings, stream_device, network, out):
    """Fill the result rows of every strategy.

    Parameters
    ----------
    strategies : Strategies
    keys : KeyTables
    stages : Stages
    settings : Settings
    stream_device : StreamDevice
        For the optimizer, which streams its state.
    network : ndarray
        Network table of `perfmodel.communication.network_table`.
    out : ndarray of float64 or float32, shape (RESULT_ROWS, n)
        Result, in SI units.
    """
    for i in range(strategies.layer_key.size):
        _close(i, strategies, keys, stages, settings, stream_device, network, out)


@jit
def _close(i, strategies, keys, stages, settings, stream_device, network, out):
    key = strategies.layer_key[i]
    parts = keys.parts[key]
    pair = strategies.pipeline_key[i]
    first, last = stages.offset[pair], stages.offset[pair + 1]
    tensor, context = strategies.tensor[i], strategies.context[i]
    p, v = strategies.pipeline[i], strategies.virtual[i]
    data, zero = strategies.data[i], strategies.zero[i]
    batches = strategies.global_batch[i] // (data * strategies.micro_batch[i])
    m = float(batches)

    # Groups, innermost axis first: tensor, context, then data and pipeline in either order.
    replicas = data * context
    plane = tensor * context
    if strategies.mapping[i] == 0:
        data_stride, pipeline_stride = tensor, plane * data
    else:
        data_stride, pipeline_stride = tensor if data == 1 else tensor * p, plane
    expert_plane = strategies.expert[i] * strategies.expert_tensor[i]
    expert_replicas = tensor * replicas // expert_plane
    group = strategies.shard_group[i]
    shards = group if group > 0 else replicas
    tax = (
        settings.tax_outside
        if replicas * data_stride > settings.devices_per_node
        else (settings.tax_inside)
    )

    n_parts = parts.shape[0]

    # The slowest stage, and all stages together.
    slowest, everything, critical = -1.0, 0.0, first
    executed = 0.0
    zero_total, zero_exposed, host_extra = 0.0, 0.0, 0.0
    for row in range(first, last):
        time, host, launched_flops, shard_total, shard_exposed = 0.0, 0.0, 0.0, 0.0, 0.0
        for part in range(n_parts):
            count = stages.counts[row, part]
            if count == 0.0:
                continue
            c = parts[part]
            forward = c[FORWARD]
            backward = c[BACKWARD] + c[RECOMPUTE]
            exposed = c[TENSOR_EXPOSED] + c[CONTEXT_EXPOSED] + c[EXPERT_EXPOSED]
            time += count * (forward + backward + exposed)
            host += count * c[HOST]
            launched_flops += count * c[FLOPS]
            if zero == 3 and replicas > 1:
                gather, reduce = layer_shards(
                    c,
                    replicas,
                    data_stride,
                    group,
                    expert_replicas,
                    expert_plane,
                    settings,
                    network,
                )
                shard_total += count * (2.0 * gather + reduce)
                # One layer ahead: forward hides a gather, backward a gather and a reduce.
                share = forward / max(forward + backward, 1e-30)
                shard_exposed += count * (
                    hide(gather, forward + exposed * share, 0.0, tax)
                    + hide(gather + reduce, backward + exposed * (1.0 - share), 0.0, tax)
                )
        extra = max(0.0, host - time - shard_exposed)
        executed += stages.stages[row] * launched_flops
        total = time + shard_exposed + extra
        everything += stages.stages[row] * total
        if total > slowest:
            slowest, critical = total, row
            zero_total, zero_exposed, host_extra = shard_total, shard_exposed, extra

    # Components of the slowest stage over the whole step.
    sums = np.zeros(PART_COLUMNS)
    for part in range(n_parts):
        count = stages.counts[critical, part]
        if count != 0.0:
            for column in range(HOST):
                sums[column] += count * parts[part, column]
    bubble = (everything - slowest) / v

    # Stage-to-stage sends: forward and backward of every chunk and micro-batch.
    send_total, send_exposed = 0.0, 0.0
    if p > 1:
        send = collective_time(
            POINT_TO_POINT, keys.boundary_bytes[key], 2, pipeline_stride, network
        )
        send_total = 2.0 * m * v * send
        fill = 2.0 * (p - 1) * send
        if settings.overlap_pipeline and v > 1:
            send_exposed = fill + 2.0 * m * v * max(0.0, send - slowest / (2.0 * v))
        else:
            send_exposed = fill + send_total
        send_total = max(send_total, send_exposed)

    # Gradients and parameters of the heaviest stage.
    weights, experts = 0.0, 0.0
    for row in range(first, last):
        row_weights, row_experts = stage_parameters(row, parts, stages)
        if row == first or row_weights + row_experts > weights + experts:
            weights, experts = row_weights, row_experts
    data_total, data_exposed = data_parallel(
        zero,
        m,
        weights,
        experts,
        replicas,
        data_stride,
        group,
        expert_replicas,
        expert_plane,
        sums[FORWARD],
        sums[BACKWARD] + sums[RECOMPUTE],
        tax,
        settings,
        network,
    )
    if zero == 3:
        data_total, data_exposed = m * zero_total, m * zero_exposed

    # Optimizer: gradients are read for their norm and again for the update, the state
    # is read and written, and parameters are written.
    dense_shards = shards if zero >= 1 else 1
    expert_shards = min(shards, expert_replicas) if zero >= 1 else 1
    updated = weights / dense_shards + experts / expert_shards
    read = updated * (2.0 * settings.gradient_bytes + settings.optimizer_bytes)
    written = updated * (settings.optimizer_bytes + 2.0)
    optimizer, _ = stream_time(stream_device, read, written, 12.0 * updated, 8.0, 0.0)

    host_time = m * host_extra + settings.step_overhead
    forward_time, backward_time = m * sums[FORWARD], m * sums[BACKWARD]
    recompute_time = m * sums[RECOMPUTE]
    tensor_exposed, context_exposed = m * sums[TENSOR_EXPOSED], m * sums[CONTEXT_EXPOSED]
    expert_exposed = m * sums[EXPERT_EXPOSED]
    peak = keys.peak[key]
    known = 1.0 if peak > 0.0 else np.nan
    step = known * (
        forward_time
        + backward_time
        + recompute_time
        + optimizer
        + host_time
        + tensor_exposed
        + context_exposed
        + expert_exposed
        + send_exposed
        + data_exposed
        + bubble
    )
    out[STEP_TIME, i] = step
    out[FORWARD_TIME, i] = known * forward_time
    out[BACKWARD_TIME, i] = known * backward_time
    out[RECOMPUTE_TIME, i] = known * recompute_time
    out[OPTIMIZER_TIME, i] = known * optimizer
    out[HOST_TIME, i] = known * host_time
    out[OUT_TENSOR_EXPOSED, i] = known * tensor_exposed
    out[OUT_CONTEXT_EXPOSED, i] = known * context_exposed
    out[OUT_EXPERT_EXPOSED, i] = known * expert_exposed
    out[OUT_PIPELINE_EXPOSED, i] = known * send_exposed
    out[OUT_DATA_EXPOSED, i] = known * data_exposed
    out[PIPELINE_BUBBLE, i] = known * bubble
    out[OUT_TENSOR_TOTAL, i] = known * m * sums[TENSOR_TOTAL]
    out[OUT_CONTEXT_TOTAL, i] = known * m * sums[CONTEXT_TOTAL]
    out[OUT_EXPERT_TOTAL, i] = known * m * sums[EXPERT_TOTAL]
    out[OUT_PIPELINE_TOTAL, i] = known * send_total
    out[OUT_DATA_TOTAL, i] = known * data_total
    tokens = float(strategies.global_batch[i]) * float(strategies.sequence[i])
    rate = tokens / (step * settings.devices)
    out[TOKENS_PER_SECOND, i] = rate
    out[UTILIZATION_CAUSAL, i] = rate * keys.flops_causal[key] / peak
    out[UTILIZATION_NON_CAUSAL, i] = rate * keys.flops_non_causal[key] / peak
    out[UTILIZATION_HARDWARE, i] = executed * m / p / (step * peak)

    stage_memory(
        i,
        parts,
        stages,
        first,
        last,
        strategies.schedule[i],
        batches,
        p,
        v,
        zero,
        dense_shards,
        expert_shards,
        keys.weight_bytes[key],
        settings,
        out,
    )
