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
from perfmodel.kernels.collective.times import ALL_REDUCE, POINT_TO_POINT
from perfmodel.kernels.step.data_parallel import (
    MEMO_COLUMNS,
    MEMO_SLOTS,
    OPTIMIZER_FLOPS,
    OPTIMIZER_LAUNCHES,
    data_parallel,
    hidden_width,
    hide,
    layer_shards,
    optimizer_work,
    remembered_time,
    width_of,
)
from perfmodel.kernels.step.memory import stage_memory
from perfmodel.kernels.step.placement import Group, axis_strides, data_row, group_in_row, stage_row
from perfmodel.kernels.step.tables import (
    BACKWARD,
    BACKWARD_TIME,
    BACKWARD_WINDOW,
    BUSY,
    COLLECTIVE_WIDTH,
    COMPUTE_WIDTH,
    CONTEXT_EXPOSED,
    CONTEXT_TOTAL,
    EXPERT_EXPOSED,
    EXPERT_TOTAL,
    EXPERTS,
    FLOPS,
    FORWARD,
    FORWARD_TIME,
    FORWARD_WINDOW,
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
    PIPELINE_BUBBLE,
    RECOMPUTE,
    RECOMPUTE_TIME,
    STEP_TIME,
    STEP_TIME_HIGH,
    STEP_TIME_LOW,
    STREAM_WIDTH,
    TENSOR_EXPOSED,
    TENSOR_TOTAL,
    TOKENS_PER_SECOND,
    UTILIZATION_CAUSAL,
    UTILIZATION_HARDWARE,
    UTILIZATION_NON_CAUSAL,
    WEIGHTS,
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
        Network table of `perfmodel.network.collectives.network_table`.
    out : ndarray of float64 or float32, shape (RESULT_ROWS, n)
        Result, in SI units.
    """
    memo = np.zeros((MEMO_SLOTS, MEMO_COLUMNS))
    shards = np.zeros((3, stages.counts.shape[1]))  # total, exposed, half-width of each part
    for i in range(strategies.stage_key.size):
        stage_key = strategies.stage_key[i]
        key = stages.layer_key[stage_key]
        first, last = stages.offset[stage_key], stages.offset[stage_key + 1]
        sums = stages.sums
        p, v = strategies.pipeline[i], strategies.virtual[i]
        data, zero = strategies.data[i], strategies.zero[i]
        batches = strategies.global_batch[i] // (data * strategies.micro_batch[i])
        m = float(batches)

        if i == 0 or not same_placement(strategies, i):
            dense, sparse, pipeline_stride = data_groups(
                strategies.mapping[i],
                strategies.tensor[i],
                strategies.context[i],
                data,
                p,
                strategies.expert[i] * strategies.expert_tensor[i],
                strategies.shard_group[i],
                network,
            )
        tax = settings.tax_inside
        if dense.members * dense.stride > settings.domain:
            tax = settings.tax_outside

        if zero == 3:
            price_shards(keys.parts[key], dense, sparse, tax, settings, network, memo, shards)

        # The slowest stage, all stages together, and the stage with most parameters.
        slowest, everything, executed, critical = -1.0, 0.0, 0.0, 0
        weights, experts = 0.0, 0.0
        gather_total, gather_exposed = 0.0, 0.0
        gather_width, all_gather_widths = 0.0, 0.0
        for row in range(first, last):
            total, exposed, shard_width = 0.0, 0.0, 0.0
            if zero == 3:
                for part in range(shards.shape[1]):
                    count = stages.counts[row, part]
                    total += count * shards[0, part]
                    exposed += count * shards[1, part]
                    shard_width += count * shards[2, part]
            copies = stages.stages[row]
            executed += copies * sums[row, FLOPS]
            everything += copies * (sums[row, BUSY] + exposed)
            all_gather_widths += copies * shard_width
            if sums[row, BUSY] + exposed > slowest:
                slowest, critical = sums[row, BUSY] + exposed, row
                gather_total, gather_exposed, gather_width = total, exposed, shard_width
            if sums[row, WEIGHTS] + sums[row, EXPERTS] > weights + experts:
                weights, experts = sums[row, WEIGHTS], sums[row, EXPERTS]
        bubble = (everything - slowest) / v
        # Half-widths: of the slowest stage, and of the others through the bubble.
        ahead = m - 1.0 / v
        compute_width = ahead * sums[critical, COMPUTE_WIDTH] + stages.widths[stage_key, 0] / v
        stream_width = ahead * sums[critical, STREAM_WIDTH] + stages.widths[stage_key, 1] / v
        collective_width = ahead * (sums[critical, COLLECTIVE_WIDTH] + gather_width)
        collective_width += (stages.widths[stage_key, 2] + all_gather_widths) / v

        send_total, send_exposed, beside = 0.0, 0.0, 0.0
        if p > 1:
            span = boundary_span(pipeline_stride, p)
            send = remembered_time(POINT_TO_POINT, keys.boundary_bytes[key], 2, span, network, memo)
            if 2 * span > settings.domain and dense.members * dense.stride > settings.domain:
                beside = v * send  # gradients and sends leave through the same adapters
            relative = width_of(keys.boundary_bytes[key], settings.collective_widths)
            send_total, send_exposed, send_width = pipeline_sends(
                send, m, p, v, slowest, settings.overlap_pipeline, relative
            )
            collective_width += send_width

        if zero == 3:
            data_total, data_exposed = m * gather_total, m * gather_exposed
        else:
            data_total, data_exposed, data_width, waits = data_parallel(
                zero,
                m,
                weights,
                experts,
                dense,
                sparse,
                sums[critical, FORWARD_WINDOW],
                sums[critical, BACKWARD_WINDOW],
                beside,
                not (settings.overlap_pipeline and v > 1),
                tax,
                settings,
                network,
                memo,
            )
            collective_width += data_width
            send_total += waits
            send_exposed += waits

        # A tied table lives on the first and the last stage, which add up its gradients.
        if p > 1 and keys.shared_table[key] > 0.0:
            size = keys.shared_table[key] * settings.gradient_bytes
            table = remembered_time(ALL_REDUCE, size, 2, pipeline_stride * (p - 1), network, memo)
            data_total += table
            data_exposed += table
            collective_width += width_of(size, settings.collective_widths) * table

        dense_shards, expert_shards = 1, 1
        if zero >= 1:
            dense_shards = dense.shard_set if dense.shard_set > 0 else dense.members
            expert_shards = sparse.shard_set if sparse.shard_set > 0 else sparse.members
        updated, read, written = optimizer_work(
            weights,
            experts,
            dense_shards,
            expert_shards,
            zero,
            settings.gradient_bytes,
            settings.optimizer_bytes,
        )
        optimizer, _ = stream_time(
            stream_device, read, written, OPTIMIZER_FLOPS * updated, OPTIMIZER_LAUNCHES, 0.0
        )
        stream_width += width_of(read + written, settings.stream_widths) * optimizer

        # NaN where the device lacks the precision.
        peak = keys.peak[key]
        m_known = m if peak > 0.0 else np.nan
        host_time = m_known * sums[critical, HOST] + settings.step_overhead
        step = m_known * sums[critical, BUSY] + settings.step_overhead + optimizer
        step += send_exposed + data_exposed + bubble
        # Independent classes, and what no kernel explains: in quadrature. The band is even
        # in the logarithm, in which the errors were found.
        variance = (settings.step_width * step) ** 2
        variance += compute_width**2 + stream_width**2 + collective_width**2
        factor = np.exp(np.sqrt(variance) / step)
        out[STEP_TIME, i] = step
        out[STEP_TIME_LOW, i] = step / factor
        out[STEP_TIME_HIGH, i] = step * factor
        out[FORWARD_TIME, i] = m_known * sums[critical, FORWARD]
        out[BACKWARD_TIME, i] = m_known * sums[critical, BACKWARD]
        out[RECOMPUTE_TIME, i] = m_known * sums[critical, RECOMPUTE]
        out[OPTIMIZER_TIME, i] = optimizer
        out[HOST_TIME, i] = host_time
        out[OUT_TENSOR_EXPOSED, i] = m_known * sums[critical, TENSOR_EXPOSED]
        out[OUT_CONTEXT_EXPOSED, i] = m_known * sums[critical, CONTEXT_EXPOSED]
        out[OUT_EXPERT_EXPOSED, i] = m_known * sums[critical, EXPERT_EXPOSED]
        out[OUT_PIPELINE_EXPOSED, i] = send_exposed
        out[OUT_DATA_EXPOSED, i] = data_exposed
        out[PIPELINE_BUBBLE, i] = bubble
        out[OUT_TENSOR_TOTAL, i] = m_known * sums[critical, TENSOR_TOTAL]
        out[OUT_CONTEXT_TOTAL, i] = m_known * sums[critical, CONTEXT_TOTAL]
        out[OUT_EXPERT_TOTAL, i] = m_known * sums[critical, EXPERT_TOTAL]
        out[OUT_PIPELINE_TOTAL, i] = send_total
        out[OUT_DATA_TOTAL, i] = data_total
        tokens = float(strategies.global_batch[i]) * float(strategies.sequence[i])
        rate = tokens / (step * settings.devices)
        out[TOKENS_PER_SECOND, i] = rate
        out[UTILIZATION_CAUSAL, i] = rate * keys.flops_causal[key] / peak
        out[UTILIZATION_NON_CAUSAL, i] = rate * keys.flops_non_causal[key] / peak
        out[UTILIZATION_HARDWARE, i] = executed * m / p / (step * peak)
        stage_memory(
            i,
            first,
            last,
            stages.sums,
            stages.first_stage,
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


@jit
def same_placement(strategies, i):
    """Tell whether `data_groups` of a strategy are those of the strategy before it."""
    return (
        strategies.mapping[i] == strategies.mapping[i - 1]
        and strategies.tensor[i] == strategies.tensor[i - 1]
        and strategies.context[i] == strategies.context[i - 1]
        and strategies.pipeline[i] == strategies.pipeline[i - 1]
        and strategies.data[i] == strategies.data[i - 1]
        and strategies.shard_group[i] == strategies.shard_group[i - 1]
        and strategies.expert[i] == strategies.expert[i - 1]
        and strategies.expert_tensor[i] == strategies.expert_tensor[i - 1]
    )


@jit
def data_groups(mapping, tensor, context, data, pipeline, spread, shard_set, network):
    """Groups of dense parameters and of experts, and the stride of pipeline stages.

    Dense parameters are held by all data × context ranks, an expert by every `spread`-th
    rank of a stage, `spread` devices holding all experts once. A shard set of data ranks
    spans ``shard_set * tensor`` devices, which hold that many ranks for each expert.
    """
    replicas = data * context
    holders = tensor * replicas // spread
    expert_set = max(1, shard_set * tensor // spread) if shard_set > 0 else 0
    if mapping == 0:  # tensor-context-data-pipeline: every row is even
        dense = Group(replicas, tensor, shard_set, tensor, tensor * shard_set)
        sparse = Group(holders, spread, expert_set, spread, spread * expert_set)
        return dense, sparse, tensor * replicas
    _, context_stride, data_stride, pipeline_stride = axis_strides(
        mapping, tensor, context, data, pipeline
    )
    block, stride, jump = data_row(context, context_stride, data, data_stride)
    dense = group_in_row(replicas, 1, shard_set, block, stride, jump, network)
    block, jump = stage_row(tensor, context, data, pipeline, pipeline_stride)
    sparse = group_in_row(holders, spread, expert_set, block, 1, jump, network)
    return dense, sparse, pipeline_stride


@jit
def boundary_span(stride, members):
    """Distance that stands for the neighbours of a row, the farthest of which set the pace.

    Two ranks this far apart lie in one domain of an even number of devices where the whole
    row does: half of what the row spans, at least a stride. (A row that fills a domain of an
    odd number counts as outside: half of it is no whole distance.)
    """
    return max(stride, (stride * members + 1) // 2)


@jit
def pipeline_sends(send, m, p, v, stage_time, overlap, relative):
    """Total and exposed time of the stage-to-stage sends on the critical stage [s].

    Third, the half-width of the exposed time where a send is known to ± `relative`.

    Every chunk of every micro-batch is received once forward and once backward; filling
    and draining the pipeline adds one of each per further stage. Interleaved schedules
    can send beside the next chunk's compute.
    """
    fill = 2.0 * (p - 1) * send
    steady = 2.0 * m * v * send
    exposed = steady
    fast, slow = max(0.0, 1.0 - relative) * send, (1.0 + relative) * send
    width = m * v * (slow - fast)
    if overlap and v > 1:
        beside = stage_time / (2.0 * v)
        exposed = 2.0 * m * v * max(0.0, send - beside)
        width = m * v * (max(0.0, slow - beside) - max(0.0, fast - beside))
    width += (p - 1) * (slow - fast)
    return fill + steady, fill + exposed, width


@jit
def price_shards(parts, dense, sparse, tax, settings, network, memo, shards):
    """Fill times to gather and reduce each sharded part (ZeRO-3) [s].

    A part is gathered one ahead, in forward and again in backward, where its gradients
    are reduced as well; what outlasts the part's own pass is exposed. Rows of `shards`:
    total, exposed, and half-width of exposed.
    """
    for part in range(shards.shape[1]):
        c = parts[part]
        gather, reduce = layer_shards(c, dense, sparse, settings, network, memo)
        both = gather + reduce
        size = (c[WEIGHTS] + c[EXPERTS]) * settings.gather_bytes
        relative = width_of(size, settings.collective_widths)
        forward, backward = gather, both
        forward_width, backward_width = relative * gather, relative * both
        if settings.overlap_gather:
            forward = hide(gather, c[FORWARD_WINDOW], 0.0, tax)
            forward_width = hidden_width(gather, c[FORWARD_WINDOW], 0.0, tax, relative)
        if settings.overlap_reduce:
            backward = hide(both, c[BACKWARD_WINDOW], 0.0, tax)
            backward_width = hidden_width(both, c[BACKWARD_WINDOW], 0.0, tax, relative)
        shards[0, part] = gather + both
        shards[1, part] = forward + backward
        shards[2, part] = forward_width + backward_width
